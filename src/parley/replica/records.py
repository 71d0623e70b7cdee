"""Executed blocks with their receipts: read from the local store, shown to others, and checked when others show them.

A record is right if it stands in the history that this replica has itself; whoever sent it need not be believed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Block
from parley.crypto import merkle
from parley.ledger import history, layout
from parley.ledger.proofs import history_leaf, history_leaf_of
from parley.model.codec import DECODE_ERRORS
from parley.store.interface import KeyValue
from parley.sync.messages import Record, Records, RecordsRequest, Values, ValuesRequest

MAX_ANSWER = 768 * 1024  # bytes of one message
MAX_RECEIPTS = 64 * 1024 * 1024  # encoded receipts of one block
# Of receipts that do not fit one message: by a few bytes at a time they would never be complete.
MIN_PART = 512 * 1024
PART = 256  # leaves that are hashed in one step
_HEADER_COST = 8 * 1024  # bytes of a header with its certificates, about
_DIGEST_COST = 40


@dataclass(frozen=True, slots=True)
class Trusted:
    """What a replica knows of the history by itself: how many blocks, and their root."""

    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Sound:
    """An executed block and its receipts that stand in the history, with the proof."""

    block: Block
    leaves: tuple[bytes, ...]
    proof: merkle.Proof
    node: bytes  # of the history, for this block

    def entries(self) -> dict[bytes, bytes]:
        """All that they prove about the local store."""
        block = self.block
        nodes = history.proven_nodes(self.proof, self.node)
        return {
            layout.committed(block.height): layout.encode(layout.StoredBlock.of(block)),
            layout.receipts(block.height): layout.encode(self.leaves),
            **{layout.history_node(level, index): node for level, index, node in nodes},
        }


# -- the local store ---------------------------------------------------------------------------------------------------


def read_block(store: KeyValue, height: int) -> Block | None:
    """The committed block; None if it is missing, or is not one that could stand there."""
    block = read_unchecked(store, height)
    return block if block is not None and merkle.root(block.batches) == block.header.batches_root else None


def read_unchecked(store: KeyValue, height: int) -> Block | None:
    """The same, but it may hold other batches than its header commits to."""
    try:
        block = layout.decode_block(store.get(layout.committed(height)) or b"").block()
    except DECODE_ERRORS:
        return None
    return block if block.height == height else None


def read_leaves(store: KeyValue, height: int) -> tuple[bytes, ...] | None:
    return layout.readable(layout.decode_receipts, store.get(layout.receipts(height)))


def root_in_parts(leaves: Sequence[bytes]) -> Generator[int, None, bytes]:
    """The root of a tree in small steps; after each of them how many leaves it has hashed."""
    tree = merkle.MountainRange()
    for start in range(0, len(leaves), PART):
        part = leaves[start : start + PART]
        for leaf in part:
            tree.append(leaf)
        yield len(part)
    return tree.root()


def leaf_node_in_parts(block: Block, leaves: Sequence[bytes]) -> Generator[int, None, bytes]:
    """The node of the history for a block, in the same steps."""
    found = yield from root_in_parts(leaves)
    return merkle.leaf_hash(history_leaf(block.height, block.id, found, len(leaves)))


def fits(store: KeyValue, place: tuple[int, int], node: bytes, trusted: Trusted) -> bool:
    """Whether a node at this level and index, with what is stored beside its way, leads to the root."""
    level, index = place
    if index + 1 << level > trusted.size:
        return False
    try:
        return history.climb(layout.history_nodes(store), place, trusted.size, node) == trusted.root
    except history.MissingNode:
        return False


# -- for others --------------------------------------------------------------------------------------------------------


def answer_records(store: KeyValue, request: RecordsRequest) -> tuple[Records, tuple[bytes, ...]]:
    """What fits one message of what is here, and the entries that should be here and cannot be read."""
    records: list[Record] = []
    unreadable: list[bytes] = []
    room, first = MAX_ANSWER, request.first
    for height in request.heights:
        found = _shown(store, height, request.size)
        if isinstance(found, bytes):
            unreadable.append(found)
        elif found is not None:
            block, receipts, path = found
            room -= _HEADER_COST + _DIGEST_COST * (len(block.batches) + len(path))
            if records and len(receipts) > room:
                break
            part = receipts[first : first + max(room, 0)]
            records.append(Record(block, len(receipts), first, (part,), path))
            room -= len(part)
        first = 0
        if room <= 0:
            break
    return Records(request.size, tuple(records)), tuple(unreadable)


def _shown(
    store: KeyValue, height: int, size: int
) -> tuple[layout.StoredBlock, bytes, tuple[bytes, ...]] | bytes | None:
    """A block, its encoded receipts and its path; the entry that cannot be read; or None if it is not here."""
    receipts = store.get(layout.receipts(height))
    if receipts is None or store.get(layout.committed(height)) is None or not 0 < height <= size:
        return None
    block = read_block(store, height)
    if block is None:
        return layout.committed(height)
    if read_leaves(store, height) is None:
        return layout.receipts(height)
    try:
        proof = history.prove(layout.history_nodes(store), height - 1, size)
    except history.MissingNode:  # not executed that far, or filled in later
        return None
    return layout.StoredBlock.of(block), receipts, proof.path


def answer_values(store: KeyValue, request: ValuesRequest) -> Values:
    """As of now, as many as fit."""
    values: list[bytes | None] = []
    room = MAX_ANSWER
    for key in request.keys:
        value = store.get(layout.state(key))
        room -= len(key) + len(value or b"")
        if room < 0:
            break
        values.append(value)
    return Values(request.keys[: len(values)], tuple(values))


# -- from others -------------------------------------------------------------------------------------------------------


class Gathering:
    """Records of some heights from one member, message by message."""

    def __init__(self, trusted: Trusted, heights: Iterable[int]) -> None:
        self._trusted = trusted
        self._heights = list(heights)
        self._part = b""  # of the receipts of the first height

    def again(self) -> Gathering:
        """The same from another member: parts of two would not fit together."""
        return Gathering(self._trusted, self._heights)

    @property
    def is_done(self) -> bool:
        return not self._heights

    @property
    def is_in_parts(self) -> bool:
        """Whether a part of a record is here, of which another member would have to send everything again."""
        return bool(self._part)

    def question(self) -> RecordsRequest:
        return RecordsRequest(self._trusted.size, tuple(self._heights), len(self._part))

    def take(self, answer: Records) -> list[Sound]:
        """Those that are complete now. Raises `Refused` for what is not right, or brings nothing."""
        if answer.size != self._trusted.size or not answer.records:
            raise Refused(Reason.BAD_ANSWER, "none of the records asked for")
        return [sound for record in answer.records if (sound := self._take(record)) is not None]

    def _take(self, record: Record) -> Sound | None:
        height = record.block.header.height
        if height not in self._heights:
            raise Refused(Reason.BAD_ANSWER, f"a record of block {height}, which was not asked for")
        if height != self._heights[0]:
            self._heights.remove(height)
            self._heights.insert(0, height)
            self._part = b""
        new = b"".join(record.receipts)
        data = self._part + new
        if record.first != len(self._part) or not new or not len(data) <= record.count <= MAX_RECEIPTS:
            raise Refused(Reason.BAD_ANSWER, f"receipts of block {height} that do not fit together")
        if len(data) < record.count:
            if len(new) < MIN_PART:
                raise Refused(Reason.BAD_ANSWER, f"only {len(new)} bytes of the receipts of block {height}")
            self._part = data
            return None
        sound = self._checked(record, data)
        del self._heights[0]
        self._part = b""
        return sound

    def _checked(self, record: Record, data: bytes) -> Sound:
        block, height = record.block.block(), record.block.header.height
        try:
            leaves = layout.decode_receipts(data)
        except DECODE_ERRORS:
            raise Refused(Reason.BAD_ANSWER, f"the receipts of block {height} cannot be read") from None
        proof = merkle.Proof(height - 1, self._trusted.size, record.path)
        leaf = history_leaf_of(height, block.id, leaves)
        if merkle.root(block.batches) != block.header.batches_root:
            raise Refused(Reason.BAD_ANSWER, f"block {height} with other batches than its header commits to")
        if not merkle.verify(self._trusted.root, leaf, proof):
            raise Refused(Reason.BAD_ANSWER, f"a record of block {height} that is not in the history")
        return Sound(block, leaves, proof, merkle.leaf_hash(leaf))
