"""What the rest of the node hears from the replica: receipts, certified headers, and who waits for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from parley.ledger.application import Receipt
from parley.ledger.proofs import Anchor
from parley.model.names import Position


@dataclass(frozen=True, eq=False, slots=True)
class Ticket:
    """One wait for the receipt of one batch; `ready` is called with its place once that is certified."""

    digest: bytes
    ready: Callable[[Position], None]


class Waiting:
    """From submission over application to certification. Whoever waits bounds how many tickets it holds."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, set[Ticket]] = {}
        self._placed: dict[int, dict[bytes, int]] = defaultdict(dict)  # by height, not certified yet

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def wait(self, ticket: Ticket, place: Position | None = None) -> None:
        """For the next receipt of the batch, or for the one at `place`, which is not certified yet."""
        self._waiting.setdefault(ticket.digest, set()).add(ticket)
        if place is not None:
            self._placed[place[0]][ticket.digest] = place[1]

    def forget(self, ticket: Ticket) -> None:
        tickets = self._waiting.get(ticket.digest, set())
        tickets.discard(ticket)
        if not tickets:
            self._waiting.pop(ticket.digest, None)
            for height in [
                at for at, placed in self._placed.items() if placed.pop(ticket.digest, None) is not None
            ]:
                if not self._placed[height]:
                    del self._placed[height]

    def applied(self, height: int, receipts: Iterable[Receipt]) -> None:
        if placed := {one.batch: one.position for one in receipts if one.batch in self._waiting}:
            self._placed[height].update(placed)

    def certified(self, height: int) -> None:
        for covered in sorted(at for at in self._placed if at <= height):
            for digest, position in self._placed.pop(covered).items():
                for ticket in self._waiting.pop(digest, ()):
                    ticket.ready((covered, position))


class Feed:
    """The newest certified header whose results this broker has, and everybody who wants to know when it changes."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        self.anchor: Anchor | None = None
        self.executed = 0  # the height of the last block that was executed since this start
        self._watchers: dict[object, Callable[[], None]] = {}

    @property
    def height(self) -> int:
        """Up to which results are certified; 0: nothing is yet."""
        return 0 if self.anchor is None else self.anchor.header.executed_height

    def watch(self, who: object, wake: Callable[[], None]) -> None:
        self._watchers[who] = wake

    def unwatch(self, who: object) -> None:
        self._watchers.pop(who, None)

    def applied(self, height: int, receipts: Iterable[Receipt]) -> None:
        self.executed = height
        self.waiting.applied(height, receipts)

    def certified(self, anchor: Anchor) -> None:
        # A later header on another branch may name an earlier height; what was shown once stays shown.
        if anchor.header.executed_height < self.height:
            return
        self.anchor = anchor
        self.waiting.certified(anchor.header.executed_height)
        for wake in list(self._watchers.values()):
            wake()

    def silence(self) -> None:
        """The replica has halted: what it holds may be wrong, so nothing more is shown."""
        self.anchor = None
