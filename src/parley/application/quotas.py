"""How much of a kind may be held: by the network, of that an equal share by each organisation, and by each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.application.block import BlockContext
from parley.application.state import State
from parley.application.tables import KEY, TEXT, Table
from parley.model.refusals import Field, LimitExceeded

COUNTS: Table[int, str, str] = Table(
    "count", int, TEXT, TEXT, about="How much of a kind an organisation holds; without a name: the network."
)
HELD: Table[int, str, bytes] = Table("held", int, TEXT, KEY, about="How much of a kind a client holds.")


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on one kind of thing. `what` names its counters; refusals' reasons begin with `reason`, by default the same."""

    what: str
    reason: str = ""

    def fits(self, block: BlockContext, organisation: str, limit: int, more: int = 1) -> bool:
        """Whether so much more may be held."""
        held = COUNTS.count(block.state, self.what, organisation), COUNTS.count(block.state, self.what, "")
        return held[0] + more <= _share(block, limit) and held[1] + more <= limit

    def require(
        self, block: BlockContext, organisation: str, limit: int, more: int = 1, **fields: Field
    ) -> None:
        """Raises `LimitExceeded` unless so much more may be held; `fields` are added for its text."""
        share = _share(block, limit)
        if COUNTS.count(block.state, self.what, organisation) + more > share:
            raise LimitExceeded(
                self._reason("organisation"), organisation=organisation, limit=share, **fields
            )
        if COUNTS.count(block.state, self.what, "") + more > limit:
            raise LimitExceeded(self._reason("network"), limit=limit, **fields)

    def add(self, state: State, organisation: str, by: int = 1) -> None:
        COUNTS.add(state, self.what, "", by=by)
        COUNTS.add(state, self.what, organisation, by=by)

    def _reason(self, whose: Literal["organisation", "network"]) -> str:
        return f"{self.reason or self.what}_of_{whose}"


def _share(block: BlockContext, limit: int) -> int:
    """The share of each organisation, rounded up."""
    return -(-limit // len(block.genesis.organisations))
