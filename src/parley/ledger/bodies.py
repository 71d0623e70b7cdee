"""Which bodies a broker has to have of an executed block: all but those whose time is over (P5, P21)."""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.types import Block
from parley.ledger.application import Application, KeyValue
from parley.model.errors import Code
from parley.model.receipts import BatchReceipt, Staged, decode_leaf

__all__ = ["GRACE", "REFUSED_KEPT", "kept_batches", "repeated", "staged"]

GRACE = 64  # blocks that a body stays after it is over, and after each block that names it
REFUSED_KEPT = (
    100_000  # heights for which the body of a refused batch is kept, so that its author can ask why
)

_HOLDS = frozenset({Code.OK, Code.DUPLICATE})
_REPEATS = frozenset({Code.DUPLICATE, Code.EXPIRED})


def kept_batches(
    block: Block, leaves: Sequence[bytes], application: Application, state: KeyValue, *, highest: int
) -> tuple[bytes, ...]:
    """`state` is that of the height `highest`.

    A block can number a staged batch and hold it again, in vain: one of the two receipts is enough to keep it.
    """
    outdated = highest - block.height > REFUSED_KEPT
    over: set[bytes] = set()
    kept: set[bytes] = set()
    for leaf in leaves:
        receipt = _receipt(leaf)
        if receipt is None:
            continue
        refused = receipt.code not in _HOLDS
        gone = (refused and outdated) or not application.keeps(leaf, state)
        (over if gone else kept).add(receipt.digest)
    return tuple(name for name in block.batches if name not in over or name in kept)


def repeated(leaves: Sequence[bytes]) -> frozenset[bytes]:
    """The batches of a block that had their place in an earlier one, or may have had: after long a repeat is too late.

    And a staged batch comes too late after the commit of its stage.
    """
    receipts = filter(None, map(_receipt, leaves))
    return frozenset(
        receipt.digest
        for receipt in receipts
        if receipt.code in _REPEATS or (receipt.code is Code.STAGE_OVER and receipt.topic)
    )


def staged(leaves: Sequence[bytes]) -> frozenset[bytes]:
    """The batches that a block has staged: whether their bodies are kept is judged there, wherever they are numbered."""
    receipts = filter(None, map(_receipt, leaves))
    return frozenset(receipt.digest for receipt in receipts if isinstance(receipt.outcome, Staged))


def _receipt(leaf: bytes) -> BatchReceipt | None:
    """None also for applications with leaves of another kind, which keep everything."""
    try:
        found = decode_leaf(leaf)
    except ValueError:
        return None
    return found if isinstance(found, BatchReceipt) else None
