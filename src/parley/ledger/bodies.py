"""Which bodies a broker has to have of an executed block: all but those whose time is over (P5, P21)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from parley.consensus.types import Block
from parley.ledger.application import BodyKeeper
from parley.ledger.steps import at_once
from parley.model.receipts import BatchReceipt
from parley.model.refusals import DUPLICATE, class_of
from parley.store.interface import KeyValue

GRACE = 64  # blocks that a body stays after it is over, and after each block that names it
# Heights for which the body of a refused batch is kept, so that its author can ask why.
REFUSED_KEPT = 100_000
PART = 32  # leaves that are looked at in one step


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the receipts of a block say of the bodies of its batches."""

    kept: tuple[bytes, ...]
    repeated: frozenset[bytes]  # they had their place in an earlier block, or may have had
    # They may have another receipt in a later block: whether they are kept is judged here.
    unfinished: frozenset[bytes]


def judge(
    block: Block, leaves: Sequence[bytes], keeper: BodyKeeper, state: KeyValue, *, highest: int
) -> Generator[int, None, Judgement]:
    """In small steps; after each of them how many leaves it has looked at. `state` is that of the height `highest`.

    A block can finish a batch of an earlier one and hold it again, in vain: one of the two receipts is enough to keep it.
    """
    outdated = highest - block.height > REFUSED_KEPT
    over: set[bytes] = set()
    kept: set[bytes] = set()
    again: set[bytes] = set()
    open_: set[bytes] = set()
    for start in range(0, len(leaves), PART):
        part = leaves[start : start + PART]
        for leaf in part:
            receipt = _receipt(keeper, leaf)
            if receipt is None:
                continue
            gone = (receipt.rejected is not None and outdated) or not keeper.keeps(leaf, state)
            (over if gone else kept).add(receipt.digest)
            if _repeats(receipt):
                again.add(receipt.digest)
            if not receipt.outcome.decides:
                open_.add(receipt.digest)
        yield len(part)
    over -= kept
    found = tuple(digest for digest in block.batches if digest not in over)
    return Judgement(found, frozenset(again), frozenset(open_))


def kept_batches(
    block: Block, leaves: Sequence[bytes], keeper: BodyKeeper, state: KeyValue, *, highest: int
) -> tuple[bytes, ...]:
    return at_once(judge(block, leaves, keeper, state, highest=highest)).kept


def _repeats(receipt: BatchReceipt) -> bool:
    """After long a repeat is too late."""
    if receipt.code == DUPLICATE:
        return True
    kind = class_of(receipt.code)
    # A refusal that decides is the only one of an operation; a batch of messages may have been finished before it.
    return kind.repeats and (bool(receipt.topic) or not kind.final)


def _receipt(keeper: BodyKeeper, leaf: bytes) -> BatchReceipt | None:
    """None also for a leaf that cannot be read: then everything is kept."""
    try:
        return keeper.receipt(leaf)
    except ValueError:
        return None
