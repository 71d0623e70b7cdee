"""The live order of a subscription: pushed by as many brokers as must agree, each watched, each replaced when it fails.

A broker that shows no fresh proof of completeness for `freshness` is left for another (P7). What was handed out is never
handed out again, whichever broker pushes next.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from parley.client.beliefs import Behind, Stale
from parley.client.brokers import FAILURES
from parley.client.connection import CREDIT, Declined, Stream
from parley.client.denials import Judge
from parley.client.errors import NotFound, NotSubscribed, ParleyError, Pruned, Stalled, Unreachable
from parley.client.messages import Message
from parley.client.quorum import QuorumClient, is_old, pause, swallow_result
from parley.client.verification import Completeness, Order, Place
from parley.ledger.proofs import ProofError
from parley.model.expressions import Constraint
from parley.model.refusals import Refusal
from parley.net.messages import Delivery, Head, OpenStream, StreamPosition
from parley.privacy.codecs import MatchingCodec
from parley.privacy.table import CLEAR

MARGIN = 2.0  # seconds beyond `freshness` that a proof may take to arrive
GRANT = CREDIT // 4  # messages for which credit is given back at once

# What a broker says of an order that has ended or is not kept; subscribing again shows whether that is so.
_ENDS = (NotFound, NotSubscribed, Pruned)

Piece = tuple[Message, ...]


class Over(Exception):  # noqa: N818 - it names the condition
    """An order has ended, or a broker says so (`suspect`): subscribe again to learn where it goes on.

    `pruned`: what comes next in it is said to be not kept any more.
    """

    def __init__(self, suspect: str | None = None, *, pruned: bool = False) -> None:
        super().__init__("the order of the subscription has ended")
        self.suspect = suspect
        self.pruned = pruned


@dataclass(frozen=True)
class Subject:
    """What is followed."""

    quorum: QuorumClient
    topic: str
    constraint: Constraint
    matching: MatchingCodec = CLEAR


class Feed:
    """`places` are where the reader stands; they move on as blocks are taken with `next`."""

    def __init__(self, subject: Subject, places: Iterable[Place]) -> None:
        self._subject = subject
        self.places = {place.partition: place for place in places}
        self._expected = {partition: place.next_ps for partition, place in self.places.items()}
        self._sources: dict[str, _Source] = {}
        self._votes: defaultdict[tuple[int, int], dict[Piece, dict[str, _Source]]] = defaultdict(dict)
        self._ready: deque[tuple[tuple[Message, ...], list[_Source]]] = deque()
        self._failed: dict[str, str] = {}  # brokers that were tried in this round, and why they did not do
        self._stale: dict[str, str] = {}  # those of them that showed nothing fresh
        self._known: dict[str, str] = {}  # the last reason of each broker since something fresh was shown
        self._spoke: dict[str, bool] = {}  # and whether it said anything
        self._denials: defaultdict[str, dict[str, Refusal]] = defaultdict(dict)  # by code and broker
        self.reached = False  # whether any broker was
        self._round = 0
        self._extra = 0
        self._undecided: float | None = None  # since when brokers disagree, or some have not said anything
        self._over: Over | None = None
        self._wake = asyncio.Event()
        self._fresh_at = self._asked_at = asyncio.get_running_loop().time()
        self.floor = subject.quorum.height

    async def next(self) -> list[Message]:
        """What the next blocks added, as many as are here.

        Raises `Over`, `Refused`, and with a timeout `Stalled` or `Unreachable`.
        """
        self._asked_at = asyncio.get_running_loop().time()
        while not self._ready:
            if self._over is not None:
                raise self._over
            self._wake.clear()
            self._bury()
            if self._staffed():
                await self._sleep()
            else:
                await self._rest()
        taken: list[Message] = []
        while self._ready:
            block, sources = self._ready.popleft()
            last = block[-1]
            assert last.ps is not None, "a feed is in the order of ps"
            place = self.places[last.partition]
            self.places[last.partition] = replace(place, next_ps=last.ps + 1, next_offset=last.offset + 1)
            for source in sources:
                source.taken(len(block))
            taken += block
        return taken

    @property
    def brokers(self) -> tuple[str, ...]:
        """Who pushes now."""
        return tuple(self._sources)

    def interrupt(self) -> None:
        """Make the subscription subscribe again."""
        self._over = Over()
        self._wake.set()

    def resume(self, suspect: str | None, lie: str) -> None:
        """The order goes on after all; a broker that says otherwise is avoided."""
        if suspect is not None:
            self._subject.quorum.brokers.distrust(suspect, lie)
            self._failed[suspect] = lie
        self.floor = max(self.floor, self._subject.quorum.height)  # only a newer header may end it now
        self._over = None

    async def close(self) -> None:
        sources = list(self._sources.values())
        self._sources.clear()
        for source in sources:
            source.task.cancel()
        if sources:
            await asyncio.wait([source.task for source in sources])

    # -- what sources tell -------------------------------------------------------------------------------------------

    def offer(self, source: _Source, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            first = piece[0]
            assert first.ps is not None, "a feed is in the order of ps"
            self._vote(source, first.partition, first.ps, piece)

    def show_fresh(self) -> None:
        """Some broker has proved that nothing is missing."""
        self._fresh_at = asyncio.get_running_loop().time()
        self._round = 0
        for name, problem in self._stale.items():
            self._subject.quorum.brokers.doubt(name, f"{problem} (following {self._subject.topic})")
        for told in (self._failed, self._stale, self._known, self._spoke, self._denials):
            told.clear()

    def _vote(self, source: _Source, partition: int, ps: int, piece: Piece) -> None:
        if ps < self._expected[partition]:
            source.taken(len(piece))  # others were faster
            return
        if self._subject.quorum.needed == 1 and ps == self._expected[partition]:
            self._accept(partition, piece, [source])  # its word is enough, and there is nothing to compare
        else:
            # By name: a broker that comes back has one voice all the same.
            self._votes[partition, ps].setdefault(piece, {})[source.name] = source
        while self._decide(partition):
            pass
        clock = asyncio.get_running_loop().time
        self._undecided = (self._undecided or clock()) if self._votes else None
        self._wake.set()

    def _decide(self, partition: int) -> bool:
        """Whether enough brokers agree on what comes next in the partition; only that may come next."""
        ps = self._expected[partition]
        for piece, voters in self._votes.get((partition, ps), {}).items():
            if len(voters) >= self._subject.quorum.needed:
                del self._votes[partition, ps]
                self._accept(partition, piece, list(voters.values()))
                return True
        return False

    def _accept(self, partition: int, piece: Piece, sources: list[_Source]) -> None:
        self._undecided, self._extra = None, 0
        self._expected[partition] += len(piece)
        self._ready.append((piece, sources))
        # Votes for numbers that were given to others: a broker lied about how many come together.
        for key in [one for one in self._votes if one[0] == partition and one[1] < self._expected[partition]]:
            del self._votes[key]

    # -- who pushes --------------------------------------------------------------------------------------------------

    def _staffed(self) -> bool:
        """Start sources until there are enough; whether there are."""
        wanted = self._subject.quorum.needed + self._extra
        for name in self._subject.quorum.candidates():
            if len(self._sources) >= wanted:
                break
            if name not in self._failed and name not in self._sources:
                self._sources[name] = _Source(self, self._subject, name, self._wake.set)
        return len(self._sources) >= self._subject.quorum.needed

    def _bury(self) -> None:
        """Learn from the sources that have ended."""
        for name, source in list(self._sources.items()):
            if source.task.done():
                del self._sources[name]
                self._note(source)

    def _note(self, source: _Source) -> None:
        quorum, name = self._subject.quorum, source.name
        try:
            source.task.result()
        except Over:
            if quorum.reader.level != "certified":
                self._failed[name] = "it says that the subscription has ended"
            raise
        except FAILURES as error:
            self._failed[name] = self._known[name] = quorum.brokers.note(name, error)
            self._spoke[name] = source.spoke or isinstance(error, Declined | ProofError)
            if isinstance(error, Stale):
                quorum.brokers.failed(name)  # it may be cut off: whatever comes next asks others first
                if not isinstance(error, Behind):
                    self._stale[name] = str(error)
            if not isinstance(error, Declined):
                return
            if error.kind in _ENDS:
                raise Over(name, pruned=error.kind is Pruned) from None
            if not error.kind.passing and not is_old(error.refusal, source.floor):
                said = self._denials[error.refusal.code]
                said[name] = error.refusal
                if len(said) >= quorum.enough_to_refuse:
                    raise error.refusal.error() from None

    async def _sleep(self) -> None:
        """Until something happens; if brokers disagree for too long, more of them are asked."""
        quorum, clock = self._subject.quorum, asyncio.get_running_loop().time
        ends = [self._waiting_since + quorum.timeout] if quorum.timeout is not None else []
        if self._undecided is not None:
            ends.append(self._undecided + quorum.timeouts.freshness / 1_000)
        try:
            async with asyncio.timeout_at(min(ends, default=None)):
                await self._wake.wait()
        except TimeoutError:
            if self._undecided is not None:
                self._extra += 1
                self._undecided = clock()
            self._require_time()

    async def _rest(self) -> None:
        """No broker is left in this round: report it, wait a little, begin another."""
        # A certified reader is shown proof of a refusal, or it is one broker's word while the others have a bad moment.
        if self._denials and not self._sources and self._subject.quorum.reader.level != "certified":
            said = max(self._denials.values(), key=len)
            raise next(iter(said.values())).error()
        waited = asyncio.get_running_loop().time() - self._waiting_since
        if waited > self._subject.quorum.timeouts.freshness / 1_000:
            self._subject.quorum.report(self._trouble())
        self._require_time()
        self._round += 1
        self._failed.clear()
        self._stale.clear()  # no broker was any better
        self._denials.clear()  # refusals count within one round only
        await asyncio.sleep(pause(self._round))

    def _require_time(self) -> None:
        """With a timeout, raise what is wrong when the reader waits for so long and nothing fresh is shown."""
        timeout = self._subject.quorum.timeout
        if timeout is not None and asyncio.get_running_loop().time() - self._waiting_since >= timeout:
            raise self._trouble()

    @property
    def _waiting_since(self) -> float:
        return max(self._fresh_at, self._asked_at)

    def _trouble(self) -> ParleyError:
        quorum = self._subject.quorum
        if not self.reached and self._failed:
            return Unreachable(self._failed, quorum.brokers.addresses)
        reasons = {**self._known, **dict.fromkeys(self._sources, "it has shown nothing fresh yet")}
        spoke = {**self._spoke, **{name: source.spoke for name, source in self._sources.items()}}
        answered = [name for name in reasons if spoke[name]]
        silent = [name for name in reasons if not spoke[name]]
        what = f"following {self._subject.topic}"
        return Stalled(what, reasons, quorum.circumstances(answered, silent))


class _Source:
    """One broker's stream, checked piece by piece, in a task of its own."""

    def __init__(self, feed: Feed, subject: Subject, name: str, ended: Callable[[], None]) -> None:
        self.name = name
        self.spoke = False  # whether the broker has sent anything
        self.floor = subject.quorum.height  # seen certified when the broker was asked
        self._feed = feed
        self._subject = subject
        self._patience = subject.quorum.timeouts.freshness / 1_000 + MARGIN
        self._stream: Stream | None = None
        self._limit: asyncio.Timeout | None = None
        self._owed = 0
        self._due = self._deadline()  # when the next proof has to be here
        self._lags: dict[
            int, int
        ] = {}  # by partition, ms behind the present when it was last seen to catch up
        self.task = asyncio.create_task(self._run())
        self.task.add_done_callback(swallow_result)
        self.task.add_done_callback(lambda _: ended())

    def taken(self, messages: int) -> None:
        """The reader has taken in so many of its messages."""
        self._owed += messages
        if self._stream is None or self._owed < GRANT:
            return
        if self._stream.outstanding <= 0:  # it could show nothing, and now it can
            self._due = self._deadline()
            if self._limit is not None:
                self._limit.reschedule(self._due)
        self._stream.grant(self._owed)
        self._owed = 0

    async def _run(self) -> None:
        feed, subject, quorum = self._feed, self._subject, self._subject.quorum
        places = list(feed.places.values())
        order = Order(
            quorum.reader, subject.topic, subject.constraint, places, feed.floor, matching=subject.matching
        )
        positions = tuple(StreamPosition(one.partition, one.incarnation, one.next_ps) for one in places)
        try:
            async with asyncio.timeout_at(self._due):
                connection = await quorum.brokers.connection(self.name)
                feed.reached = True
                self._stream = await connection.open(
                    OpenStream(0, subject.topic, subject.constraint.id, positions, CREDIT)
                )
        except TimeoutError:
            raise Stale(f"it has not opened a stream within {self._patience:g} s") from None
        try:
            await self._follow(self._stream, order)
        except Declined as declined:
            if not declined.kind.passing and declined.kind not in _ENDS:
                last = max(place.partition for place in places)
                await Judge(quorum, subject.topic, last)(connection, declined)
            raise
        finally:
            self._stream.close()

    async def _follow(self, stream: Stream, order: Order) -> None:
        quorum = self._subject.quorum
        state = Completeness.BEHIND
        while True:
            piece, arrived = await self._next(stream, state)
            self.spoke = True
            view = quorum.view(piece.anchor)
            await quorum.settle_time()
            if isinstance(piece, Delivery):
                # What this reader may not see is so now only if the header is new.
                if piece.reader is not None and not quorum.is_fresh(view, arrived):
                    raise Stale("it withholds messages under an old header")
                self._feed.offer(self, shown := order.delivered(view, piece))
                state = Completeness.BEHIND  # what the last head proved to be missing may have been this
                if self._catches_up(shown, arrived):
                    self._due = self._deadline()
            else:
                state = order.completeness(view, piece)
                if state is Completeness.ENDED:
                    raise Declined(NotSubscribed("ended").data)
                if state is Completeness.LAPSED and quorum.is_fresh(view, arrived):
                    # A proof holds at the level `certified`, so the broker is not suspected. At other levels it is one
                    # broker's word, which `_note` remembers.
                    raise Over
                if state is Completeness.COMPLETE and quorum.is_fresh(view, arrived):
                    self._feed.show_fresh()
                    self._lags.clear()
                    # The older the header, the sooner the next one: a broker that shows one again has no new ones.
                    self._due = self._deadline(max(0, quorum.time.now(arrived) - view.time))
            if quorum.reader.level == "certified":
                self._feed.floor = max(self._feed.floor, order.floor)
                quorum.saw(order.floor)

    def _catches_up(self, pieces: Iterable[Piece], arrived: int) -> bool:
        """Whether a broker that has much to tell, and no time for heads, comes closer to the present all the same."""
        found = False
        for piece in pieces:
            partition, lag = piece[-1].partition, arrived - piece[-1].time
            if lag <= self._lags.setdefault(partition, lag) - self._subject.quorum.timeouts.freshness // 2:
                self._lags[partition] = lag
                found = True
        return found

    async def _next(self, stream: Stream, state: Completeness) -> tuple[Delivery | Head, int]:
        # While the reader takes nothing the broker can show nothing, and no proof is due.
        self._limit = asyncio.timeout_at(self._due if stream.outstanding > 0 else None)
        try:
            async with self._limit:
                return await stream.next()
        except TimeoutError:
            if state is Completeness.MISSING:
                raise ProofError("it proves that there is more to this order than it shows") from None
            raise Stale(f"it has shown no fresh proof for {self._patience:g} s") from None
        finally:
            self._limit = None

    def _deadline(self, age: int = 0) -> float:
        """After a proof that was so many ms old when it came."""
        return asyncio.get_running_loop().time() + self._patience - age / 1_000
