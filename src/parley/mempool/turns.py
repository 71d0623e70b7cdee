"""Whose turn it is: the order in which waiting batches are proposed, and how those that were ordered in vain wait on (P4).

A batch that the block had no room for keeps its place, because its turn comes by itself. One that needs another batch
first waits longer each time. Neither is repeated for ever: after some blocks in vain it is given up. That decides
nothing, because its client has the bytes and may send them again (P3).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from parley.consensus.types import MAX_BATCHES

# Heights for which a batch that was ordered too early is not proposed again, doubled each time.
FIRST_HOLD = 2
# Times that a batch may be ordered too early, besides once in each hold after its author went on.
MAX_EARLY = 6
# Heights between two attempts of an author whose batches find no room: others must not overtake it.
LONGEST_PAUSE = 4
MAX_IN_VAIN = 64  # such attempts in a row, which take some 250 heights
FEWEST = 2  # batches that were put off and are tried at a time: the next one, and one to see whether there is more room


@dataclass(eq=False, slots=True)
class _Queue:
    """One author's batches through one entry broker. Those in neither part are held: they were ordered too early."""

    entry: int
    author: bytes
    size: int = 0  # held ones included
    fresh: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    put_off: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    window: int = MAX_BATCHES  # how many of those put off may be on their way at a time
    until: int = 0  # the height before which none of them is
    in_vain: int = 0  # attempts in a row after which none of them was settled

    @property
    def keeps_order(self) -> bool:
        """While there is room for one after the other, the younger batches wait behind those that were put off."""
        return bool(self.put_off) and not self.in_vain

    def is_ready(self, height: int) -> bool:
        return (bool(self.put_off) and height >= self.until) or (bool(self.fresh) and not self.keeps_order)

    def offer(self, exclude: Collection[bytes], height: int) -> Iterator[bytes]:
        if self.keeps_order:
            digests: Iterator[bytes] = islice(chain(self.put_off, self.fresh), self.window)
        else:
            digests = chain(islice(self.put_off, self.window if height >= self.until else 0), self.fresh)
        return (digest for digest in digests if digest not in exclude)

    def take_out(self, digest: bytes) -> None:
        self.fresh.pop(digest, None)
        self.put_off.pop(digest, None)


@dataclass(slots=True)
class _Hold:
    """Of a batch that was ordered too early."""

    until: int  # the height before which it is not proposed again
    times: int
    released: bool = False  # it was proposed sooner, because its author went on


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
        self._queues: dict[tuple[int, bytes], _Queue] = {}
        self._queue_of: dict[bytes, _Queue] = {}
        # Those with something to propose, by entry broker: the author that was served least lately first.
        self._ready: list[OrderedDict[bytes, _Queue]] = [OrderedDict() for _ in range(size)]
        self._holds: dict[bytes, _Hold] = {}
        self._held: defaultdict[bytes, OrderedDict[bytes, None]] = defaultdict(OrderedDict)  # by author
        self._due: defaultdict[int, list[bytes]] = defaultdict(list)  # by height, held batches
        self._resume: defaultdict[int, list[_Queue]] = defaultdict(list)  # by height, queues that pause
        self._height = 0
        self._turn = 0

    def waiting_of(self, entry: int, author: bytes) -> int:
        """How many batches of this author wait that came through this entry broker."""
        queue = self._queues.get((entry, author))
        return 0 if queue is None else queue.size

    def add(self, digest: bytes, entry: int, author: bytes) -> None:
        """A batch that has not been ordered yet."""
        queue = self._queues.get((entry, author))
        if queue is None:
            queue = self._queues[entry, author] = _Queue(entry, author)
        queue.size += 1
        self._queue_of[digest] = queue
        self._renew(digest, queue)

    def remove(self, digest: bytes) -> None:
        """It waits no longer."""
        queue = self._queue_of.pop(digest)
        self._forget_hold(digest, queue)
        queue.take_out(digest)
        queue.size -= 1
        self._place(queue)
        if not queue.size:
            del self._queues[queue.entry, queue.author]

    def hasten(self, digest: bytes) -> None:
        """The client of a batch that waits has sent it again: it is there, and says that it is time."""
        queue = self._queue_of.get(digest)
        if queue is None:
            return
        if digest in queue.put_off:
            # Younger ones that passed it because it was tried in vain still may.
            queue.until, queue.in_vain = 0, min(queue.in_vain, 1)
            self._place(queue, first=True)
        elif digest in self._holds:
            self._forget_hold(digest, queue)
            self._renew(digest, queue)

    def offer(self, exclude: Collection[bytes]) -> Iterator[bytes]:
        """What may be proposed: of each entry broker in turn, there of each author in turn, each author's oldest first."""
        self._turn = (self._turn + 1) % len(self._ready)
        shares = [self._offer_of(ready, exclude) for ready in self._ready]
        return _in_turn(iter(shares[self._turn :] + shares[: self._turn]))

    def executed(
        self, ordered: Iterable[bytes], settled: Collection[bytes], put_off: Collection[bytes], height: int
    ) -> list[bytes]:
        """A block was executed. Of what is not settled, `put_off` found no room, and the rest came too early.

        Returns what waits no longer: the settled batches, and those that are given up.
        """
        self._height = height
        self._end_holds()
        attempts: defaultdict[_Queue, _Attempt] = defaultdict(_Attempt)
        known = dict.fromkeys(digest for digest in ordered if digest in self._queue_of)
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

    def _offer_of(self, ready: OrderedDict[bytes, _Queue], exclude: Collection[bytes]) -> Iterator[bytes]:
        # Lazily: of those who wait, only as many are looked at as a block takes.
        return _in_turn(queue.offer(exclude, self._height) for queue in ready.values())

    def _renew(self, digest: bytes, queue: _Queue) -> None:
        queue.fresh[digest] = None
        self._place(queue)

    def _place(self, queue: _Queue, *, first: bool = False) -> None:
        """Let the queue take part if it has something to propose. `first`: it has waited for longer than the others."""
        ready = self._ready[queue.entry]
        if not queue.is_ready(self._height):
            ready.pop(queue.author, None)
        elif queue.author not in ready:
            ready[queue.author] = queue
            if first:
                ready.move_to_end(queue.author, last=False)

    # -- after a block ---------------------------------------------------------------------------------------------------

    def _settle(self, digest: bytes, attempts: defaultdict[_Queue, _Attempt]) -> None:
        queue = self._queue_of[digest]
        attempt = attempts[queue]
        attempt.settled += 1
        attempt.moved |= digest in queue.put_off
        self.remove(digest)
        ready = self._ready[queue.entry]
        if queue.author in ready:
            ready.move_to_end(queue.author)  # it was served
        self._release(queue.author)

    def _release(self, author: bytes) -> None:
        """What this author's held batches wait for may be there now. Once in each hold, or one session's batches would be
        repeated with every batch of another.
        """
        for digest in self._held.pop(author, ()):
            self._holds[digest].released = True
            self._renew(digest, self._queue_of[digest])

    def _put_off(self, digest: bytes, attempts: defaultdict[_Queue, _Attempt]) -> None:
        queue = self._queue_of[digest]
        attempt = attempts[queue]
        attempt.put_off += 1
        attempt.again += digest in queue.put_off
        if (hold := self._holds.get(digest)) is not None:
            hold.until = 0  # how often it was too early counts on
            _discard(self._held, queue.author, digest)
        queue.fresh.pop(digest, None)
        queue.put_off.setdefault(digest)  # where it is, if it was put off before

    def _hold(self, digest: bytes) -> bool:
        """Whether it is held; if not, it was ordered too early as often as may be."""
        queue = self._queue_of[digest]
        hold = self._holds.setdefault(digest, _Hold(0, 0))
        if not (hold.released and self._height < hold.until):
            if hold.times + 1 >= MAX_EARLY:
                return False
            self._holds[digest] = hold = _Hold(self._height + (FIRST_HOLD << hold.times), hold.times + 1)
            self._held[queue.author][digest] = None
            self._due[hold.until].append(digest)
        queue.take_out(digest)
        self._place(queue)
        return True

    def _judge(self, queue: _Queue, attempt: _Attempt) -> list[bytes]:
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

    def _give_up(self, queue: _Queue) -> list[bytes]:
        queue.in_vain = 0
        gone = list(queue.put_off)
        for digest in gone:
            self.remove(digest)
        return gone

    def _end_holds(self) -> None:
        """Batches that were too early go on behind the others of their author; who was put off goes on before others."""
        for height in sorted(height for height in self._due if height <= self._height):
            for digest in self._due.pop(height):
                hold = self._holds.get(digest)
                if hold is not None and hold.until == height:
                    queue = self._queue_of[digest]
                    _discard(self._held, queue.author, digest)
                    self._renew(digest, queue)
        over = sorted(height for height in self._resume if height <= self._height)
        queues = [queue for height in over for queue in self._resume.pop(height) if queue.size]
        queues.sort(key=lambda queue: queue.in_vain, reverse=True)
        for queue in reversed(queues):  # the last one that is placed comes first: it was put off most often
            self._place(queue, first=True)

    def _forget_hold(self, digest: bytes, queue: _Queue) -> None:
        if self._holds.pop(digest, None) is not None:
            _discard(self._held, queue.author, digest)


def _in_turn(queues: Iterator[Iterator[bytes]]) -> Iterator[bytes]:
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


def _discard(table: defaultdict[bytes, OrderedDict[bytes, None]], key: bytes, digest: bytes) -> None:
    if key in table:
        table[key].pop(digest, None)
        if not table[key]:
            del table[key]
