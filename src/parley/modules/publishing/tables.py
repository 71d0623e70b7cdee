"""Where the batches of a topic partition are found."""

from __future__ import annotations

from parley.application.bounds import ledger
from parley.application.tables import LARGE, NUMBER, TEXT, Record, Table
from parley.model.names import U32, U64, Hash


class BatchPlace(Record, frozen=True):
    """The batch whose messages begin at an offset, and the leaf of its receipt."""

    height: U64
    position: U32
    digest: Hash
    count: U32  # of its messages


OFFSETS: Table[BatchPlace, str, int, int] = Table(
    "offset",
    BatchPlace,
    TEXT,
    NUMBER,
    LARGE,
    about="The batch that begins at an offset.",
    index=True,
    bound=ledger("batch that was published"),
)
