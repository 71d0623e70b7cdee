"""Proofs that brokers broke the rules, from all brokers that hold some: each is checked here, and no broker's word counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.consensus.errors import Refused
from parley.ledger.proofs import ProofError
from parley.net.messages import MAX_TOLD, EvidenceList, ReadEvidence
from parley.replica import evidence


@dataclass(frozen=True, slots=True)
class ProvenMisbehaviour:
    """`broker` signed two contradicting messages of this kind in this view; `record` holds both, `held_by` showed it."""

    broker: str
    kind: evidence.Kind
    view: int
    record: bytes
    held_by: tuple[str, ...]


async def gather(quorum: QuorumClient) -> list[ProvenMisbehaviour]:
    """What all brokers that can be reached hold: one of them alone may hide what concerns it."""
    answers = await quorum.ask_each(quorum.candidates(), partial(_records, quorum))
    # The first record of each accusation, and who holds one.
    held: dict[evidence.Accusation, tuple[bytes, list[str]]] = {}
    for name, records in answers.items():
        for accused, record in records:
            _, holders = held.setdefault(accused, (record, []))
            holders.append(name)
    names = quorum.reader.trust.committee.names
    found = [
        ProvenMisbehaviour(names[one.member], one.kind, one.view, record, tuple(holders))
        for one, (record, holders) in held.items()
    ]
    return sorted(found, key=lambda one: (one.broker, one.view, one.kind))


async def _records(quorum: QuorumClient, name: str) -> list[tuple[evidence.Accusation, bytes]]:
    """Raises `ProofError` for a record that proves nothing, or more of them than brokers keep."""
    connection = await quorum.brokers.connection(name)
    verifier = quorum.reader.trust.verifier
    proven: list[tuple[evidence.Accusation, bytes]] = []
    while True:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await connection.ask(ReadEvidence(0, len(proven)), EvidenceList)
        for record in answer.entries:
            try:
                proven.append((evidence.verify(evidence.decode(record), verifier), record))
            except Refused as error:
                raise ProofError(f"its proof of misbehaviour proves nothing: {error}") from None
        if not answer.more:
            return proven
        if not answer.entries or len(proven) > MAX_TOLD:
            raise ProofError("it shows proofs of misbehaviour without end")
