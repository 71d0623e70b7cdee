"""Whose turn it is: the order in which waiting batches are proposed, and how those that were ordered in vain wait on (P4).

A batch that the block had no room for keeps its place, because its turn comes by itself. If one was ordered before
another that it needs, its session is held from there on, longer each time, and then goes on in order. Neither is repeated
for ever: after some blocks in vain it is given up. That decides nothing, because its client has the bytes and may send
them again (P3).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from parley.consensus.types import MAX_BATCHES
from parley.mempool.queues import ALL, Begun, Place, Queue, Session, in_turn

# Heights for which a session is held after one of its batches was ordered too early, doubled each time for that batch.
FIRST_HOLD = 2
MAX_EARLY = 6  # times that a batch may be ordered too early, unless its client sends it again
# Heights between two attempts of an author whose batches find no room: others must not overtake it.
LONGEST_PAUSE = 4
MAX_IN_VAIN = 64  # such attempts in a row, which take some 250 heights
FEWEST = 2  # batches that were put off and are tried at a time: the next one, and one to see whether there is more room

_Batch = tuple[Queue, Session, Place]


@dataclass(slots=True)
class _Attempt:
    """What one block did with the batches of one queue."""

    settled: int = 0
    put_off: int = 0
    again: int = 0  # of those put off, that were put off before
    moved: bool = False  # whether one that was put off before is settled now


class Turns:
    """The waiting batches by entry broker and author. Holds and pauses end by height; what is held is not pending work."""

    def __init__(self, size: int) -> None:
        self._batches: dict[bytes, _Batch] = {}
        self._queues: dict[tuple[int, bytes], Queue] = {}
        self._sessions: dict[tuple[bytes, bytes], Session] = {}
        # Those with something to propose, by entry broker: the author that was served least lately first.
        self._ready: list[OrderedDict[bytes, Queue]] = [OrderedDict() for _ in range(size)]
        self._early: dict[bytes, int] = {}  # how often a batch was ordered too early
        self._due: defaultdict[int, list[Session]] = defaultdict(list)  # by height, held sessions
        self._resume: defaultdict[int, list[Queue]] = defaultdict(list)  # by height, queues that pause
        self._height = 0
        self._turn = 0
        self._arrivals = 0

    def waiting_of(self, entry: int, author: bytes) -> int:
        """How many batches of this author wait that came through this entry broker."""
        queue = self._queues.get((entry, author))
        return 0 if queue is None else queue.size

    def add(
        self,
        digest: bytes,
        entry: int,
        author: bytes,
        session: bytes = b"",
        span: tuple[int, int] = (0, 0),
    ) -> None:
        """A batch that has not been ordered yet. Without a session it follows no other.

        `span`: its sequence, and that of the batch after it.
        """
        queue = self._queues.get((entry, author))
        if queue is None:
            queue = self._queues[entry, author] = Queue(entry, author)
        key = session or digest
        found = self._sessions.get((author, key))
        if found is None:
            found = self._sessions[author, key] = Session(author, key)
        queue.size += 1
        found.size += 1
        self._arrivals += 1
        place = span[0], self._arrivals, digest, span[1]
        self._batches[digest] = queue, found, place
        found.put(place, queue)
        if key not in queue.open:
            self._show(found)

    def remove(self, digest: bytes) -> None:
        """It waits no longer."""
        batch = self._batches.pop(digest)
        queue, session, _ = batch
        self._early.pop(digest, None)
        self._take_out(batch)
        session.size -= 1
        if not session.size:
            del self._sessions[session.author, session.key]
        queue.size -= 1
        if not queue.size:
            del self._queues[queue.entry, queue.author]

    def hasten(self, digest: bytes) -> None:
        """The client of a batch that waits has sent it again: it is there, and says that it is time."""
        batch = self._batches.get(digest)
        if batch is None:
            return
        queue, session, _ = batch
        if digest in queue.put_off:
            # Younger ones that passed it because it was tried in vain still may.
            queue.until, queue.in_vain = 0, min(queue.in_vain, 1)
            self._place(queue, first=True)
        else:
            self._early.pop(digest, None)
            self._release(session)

    def offer(self, exclude: Collection[bytes]) -> Iterator[bytes]:
        """What may be proposed: of each entry broker in turn, there of each author in turn, there of each session in turn."""
        self._turn = (self._turn + 1) % len(self._ready)
        begun: Begun = {}
        shares = [self._offer_of(ready, exclude, begun) for ready in self._ready]
        return in_turn(iter(shares[self._turn :] + shares[: self._turn]))

    def first(self, exclude: Collection[bytes]) -> bytes | None:
        """One of those that may be proposed and were not ordered in vain before, if there are any. Takes no turn.

        Those that were may be held at other brokers, so that their leader does not owe a proposal of them.
        """
        begun: Begun = {}
        for digest in chain.from_iterable(self._offer_of(ready, exclude, begun) for ready in self._ready):
            queue, session, _ = self._batches[digest]
            if not session.in_vain and digest not in queue.put_off:
                return digest
        return None

    def executed(
        self, ordered: Iterable[bytes], settled: Collection[bytes], put_off: Collection[bytes], height: int
    ) -> list[bytes]:
        """A block was executed. Of what is not settled, `put_off` found no room, and the rest came too early.

        Returns what waits no longer: the settled batches, and those that are given up.
        """
        self._height = height
        self._end_holds()
        attempts: defaultdict[Queue, _Attempt] = defaultdict(_Attempt)
        known = dict.fromkeys(digest for digest in ordered if digest in self._batches)
        gone = [digest for digest in known if digest in settled]
        for digest in gone:
            self._settle(digest, attempts)
        for digest in known:
            if digest in settled:
                continue
            if digest in put_off:
                self._put_off(digest, attempts)
            elif not self._hold(digest):
                self.remove(digest)
                gone.append(digest)
        for queue, attempt in attempts.items():
            gone += self._judge(queue, attempt)
        return gone

    # -- proposing -------------------------------------------------------------------------------------------------------

    def _offer_of(
        self, ready: OrderedDict[bytes, Queue], exclude: Collection[bytes], begun: Begun
    ) -> Iterator[bytes]:
        # Lazily: of those who wait, only as many are looked at as a block takes.
        return in_turn(queue.offer(exclude, self._height, begun) for queue in ready.values())

    def _show(self, session: Session) -> None:
        """Let the session take part in its queues if it has something to propose."""
        is_open = session.is_open
        for queue in session.queues:
            if not is_open:
                queue.open.pop(session.key, None)
            else:
                queue.open.setdefault(session.key, session)
            self._place(queue)

    def _place(self, queue: Queue, *, first: bool = False) -> None:
        """Let the queue take part if it has something to propose. `first`: it has waited for longer than the others."""
        ready = self._ready[queue.entry]
        if not queue.is_ready(self._height):
            ready.pop(queue.author, None)
        elif queue.author not in ready:
            ready[queue.author] = queue
            if first:
                ready.move_to_end(queue.author, last=False)

    def _take_out(self, batch: _Batch) -> None:
        queue, session, place = batch
        if place[2] in queue.put_off:
            del queue.put_off[place[2]]
            self._place(queue)
            return
        session.take(place, queue)
        if queue not in session.queues:
            queue.open.pop(session.key, None)
            self._place(queue)
        if session.limit != ALL:  # what is left may be held
            self._show(session)

    # -- after a block ---------------------------------------------------------------------------------------------------

    def _settle(self, digest: bytes, attempts: defaultdict[Queue, _Attempt]) -> None:
        queue, session, place = self._batches[digest]
        attempt = attempts[queue]
        attempt.settled += 1
        attempt.moved |= digest in queue.put_off
        session.advance(place[3])
        self.remove(digest)
        if session.limit != ALL:  # what was held may be in order
            self._show(session)
        # Both were served.
        if queue.open.pop(session.key, None) is not None:
            queue.open[session.key] = session
        ready = self._ready[queue.entry]
        if queue.author in ready:
            ready.move_to_end(queue.author)

    def _put_off(self, digest: bytes, attempts: defaultdict[Queue, _Attempt]) -> None:
        batch = self._batches[digest]
        queue = batch[0]
        attempt = attempts[queue]
        attempt.put_off += 1
        if digest in queue.put_off:  # and stays where it is
            attempt.again += 1
            return
        self._take_out(batch)
        queue.put_off[digest] = None

    def _hold(self, digest: bytes) -> bool:
        """Whether its session is held; if not, it was ordered too early as often as may be."""
        queue, session, place = self._batches[digest]
        times = self._early[digest] = self._early.get(digest, 0) + 1
        if times >= MAX_EARLY:
            return False
        if digest in queue.put_off:
            del queue.put_off[digest]
            self._place(queue)
            session.put(place, queue)
        until = self._height + (FIRST_HOLD << (times - 1))
        if session.hold(place[0], until):
            self._due[until].append(session)
        self._show(session)
        return True

    def _release(self, session: Session) -> None:
        session.release()
        self._show(session)

    def _judge(self, queue: Queue, attempt: _Attempt) -> list[bytes]:
        """How many of those put off are tried next, and when; all of them, if that was in vain too often."""
        if attempt.moved or attempt.put_off - attempt.again == len(queue.put_off):
            queue.in_vain = 0
        if not attempt.put_off:
            queue.window = min(2 * queue.window, MAX_BATCHES)
            self._place(queue)
            return []
        # As many as found room find it again: the rest would only be repeated.
        queue.window = max(FEWEST, 2 * attempt.settled)
        if attempt.again and not attempt.moved:
            queue.in_vain += 1
            if queue.in_vain >= MAX_IN_VAIN:
                return self._give_up(queue)
        queue.until = self._height + min(1 << queue.in_vain, LONGEST_PAUSE)
        self._resume[queue.until].append(queue)
        self._place(queue)
        return []

    def _give_up(self, queue: Queue) -> list[bytes]:
        queue.in_vain = 0
        gone = list(queue.put_off)
        for digest in gone:
            self.remove(digest)
        return gone

    def _end_holds(self) -> None:
        """Sessions go on with their oldest batch; who was put off goes on before others."""
        for height in sorted(height for height in self._due if height <= self._height):
            for session in self._due.pop(height):
                if session.until == height:
                    self._release(session)
        over = sorted(height for height in self._resume if height <= self._height)
        queues = [queue for height in over for queue in self._resume.pop(height) if queue.size]
        queues.sort(key=lambda queue: queue.in_vain, reverse=True)
        for queue in reversed(queues):  # the last one that is placed comes first: it was put off most often
            self._place(queue, first=True)
