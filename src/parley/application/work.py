"""What one block may do: a budget of work, shared by organisations, then by their clients.

All replicas must have applied a block before they can vote on. The unit is one entry of the state that is written, with
its part of the root: about 30 microseconds. What takes time without writing is counted at the same rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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

    What housekeeping does is missing for batches, which have at least half. One batch may take all that batches have.
    """

    batches: int = 2_048
    housekeeping: int = 1_024

    def left(self, housekeeping: int) -> int:
        """What there is for batches, by what housekeeping has left."""
        return self.batches - (self.housekeeping - housekeeping)


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

    The first batch that asks for anything always fits, whatever others leave: so nothing waits for ever.
    """

    def __init__(self, work: int, senders: Iterable[Sender]) -> None:
        every = dict.fromkeys(senders)
        clients = Counter(organisation for organisation, _ in every)
        share = work // max(len(clients), 1)
        self._organisations = dict.fromkeys(clients, share)
        self._clients = {sender: share // clients[sender[0]] for sender in every}
        self.left = work
        self._sender: Sender = ("", b"")
        self._pass = Pass.CLIENT
        self._nobody_asked = self._is_first = True
        self._given = 0  # to the batch whose turn it is

    def turn(self, sender: Sender, number: Pass, least: int = 0) -> None:
        """A batch of this sender is to be executed, and what is spent from now on is for it. It counts for `BATCH` by itself.

        Raises `NoRoom` if there is no room for the least that it takes.
        """
        self._sender, self._pass = sender, number
        self._is_first = self._nobody_asked
        self._given = 0
        if number is Pass.CLIENT:
            self._charge(BATCH)
        if least and least > self.room:
            raise NoRoom(least)

    def spend(self, work: int, *, done: bool = False) -> None:
        """Take work for the batch, before anything is written. Raises `NoRoom` if there is no room for so much.

        What the batch was given before is given back then, unless it is `done` in any case, such as reading.
        """
        if not work:
            return
        if not self._is_first and work > self.room:
            self._charge(-self._given)
            raise NoRoom(self._given + work)
        self._nobody_asked = False
        self._charge(work)
        self._given += 0 if done else work

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
