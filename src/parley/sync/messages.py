"""What a member that is behind, damaged or new asks the others, and what it gets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.consensus.types import QC, TC, U32, U64, Hash, Header
from parley.ledger.layout import StoredBlock

MAX_BLOCKS = 64
MAX_PATHS = 256  # nodes of the state map in one question
MAX_HEIGHTS = 32  # blocks whose records are asked for at a time
MAX_KEYS = 64  # state entries that are asked for at a time

StateKey = Annotated[bytes, Meta(max_length=4096)]


class BlocksRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Send me the blocks above height `above` on the way to `target`, oldest first, as many as fit."""

    target: Hash
    above: U64


class BlocksResponse(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """A chain; `qc` certifies its last block unless that is the target, whose QC the asker has."""

    target: Hash
    blocks: Annotated[tuple[StoredBlock, ...], Meta(max_length=MAX_BLOCKS)]
    qc: QC | None


# -- a lost safety record (P10) ----------------------------------------------------------------------------------------


class RecoveryRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    """My safety record is lost: what is your highest certificate? `nonce` names this life of the asker."""

    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]


class RecoveryAnswer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=10):
    """The highest certificates of the answerer's own safety record."""

    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    high_qc: QC
    high_tc: TC | None


# -- certified snapshots -----------------------------------------------------------------------------------------------


class SnapshotRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=11):
    """Offer me a snapshot of a state above this height. Who has none takes one soon: ask again."""

    above: U64


class SnapshotOffer(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=12):
    """A certified header, whose executed height is that of the snapshot, and the encoded history range up to there."""

    header: Header
    qc: QC
    history: Annotated[bytes, Meta(max_length=2048)]


class NodesRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=13):
    """Nodes of the state map of a snapshot, by their paths."""

    height: U64
    paths: Annotated[
        tuple[Annotated[bytes, Meta(max_length=64)], ...], Meta(min_length=1, max_length=MAX_PATHS)
    ]


class SnapshotNodes(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=14):
    """In the order of the question; empty bytes where there is none. `first` is the first path of the question."""

    height: U64
    first: Annotated[bytes, Meta(max_length=64)]
    nodes: Annotated[tuple[bytes, ...], Meta(max_length=MAX_PATHS)]


class EntriesRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=15):
    """State entries of a snapshot whose keys come after `after`, as many as fit."""

    height: U64
    after: StateKey


class SnapshotEntries(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=16):
    """In key order; `more`: the last one is not the last of the snapshot."""

    height: U64
    after: StateKey
    entries: tuple[tuple[bytes, bytes], ...]
    more: bool


# -- single records ----------------------------------------------------------------------------------------------------


class RecordsRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=17):
    """Executed blocks with their receipts, proven against the history of the first `size` blocks.

    `first` is the byte from which the encoded receipts of the first block are wanted, when they do not fit one message.
    """

    size: U64
    heights: Annotated[tuple[U64, ...], Meta(min_length=1, max_length=MAX_HEIGHTS)]
    first: U32


class Record(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One executed block: `receipts` are bytes of its encoded receipts from `first` on, of `count` in all.

    Bytes, because a single receipt may be larger than a message. `path` is that of the block's history proof.
    """

    block: StoredBlock
    count: U32
    first: U32
    receipts: tuple[bytes, ...]
    path: Annotated[tuple[Hash, ...], Meta(max_length=64)]


class Records(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=18):
    """As many of the asked-for records, in their order, as fit; none: the answerer has not got them."""

    size: U64
    records: Annotated[tuple[Record, ...], Meta(max_length=MAX_HEIGHTS)]


class ValuesRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=19):
    """SnapshotEntries of the state as the answerer has them now; the asker knows their hashes."""

    keys: Annotated[tuple[StateKey, ...], Meta(min_length=1, max_length=MAX_KEYS)]


class Values(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=20):
    keys: Annotated[tuple[StateKey, ...], Meta(max_length=MAX_KEYS)]
    values: Annotated[tuple[bytes | None, ...], Meta(max_length=MAX_KEYS)]
