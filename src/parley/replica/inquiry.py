"""Asking the other members for what is missing here: one question at a time, of one member at a time, until one is right."""

from __future__ import annotations

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Send
from parley.replica.records import Gathering
from parley.sync.messages import ValuesRequest

PATIENCE = 1_000  # ms in which a member has to answer, and between two times that all were asked in vain
TURN = 10_000  # ms after which it is another member's turn: one that sends record by record must not set the pace

About = Gathering | tuple[bytes, ...]  # records, or entries of the state by their keys


class Inquiry:
    """`circles`: how often all members were asked for entries of the state in vain since the last right answer."""

    def __init__(self, index: int, size: int) -> None:
        self._index = index
        self._size = size
        self._about: About | None = None
        self._member = index  # the one asked last
        self._asked = 0  # members, with this question
        self._since = 0
        self._began = 0  # when this member's turn did
        self._rests_until = 0
        self.is_doubtful = False  # the last answer: it came, and was not found right so far
        self._heard = False  # somebody answered, rightly or not: silence says nothing about what others have
        self.circles = 0

    def can_ask(self, now: int) -> bool:
        return self._about is None and self._size > 1 and now >= self._rests_until

    def ask(self, about: About, now: int) -> list[Send]:
        self._about, self._asked, self._heard = about, 0, False
        return self.ask_next(now)

    def is_late(self, now: int) -> bool:
        return self._about is not None and now - self._since >= PATIENCE

    def ask_next(self, now: int) -> list[Send]:
        """The same question to the next member; after all of them, a pause."""
        assert self._about is not None, "there is a question"
        self.is_doubtful = False
        if self._asked == self._size - 1:
            if self._heard and not isinstance(self._about, Gathering):
                self.circles += 1
            self._about, self._rests_until = None, now + PATIENCE
            return []
        if isinstance(self._about, Gathering):
            self._about = self._about.again()
        self._asked += 1
        self._since = self._began = now
        self._member = (self._member + 1) % self._size
        if self._member == self._index:
            self._member = (self._member + 1) % self._size
        return [self._question(self._about)]

    def answered(self, sender: int) -> About:
        """What the answer is about. Raises `Refused` if this member was not asked."""
        if self._about is None or sender != self._member:
            raise Refused(Reason.UNSOLICITED, f"an answer from member {sender}")
        self.is_doubtful = self._heard = True
        return self._about

    def right(self, now: int) -> list[Send]:
        """The answer was right; the rest of it is to come, or that was all for now."""
        about, self.is_doubtful, self.circles = self._about, False, 0
        has_turn = now - self._began < TURN
        if isinstance(about, Gathering) and not about.is_done and (has_turn or about.is_in_parts):
            self._since = now
            return [self._question(about)]
        self._about = None
        return []

    def _question(self, about: About) -> Send:
        return Send(self._member, about.question() if isinstance(about, Gathering) else ValuesRequest(about))
