"""What waits, in the order in which it may be proposed: an author's queue at an entry broker, and the sessions in it (P3, P4).

A session's batches come through several entry brokers, in any order. Which one is next, only the application knows. The
pool knows which of them follow each other, and what a block has shown to be too early.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from parley.consensus.types import MAX_BATCHES

ALL = 1 << 65  # above every sequence

Place = tuple[int, int, bytes, int]  # sequence, number of arrival, digest, and the sequence that follows


class Session:
    """One author's batches in one producer sequence, through all entry brokers."""

    __slots__ = ("author", "in_vain", "key", "limit", "places", "queues", "reach", "size", "until")

    def __init__(self, author: bytes, key: bytes) -> None:
        self.author = author
        self.key = key
        self.size = 0  # batches that wait, those put off included
        self.places: list[Place] = []  # of those that are not put off, in order
        self.queues: dict[Queue, int] = {}  # how many of these came through each
        # Every sequence from that of a settled batch, or 0, up to here is settled or waits: these are in order.
        self.reach = 0
        self.limit = ALL  # what is not in order is held from here on, because it was ordered too early
        self.until = 0  # the height at which the hold ends
        self.in_vain = False  # whether the last that was ordered of it came too early

    @property
    def is_open(self) -> bool:
        """Whether there is anything to propose."""
        return bool(self.places) and self.places[0][0] < max(self.limit, self.reach)

    def offer(self, exclude: Collection[bytes] = ()) -> Iterator[bytes]:
        """What may be proposed, in order."""
        bound = max(self.limit, self.reach)
        for place in self.places:
            if place[0] >= bound:
                return
            if place[2] not in exclude:
                yield place[2]

    def put(self, place: Place, queue: Queue) -> None:
        self.queues[queue] = self.queues.get(queue, 0) + 1
        places, is_next = self.places, place[0] <= self.reach <= place[3]
        if places and place < places[-1]:
            insort(places, place)
            if is_next:
                self.advance(place[3])
        else:  # as most come
            places.append(place)
            if is_next:
                self.reach = place[3]

    def take(self, place: Place, queue: Queue) -> None:
        places = self.places
        del places[0 if places[0] is place else bisect_left(places, place)]
        left = self.queues[queue] - 1
        if left:
            self.queues[queue] = left
        else:
            del self.queues[queue]

    def advance(self, following: int) -> None:
        """Everything before `following` is settled or waits, and so is what follows without a gap."""
        self.in_vain = False
        if following < self.reach:
            return
        self.reach = following
        places = self.places
        if not places or places[-1][0] < following:
            return
        for index in range(bisect_left(places, (following,)), len(places)):
            if places[index][0] > self.reach:
                break
            self.reach = max(self.reach, places[index][3])

    def hold(self, sequence: int, until: int) -> bool:
        """The batch of this sequence, which waits, was ordered too early. Whether the hold ends later than it did."""
        self.in_vain = True
        self.limit = min(self.limit, sequence)
        if self.places[0][0] >= sequence:
            # Nothing is known to come before it: something that did is put off, did not count, or is no longer here.
            self.reach = min(self.reach, sequence)
        longer = until > self.until
        self.until = max(self.until, until)
        return longer

    def release(self) -> None:
        self.limit, self.until = ALL, 0


Begun = dict[Session, Iterator[bytes]]  # while a block is filled: sessions through several entry brokers


@dataclass(eq=False, slots=True)
class Queue:
    """One author's turn among those of one entry broker."""

    entry: int
    author: bytes
    size: int = 0  # batches that came through this broker
    # Those with batches of this queue and something to propose: the session that was served least lately first.
    open: dict[bytes, Session] = field(default_factory=dict)
    put_off: dict[bytes, None] = field(default_factory=dict)
    window: int = MAX_BATCHES  # how many of those put off may be on their way at a time
    until: int = 0  # the height before which none of them is
    in_vain: int = 0  # attempts in a row after which none of them was settled

    @property
    def keeps_order(self) -> bool:
        """While there is room for one after the other, the younger batches wait behind those that were put off."""
        return bool(self.put_off) and not self.in_vain

    def is_ready(self, height: int) -> bool:
        return (bool(self.put_off) and height >= self.until) or (bool(self.open) and not self.keeps_order)

    def offer(self, exclude: Collection[bytes], height: int, begun: Begun) -> Iterator[bytes]:
        if not self.put_off:
            return self._fresh(exclude, begun)
        # Those on their way count in the window.
        if self.keeps_order:
            digests = islice(chain(self.put_off, self._fresh((), begun)), self.window)
            return (digest for digest in digests if digest not in exclude)
        tried = islice(self.put_off, self.window if height >= self.until else 0)
        return chain((digest for digest in tried if digest not in exclude), self._fresh(exclude, begun))

    def _fresh(self, exclude: Collection[bytes], begun: Begun) -> Iterator[bytes]:
        if len(self.open) == 1:
            (session,) = self.open.values()
            return self._of(session, exclude, begun)
        return in_turn(self._of(session, exclude, begun) for session in self.open.values())

    def _of(self, session: Session, exclude: Collection[bytes], begun: Begun) -> Iterator[bytes]:
        if len(session.queues) == 1:
            return session.offer(exclude)
        # Its batches came through several brokers. Each turn takes the session's next batch, or those that came through
        # a broker with fewer authors would be ordered before others that they follow.
        if session not in begun:
            begun[session] = session.offer()
        digests = islice(begun[session], session.queues[self])
        return (digest for digest in digests if digest not in exclude)


def in_turn(queues: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
    """The first of each, then the second of each, and so on."""
    begun: deque[Iterator[bytes]] = deque()
    for queue in queues:
        if (digest := next(queue, None)) is not None:
            begun.append(queue)
            yield digest
    while begun:
        if (digest := next(begun[0], None)) is None:
            begun.popleft()
        else:
            yield digest
            begun.rotate(-1)
