"""The proofs of equivocation that brokers hold, as rows. They are no part of the ledger, so they have no height."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from parley.client.evidence import ProvenMisbehaviour
from parley.model.genesis import Genesis

SCHEMA = pa.schema(
    [
        *[
            ("broker", pa.string()),
            ("organisation", pa.string()),
            ("kind", pa.string()),
            ("view", pa.int64()),
        ],
        *[("held_by", pa.list_(pa.string())), ("record", pa.binary())],
    ]
)


def evidence_rows(proofs: Iterable[ProvenMisbehaviour], genesis: Genesis) -> Iterator[pa.RecordBatch]:
    organisations = {broker.name: broker.organisation for broker in genesis.brokers}
    rows = [
        {
            "broker": one.broker,
            "organisation": organisations[one.broker],
            "kind": one.kind,
            "view": one.view,
            "held_by": list(one.held_by),
            "record": one.record,
        }
        for one in proofs
    ]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
