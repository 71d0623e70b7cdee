"""How much of a kind may be held: by the network, of that an equal share by each organisation, and by each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parley.application.block import BlockContext
from parley.application.bounds import PER_ORGANISATION, PER_PRINCIPAL
from parley.application.state import State
from parley.application.tables import KEY, TEXT, Table
from parley.model.principals import Principal
from parley.model.refusals import Field, LimitExceeded, Refused

RESERVED = 16  # one part in so many of an organisation's share is for its administrators

COUNTS: Table[int, str, str] = Table(
    "count",
    int,
    TEXT,
    TEXT,
    about="How much of a kind an organisation holds; without a name: the network.",
    bound=PER_ORGANISATION,
)
HELD: Table[int, str, bytes] = Table(
    "held",
    int,
    TEXT,
    KEY,
    about="How much of a kind a client or an administrator holds.",
    bound=PER_PRINCIPAL,
)


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on one kind of thing. `what` names its counters; refusals' reasons begin with `reason`, by default the same.

    `refusal` is raised when there is no room.
    """

    what: str
    reason: str = ""
    refusal: type[Refused] = LimitExceeded

    def fits(self, block: BlockContext, organisation: str, limit: int, more: int = 1) -> bool:
        """Whether so much more may be held."""
        held = COUNTS.count(block.state, self.what, organisation), COUNTS.count(block.state, self.what, "")
        return held[0] + more <= _share(block, limit) and held[1] + more <= limit

    def require(
        self, block: BlockContext, organisation: str, limit: int, more: int = 1, **fields: Field
    ) -> None:
        """Raises `refusal` unless so much more may be held; `fields` are added for its text."""
        share = _share(block, limit)
        if COUNTS.count(block.state, self.what, organisation) + more > share:
            raise self.refusal(self._reason("organisation"), organisation=organisation, limit=share, **fields)
        if COUNTS.count(block.state, self.what, "") + more > limit:
            raise self.refusal(self._reason("network"), limit=limit, **fields)

    def require_of_key(
        self, block: BlockContext, organisation: str, by: Principal, limit: int, **fields: Field
    ) -> None:
        """As `require` for one more; and the key may hold no more than it leaves free of its organisation's share.

        So a client that takes all it can get leaves half to its colleagues. What is reserved for administrators is left
        even if many do so: it takes an administrator to revoke them.
        """
        self.require(block, organisation, limit, 1, **fields)
        share = _share(block, limit)
        open_to_all = share if by.administers is not None else share - share // RESERVED
        free = max(0, open_to_all - COUNTS.count(block.state, self.what, organisation))
        held = HELD.count(block.state, self.what, by.key)
        if held >= free:
            raise self.refusal(self._reason("key"), organisation=organisation, held=held, free=free, **fields)

    def add(self, state: State, organisation: str, by: int = 1) -> None:
        COUNTS.add(state, self.what, "", by=by)
        COUNTS.add(state, self.what, organisation, by=by)

    def add_of_key(self, state: State, organisation: str, key: bytes, by: int = 1) -> None:
        self.add(state, organisation, by)
        HELD.add(state, self.what, key, by=by)

    def _reason(self, whose: Literal["organisation", "key", "network"]) -> str:
        return f"{self.reason or self.what}_of_{whose}"


def _share(block: BlockContext, limit: int) -> int:
    """The share of each organisation, rounded up."""
    return -(-limit // len(block.genesis.organisations))
