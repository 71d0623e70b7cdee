"""The places that a block's leaves add to the indices, in whatever order blocks come: a broker may get old ones late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from parley.ledger.application import KeyValue
from parley.ledger.indices import (
    BatchPlace,
    LeafPlace,
    ReceiptPlace,
    decode_place,
    encode_place,
    offset_key,
    order_key,
    receipt_key,
)
from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Code
from parley.model.receipts import BatchReceipt, Closed, Duplicate, Leaf, Match, Published, Staged

__all__ = ["NOT_FINAL", "places", "read_place", "receipt_place"]

T = TypeVar("T", bound=Struct)

# After these a batch may still be applied, when it is ordered again: at a better time, or once its key is registered.
NOT_FINAL = frozenset({Code.OUT_OF_SEQUENCE, Code.EXPIRED, Code.BUSY})


def places(height: int, leaves: Sequence[Leaf], store: KeyValue) -> Iterable[tuple[bytes, bytes]]:
    published = _published(leaves)
    for position, leaf in enumerate(leaves):
        match leaf:
            case BatchReceipt(outcome=Staged()) if leaf.digest in published:
                pass  # its stage was committed in the same block
            case BatchReceipt():
                yield from _of_batch(height, position, leaf, store)
            case Match():
                key = order_key(leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation, leaf.first_ps)
                yield key, encode_place(LeafPlace(height, position))
            case Closed():
                key = order_key(leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation, leaf.final_ps)
                yield key, encode_place(LeafPlace(height, position))


def receipt_place(store: KeyValue, digest: bytes) -> ReceiptPlace | None:
    """Where the batch has the receipt that is to be found."""
    return read_place(ReceiptPlace, store.get(receipt_key(digest)))


def read_place(kind: type[T], value: bytes | None) -> T | None:
    """What cannot be read is as good as missing: all of it can be derived again."""
    try:
        return None if value is None else decode_place(kind, value)
    except DECODE_ERRORS:
        return None


def _of_batch(
    height: int, position: int, receipt: BatchReceipt, store: KeyValue
) -> Iterable[tuple[bytes, bytes]]:
    first_offset = None
    if isinstance(receipt.outcome, Published):
        first_offset = receipt.outcome.first_offset
        key = offset_key(receipt.topic, receipt.partition, first_offset)
        yield key, encode_place(BatchPlace(height, position, receipt.digest, receipt.count))
    staged = isinstance(receipt.outcome, Staged)
    # A duplicate leads to a receipt of its batch, which is better, or repeats the commit of another batch.
    final = receipt.code not in NOT_FINAL and not isinstance(receipt.outcome, Duplicate)
    found = ReceiptPlace(height, position, final, first_offset, staged)
    decided = receipt.code == Code.OK and not staged
    if decided or _replaces(found, receipt_place(store, receipt.digest)):
        yield receipt_key(receipt.digest), encode_place(found)


def _replaces(found: ReceiptPlace, known: ReceiptPlace | None) -> bool:
    """The first final receipt is the one to be found; until there is one, the newest.

    One that stages a batch is better than a refusal, before or after it, and one that numbers it is the best.
    """
    if known is None or _rank(found) != _rank(known):
        return known is None or _rank(found) > _rank(known)
    return found.height < known.height if found.final else found.height > known.height


def _rank(place: ReceiptPlace) -> int:
    if place.first_offset is not None:
        return 3
    return 2 if place.staged else int(place.final)


def _published(leaves: Sequence[Leaf]) -> set[bytes]:
    return {
        leaf.digest
        for leaf in leaves
        if isinstance(leaf, BatchReceipt) and isinstance(leaf.outcome, Published)
    }
