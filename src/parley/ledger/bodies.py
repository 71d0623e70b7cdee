"""Which bodies a broker has to have of an executed block: all but those whose time is over (P5, P21)."""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.types import Block
from parley.ledger.application import BodyKeeper, KeyValue
from parley.model.receipts import BatchReceipt
from parley.model.refusals import DUPLICATE, class_of

GRACE = 64  # blocks that a body stays after it is over, and after each block that names it
REFUSED_KEPT = (
    100_000  # heights for which the body of a refused batch is kept, so that its author can ask why
)


def kept_batches(
    block: Block, leaves: Sequence[bytes], keeper: BodyKeeper, state: KeyValue, *, highest: int
) -> tuple[bytes, ...]:
    """`state` is that of the height `highest`.

    A block can finish a batch of an earlier one and hold it again, in vain: one of the two receipts is enough to keep it.
    """
    outdated = highest - block.height > REFUSED_KEPT
    over: set[bytes] = set()
    kept: set[bytes] = set()
    for leaf in leaves:
        receipt = _receipt(keeper, leaf)
        if receipt is None:
            continue
        gone = (receipt.rejected is not None and outdated) or not keeper.keeps(leaf, state)
        (over if gone else kept).add(receipt.digest)
    return tuple(digest for digest in block.batches if digest not in over or digest in kept)


def repeated(leaves: Sequence[bytes], keeper: BodyKeeper) -> frozenset[bytes]:
    """The batches of a block that had their place in an earlier one, or may have had: after long a repeat is too late."""
    receipts = filter(None, (_receipt(keeper, leaf) for leaf in leaves))
    return frozenset(receipt.digest for receipt in receipts if _repeats(receipt))


def _repeats(receipt: BatchReceipt) -> bool:
    if receipt.code == DUPLICATE:
        return True
    kind = class_of(receipt.code)
    # A refusal that decides is the only one of an operation; a batch of messages may have been finished before it.
    return kind.repeats and (bool(receipt.topic) or not kind.final)


def unfinished(leaves: Sequence[bytes], keeper: BodyKeeper) -> frozenset[bytes]:
    """The batches that may have another receipt in a later block: whether their bodies are kept is judged here."""
    receipts = filter(None, (_receipt(keeper, leaf) for leaf in leaves))
    return frozenset(receipt.digest for receipt in receipts if not receipt.outcome.decides)


def _receipt(keeper: BodyKeeper, leaf: bytes) -> BatchReceipt | None:
    """None also for a leaf that cannot be read: then everything is kept."""
    try:
        return keeper.receipt(leaf)
    except ValueError:
        return None
