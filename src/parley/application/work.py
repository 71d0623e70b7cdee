"""What one block may do: a budget of work, shared by organisations, then by their clients.

All replicas must have applied a block before they can vote on. The unit is one entry of the state that is written, with
its part of the root: about 30 microseconds. What takes time without writing is counted at the same rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum

OPERATION = 4  # of an operation that says nothing else
BATCH = 2  # of any batch: its sequence, and the head of its log
NEW_SEQUENCE = 4  # with the lists that it is on
SEALING = 3  # of a full chunk of a sequence
STRANGER = 2  # of a refusal that is remembered
EXPRESSION = 24  # characters of an expression that are parsed in the time of one unit

Sender = tuple[str, bytes]  # organisation, and key; strangers are an organisation without a name


def of_expression(text: str) -> int:
    """What parsing takes. Replicas remember what they have parsed, but not all of them the same."""
    return len(text) // EXPRESSION


@dataclass(frozen=True, slots=True)
class Budget:
    """What the batches of one block may do, and what may go on in it that was decided in earlier blocks.

    What housekeeping does is missing for batches, which have at least half. One batch may take more than its share of that,
    but not in every block.
    """

    batches: int = 384
    housekeeping: int = 96

    def left(self, housekeeping: int) -> int:
        """What there is for batches, by what housekeeping has left: less than nothing, if it took more."""
        return max(self.batches - (self.housekeeping - housekeeping), self.batches // 2)


class NoRoom(Exception):  # noqa: N818 - it is no error: another pass, or another block, has room
    """There is no room for a batch now: it asked for `work`, and may ask for more."""

    def __init__(self, work: int) -> None:
        super().__init__(work)
        self.work = work


class Pass(IntEnum):
    """A block's batches are gone through in these passes: those that a pass has no room for wait for the next."""

    CLIENT = 0  # each client within its part of its organisation's share
    ORGANISATION = 1  # each organisation within its share
    REST = 2  # what the others have left


class Shares:
    """What is left of a block's budget, and for whom. It follows from the block's batches and the state alone.

    One batch that takes more than its sender's whole share fits in the last pass, however little is left, if its organisation
    may exceed. So nothing waits for ever.
    """

    def __init__(
        self, work: int, senders: Iterable[Sender], may_exceed: Collection[str] = frozenset()
    ) -> None:
        """`may_exceed`: organisations that have paid for their last larger batch."""
        every = dict.fromkeys(senders)
        clients = Counter(organisation for organisation, _ in every)
        share = work // max(len(clients), 1)
        self._organisations = dict.fromkeys(clients, share)
        self._own = {sender: share // clients[sender[0]] for sender in every}
        self._clients = dict(self._own)
        self.left = work
        self._may_exceed = may_exceed
        self._sender: Sender = ("", b"")
        self._pass = Pass.CLIENT
        # Of the batch whose turn it is: what it was given, and what of that is given back if there is no room for the rest.
        self._given = self._refundable = 0
        self._exceeds = False
        # The organisation whose batch took more than its share, and how much that was.
        self.exceeding: tuple[str, int] | None = None

    def turn(self, sender: Sender, number: Pass, least: int = 0) -> None:
        """A batch of this sender is to be executed, and what is spent from now on is for it. It counts for `BATCH` by itself.

        Raises `NoRoom` if there is no room for the least that it takes.
        """
        self._sender, self._pass = sender, number
        self._given = self._refundable = 0
        self._exceeds = least > self.room
        if self._exceeds and not self._may_take(least):
            raise NoRoom(least)
        self._charge(BATCH)

    def spend(self, work: int, *, done: bool = False) -> None:
        """Take work for the batch, before anything is written. Raises `NoRoom` if there is no room for so much.

        What the batch was given before is given back then, unless it is `done` in any case, such as reading.
        """
        if not work:
            return
        if work > self.room and not self._exceeds:
            if not self._may_take(self._given + work):
                self._charge(-self._refundable - BATCH)
                raise NoRoom(self._given + work)
            self._exceeds = True
        self._charge(work)
        self._given += work
        self._refundable += 0 if done else work
        if self._exceeds:
            self.exceeding = self._sender[0], self._given

    def _may_take(self, work: int) -> bool:
        """Whether a batch that takes so much fits although there is less room."""
        if self._pass is not Pass.REST or self.exceeding is not None or work <= self._own[self._sender]:
            return False
        return self._sender[0] in self._may_exceed

    def _charge(self, work: int) -> None:
        self.left -= work
        self._organisations[self._sender[0]] -= work
        self._clients[self._sender] -= work

    @property
    def room(self) -> int:
        """What is left for the batch that is executed."""
        room = self.left
        if self._pass is Pass.CLIENT:
            room = self._clients[self._sender]
        elif self._pass is Pass.ORGANISATION:
            room = self._organisations[self._sender[0]]
        return max(room, 0)
