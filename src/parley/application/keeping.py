"""What a broker stores besides the state: where receipts are found, which bodies it keeps, and which it has to erase.

All of it is derived from receipts and no part of the certified state. A body that is over waits `GRACE` blocks before it
goes: readers at a slightly older header, and brokers that are a little behind, still need it (P21).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from parley.application.block import BlockContext
from parley.application.bounds import ledger
from parley.application.tables import HASH, Record, Table, encode_value
from parley.ledger import layout
from parley.ledger.application import Erasure, Writes
from parley.ledger.application import Indexing as BlockIndexing
from parley.ledger.bodies import GRACE
from parley.ledger.erasure import remains_of
from parley.model.names import U32, U64, Position
from parley.model.receipts import BatchReceipt, Leaf, receipt_of
from parley.model.refusals import OK
from parley.store.interface import KeyValue

if TYPE_CHECKING:
    from parley.application.application import Application
    from parley.application.machine import Machine
    from parley.application.module import IndexEntries


class ReceiptPlace(Record, frozen=True):
    """The receipt of a batch. Until it is final the batch may be ordered again and the place may change (P3)."""

    height: U64
    position: U32
    final: bool
    rank: U32
    outcome: str
    place: U64 | None = None  # what the outcome says of the body's place


RECEIPTS: Table[ReceiptPlace, bytes] = Table(
    "receipt",
    ReceiptPlace,
    HASH,
    about="Where the receipt of a batch is found.",
    index=True,
    bound=ledger("batch that was ordered"),
)
TO_ERASE: Table[int, bytes] = Table(
    "erase",
    int,
    HASH,
    about="A batch that is over, and the height at which it came again or was dropped.",
    index=True,
    passing=True,
    bound=ledger("batch that was ordered and is over, until its body is erased"),
)


class Keeper:
    """The keeping of bodies and indices for one application in one network."""

    def __init__(self, application: Application, machine: Machine) -> None:
        self._application = application
        self.is_body = machine.is_body

    def receipt(self, leaf: bytes) -> BatchReceipt | None:
        """The leaf, if it is the receipt of a batch. Raises `ValueError` if it cannot be read."""
        return receipt_of(self._application.decode_leaf(leaf))

    def may_be_late(self, kind: int) -> bool:
        """Whether batches of this kind may have a receipt in a later block than their own."""
        known = self._application.batch_kinds.get(kind)
        return known is not None and known.late

    def indexing(self, height: int, state: KeyValue, first: int = 0) -> BlockIndexing:
        return Indexing(self._application, height, state, first)

    def place_of(self, key: bytes, value: bytes) -> Position | None:
        entry = key.removeprefix(layout.INDICES)
        table = self._application.table_of(entry)
        if table is None or not table.index:
            raise ValueError("is of no known kind")
        if not table.is_sound(entry, value):
            raise ValueError("cannot be read" if table.passing else "leads nowhere")
        if table.passing:
            return None
        place = table.decode(value)
        return place.height, place.position

    def passing(self) -> tuple[bytes, ...]:
        return tuple(table.places() for table in self._application.tables.values() if table.passing)

    def receipt_height(self, digest: bytes, state: KeyValue) -> int | None:
        place = RECEIPTS.stored(state, digest)
        return None if place is None else place.height

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        receipt = self.receipt(leaf)
        return receipt is not None and is_kept(self._application, receipt, state)

    def erase(self, state: KeyValue, height: int, limit: int) -> Erasure:
        return erase(self._application, state, height, limit)

    def remains(self, body: bytes) -> bytes:
        return remains_of(body)


def places(application: Application, height: int, leaves: Sequence[Leaf], store: KeyValue) -> IndexEntries:
    """What a block's leaves add to the indices, in any order of blocks: a broker may get old ones late."""
    indexing = Indexing(application, height, store)
    yield from indexing.add_decoded(leaves)
    yield from indexing.rest()


class Indexing:
    """What the leaves of one block add to the indices, a part of them after another, from the position `first` on."""

    def __init__(self, application: Application, height: int, store: KeyValue, first: int = 0) -> None:
        self._application = application
        self._height = height
        self._store = store
        self._next = first
        # Where a block gives a batch two receipts, the better one.
        self._best: dict[bytes, tuple[int, BatchReceipt]] = {}

    def add(self, leaves: Iterable[bytes]) -> Writes:
        """What the next leaves give by themselves."""
        return tuple(self.add_decoded(map(self._application.decode_leaf, leaves)))

    def add_decoded(self, leaves: Iterable[Leaf]) -> IndexEntries:
        index_of, best = self._application.index.get, self._best
        for position, leaf in enumerate(leaves, self._next):
            self._next = position + 1
            receipt = receipt_of(leaf)
            index = index_of(type(leaf) if receipt is None else type(receipt.outcome))
            if index is not None:
                yield from index(self._height, position, leaf)
            if receipt is not None:
                known = best.get(receipt.digest)
                if known is None or receipt.outcome.rank > known[1].outcome.rank:
                    best[receipt.digest] = position, receipt

    def rest(self) -> IndexEntries:
        """Where the receipts of batches are found, as far as the store has no better ones. After the last leaf."""
        for position, receipt in self._best.values():
            yield from _place(self._height, position, receipt, self._store)


def _place(height: int, position: int, receipt: BatchReceipt, store: KeyValue) -> IndexEntries:
    outcome = receipt.outcome
    found = ReceiptPlace(height, position, outcome.final, outcome.rank, receipt.outcome_name, outcome.place)
    decided = outcome.code == OK and outcome.decides
    if decided or _replaces(found, RECEIPTS.stored(store, receipt.digest)):
        yield RECEIPTS.place(receipt.digest), encode_value(found)


def _replaces(found: ReceiptPlace, known: ReceiptPlace | None) -> bool:
    """The first final receipt of the highest rank is the one to be found; until there is one, the newest."""
    if known is None or found.rank != known.rank:
        return known is None or found.rank > known.rank
    return found.height < known.height if found.final else found.height > known.height


# -- which bodies are kept -------------------------------------------------------------------------------------------


def is_kept(application: Application, receipt: BatchReceipt, store: KeyValue) -> bool:
    """Whether the receipt asks for the body of its batch. One that decides nothing does not, if another one does."""
    if not receipt.outcome.final:
        place = RECEIPTS.stored(store, receipt.digest)
        if place is not None and place.final:
            return False
    return not is_over(application, receipt, store)


def is_over(application: Application, receipt: BatchReceipt, store: KeyValue) -> bool:
    """Whether the batch of the receipt, by its best receipt, will never be read again."""
    if not receipt.topic:
        return False
    outcome, place = receipt.outcome_name, receipt.outcome.place
    if place is None:
        found = RECEIPTS.stored(store, receipt.digest)
        outcome, place = ("", None) if found is None else (found.outcome, found.place)
    over = application.over.get(outcome)
    return over is not None and over(receipt, place, store)


def to_erase(
    application: Application, block: BlockContext, receipts: Iterable[BatchReceipt], store: KeyValue
) -> IndexEntries:
    """What execution adds to the lists of what has to be erased.

    A batch that a client kept can be ordered again, and then every broker has stored its body once more. So a broker may
    also leave a listed body alone that waits for order: when it has a receipt, it is listed again.
    """
    for module in application.modules:
        if module.derive is not None:
            yield from module.derive(block, store)
    again = (one.digest for one in receipts if one.outcome.place is None and is_over(application, one, store))
    for digest in dict.fromkeys((*again, *block.dropped)):
        yield TO_ERASE.place(digest), encode_value(block.height)


def _listed(store: KeyValue, height: int, most: int) -> Iterator[tuple[bytes, int]]:
    """Some that are listed, from the first on, and from a place that every block moves on: those that come again and
    again must not hide the others.
    """
    for (digest,), listed in islice(TO_ERASE.scan_stored(store), most):
        yield digest, listed
    for key, value in islice(store.scan(TO_ERASE.places() + bytes([height % 256])), most):
        (digest,) = TO_ERASE.unpack(key.removeprefix(layout.INDICES))
        yield digest, TO_ERASE.decode(value)


def erase(application: Application, store: KeyValue, height: int, limit: int) -> Erasure:
    """Up to `limit` batches, and the lists without them; `height` is that of the state in the store."""
    batches: list[bytes] = []
    writes: list[tuple[bytes, bytes | None]] = []
    for digest, listed in _listed(store, height, 8 * limit):
        if listed + GRACE <= height and len(batches) < limit and digest not in batches:
            batches.append(digest)
            writes.append((TO_ERASE.place(digest), None))
    for module in application.modules:
        if module.erase is not None and len(batches) < limit:
            more = module.erase(store, height, limit - len(batches))
            batches += more.batches
            writes += more.writes
    return Erasure(tuple(batches), tuple(writes))
