"""Batches that take more than their sender's share of a block: one in a block, and no oftener than that share allows."""

from __future__ import annotations

from collections.abc import Iterable

from parley.application.block import BlockContext
from parley.application.bounds import Bound
from parley.application.tables import TEXT, Table

NUMBERING = ""  # the entry of numbering; strangers, who have no organisation either, never exceed
_NEVER = 2**64 - 1

EXCEEDED: Table[int, str] = Table(
    "exceeded",
    int,
    TEXT,
    about="The height from which on a batch of an organisation may again take more than its share; without a name: of what is numbered.",
    bound=Bound(
        "one for each organisation, and one for numbering",
        lambda extent: len(extent.genesis.organisations) + 1,
    ),
)


def allowed_from(block: BlockContext, organisations: Iterable[str]) -> dict[str, int]:
    """The height from which on a batch of each may take more than its share; never, for clients that have none."""
    names = dict.fromkeys(organisations)
    return {name: EXCEEDED.count(block.state, name) if name else _NEVER for name in names}


def numbering_may(block: BlockContext) -> bool:
    return EXCEEDED.count(block.state, NUMBERING) <= block.height


def note(block: BlockContext, organisation: str, work: int, share: int) -> None:
    """A batch has taken so much: the next one waits for as many blocks as give the organisation so much.

    `share`: its part of a block in which all organisations are busy, however many are, or one could exceed in every block.
    """
    EXCEEDED.put(block.state, organisation, record=block.height + -(-work // max(share, 1)))
