"""Producer sequences: every batch is signed once, kept as it is until its receipt is certified, and takes effect once (P3).

A batch is signed again only when it is certain that the old one was not applied and never will be. That is then done
under a new session, in which nothing of the old one can take a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Protocol

from parley.application.application import Application
from parley.client.beliefs import Ordered
from parley.client.errors import (
    ClientClosed,
    Expired,
    OutOfSequence,
    ParleyError,
    PutOff,
    Refused,
    Stalled,
    TopicReplaced,
    Unreachable,
)
from parley.client.messages import Evidence
from parley.client.proofs import OperationProof, narrowed
from parley.client.quorum import PATIENCE, QuorumClient, Request, agreed, pause, submission
from parley.crypto.ed25519 import SIGNATURE_SIZE, SecretKey
from parley.ledger.proofs import ProofError, Trust
from parley.model.batches import FORMAT, BatchHeader, Message, leaves_of, sign_batch
from parley.model.names import Position
from parley.model.receipts import Rejected
from parley.model.refusals import DUPLICATE, is_final
from parley.net.messages import Answer, Receipted
from parley.privacy.table import TopicCodec

SESSION_SIZE = 16
VALID = 1_000  # heights that a batch is given to be applied: 100 s of a busy network, a quarter of an hour of an idle one
COVERED = 60.0  # seconds of waiting for a receipt that this covers
BLOCKS_PER_SECOND = 10  # of a busy network, about
MOST_BLOCKS_PER_SECOND = 100  # by which an idle client guesses how far the network has come
MAX_EXTRA = 9_000  # heights that a batch is given besides, for longer waiting or because the client was idle
_FATE_UNKNOWN = " (it has expired since, and whether it was applied before is not known yet)"


Place = tuple[int, str, Position, int]  # of a batch: its kind, topic, topic's id and partition


class _Ask(Protocol):
    """Asks the brokers for a batch's receipt."""

    def __call__(self, request: Request[Receipted, Ordered], /, *, skip: int) -> Awaitable[Ordered]: ...


@dataclass(frozen=True, slots=True)
class Author:
    """Who signs batches, and for which ledger: network and shard."""

    chain: bytes
    shard: int
    key: SecretKey
    rng: Callable[[int], bytes]

    def header(
        self, place: Place, session: bytes, sequence: int, messages: int, not_after: int
    ) -> BatchHeader:
        chain, shard, publisher = self.chain, self.shard, self.key.public
        return BatchHeader(FORMAT, chain, shard, *place, publisher, session, sequence, messages, not_after)


@dataclass(frozen=True, slots=True)
class Applied:
    """A batch that took effect, with its certified receipt."""

    ordered: Ordered
    header: BatchHeader
    messages: tuple[Message, ...]
    signature: bytes

    def evidence(self, quorum: QuorumClient) -> Evidence:
        """What proves the batch, if it was published."""
        ordered = self.ordered
        return Evidence(
            quorum.reader.trust,
            self.header,
            tuple(leaves_of(self.messages)),
            self.signature,
            ordered.receipt,
            (ordered.block, ordered.at),
            ordered.anchor,
        )

    def operation_proof(self, trust: Trust, application: Application) -> OperationProof:
        """What proves the batch to a third party, if it holds an operation."""
        (message,), ordered = self.messages, self.ordered
        made = OperationProof.of(
            (ordered.receipt, narrowed(ordered.block, ordered.at), ordered.anchor),
            (self.header, message, self.signature),
            application.decode_operation(message.payload),
        )
        try:
            # Under `quorum` and `trusted` it was not looked at before.
            made.check(trust, application)
        except ProofError as error:
            raise ParleyError(f"What the brokers showed proves nothing: {error}.") from error
        return made


@dataclass(eq=False)
class _Entry:
    messages: tuple[Message, ...]  # as they were composed; `published` is what is sent of them
    codec: TopicCodec | None  # of the topic; None: they are no publication
    done: asyncio.Future[Applied]
    header: BatchHeader
    what: str  # in words, for errors; empty: a publication
    repeats: bool = False  # whether a duplicate is as good as the first: the sender finds out what that was
    digest: bytes = b""
    data: bytes = b""
    published: tuple[Message, ...] = ()
    sent: float = 0.0  # when it was handed to the first broker, by the loop's clock
    broker: str = ""  # which one that was, until it says something
    problem: ParleyError | None = None  # that the last round of sending met
    # The height and the newest certified refusal that decided nothing.
    put_off: tuple[int, Refused] | None = None
    fate_unknown: bool = False  # whether it can only be asked what became of it, as it has expired
    task: asyncio.Task[None] | None = None  # of those that one broker's first answer was not enough for
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class ProducerSequence:
    """The batches of one session for one topic partition, or its operations, in their order."""

    def __init__(self, quorum: QuorumClient, author: Author, place: Place) -> None:
        self._quorum = quorum
        self._author = author
        self._place = place
        self._entries: deque[_Entry] = deque()  # not settled yet, in the order of their sequences
        # The last of them, for which there was no room: none overtakes another.
        self._unsent: deque[_Entry] = deque()
        self._ack = quorum.timeouts.ack / 1_000
        self._has_choice = sum(name in quorum.eligible for name in quorum.brokers.addresses) > 1
        self._timer: asyncio.TimerHandle | None = None
        self._suspected: dict[str, asyncio.TimerHandle] = {}  # brokers that were silent for unusually long
        self._closed = False
        self._begin_session()

    @property
    def is_idle(self) -> bool:
        return not self._entries

    def submit(
        self,
        messages: tuple[Message, ...],
        what: str = "",
        *,
        repeats: bool = False,
        codec: TopicCodec | None = None,
    ) -> asyncio.Future[Applied]:
        """Sign and send. The future may fail with `Unreachable` while the batch is still being sent.

        `what` is for errors; without it they speak of a publication. With `repeats`, a duplicate is an end, too.
        """
        done: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        done.add_done_callback(asyncio.Future.exception)  # callers need not wait for it
        if self._closed:
            done.set_exception(ClientClosed("The client is closed."))
            return done
        entry = _Entry(messages, codec, done, self._header(len(messages)), what, repeats)
        self._entries.append(entry)
        self._send(entry)
        return done

    def unanswered(self, what: str) -> ParleyError:
        """What to raise when waiting for a receipt has taken too long: the oldest open batch met the trouble first."""
        problem = next((entry.problem for entry in self._entries if entry.problem is not None), None)
        if isinstance(problem, Unreachable):
            return problem
        # Those behind the oldest only wait for it.
        if self._entries and self._entries[0].fate_unknown:
            what += _FATE_UNKNOWN
        elif self._entries and (put_off := self._entries[0].put_off) is not None:
            height, refusal = put_off
            return PutOff(what, refusal, height, problem.reasons if isinstance(problem, Stalled) else None)
        if isinstance(problem, Stalled):
            return type(problem)(what, problem.reasons, problem.circumstances)
        silent = {entry.broker: "it has shown no receipt yet" for entry in self._entries if entry.broker}
        return Stalled(what, silent, self._quorum.circumstances((), silent))

    def close(self) -> None:
        self._closed = True
        for timer in (self._timer, *self._suspected.values()):
            if timer is not None:
                timer.cancel()
        self._fail_all(ClientClosed("The client was closed before the receipt came."))

    def _begin_session(self) -> None:
        self._session = self._author.rng(SESSION_SIZE)
        self._next = 0
        self._reached = 0  # the height at which the last batch of this session was settled

    def _header(self, messages: int) -> BatchHeader:
        first, self._next = self._next, self._next + messages
        not_after = self._quorum.height + VALID + self._extra()
        return self._author.header(self._place, self._session, first, messages, not_after)

    def _extra(self) -> int:
        """Heights for what `VALID` does not cover: blocks since the client last heard of one, and a long timeout.

        No more than that, because the network remembers a sequence until its batches expire, within limits.
        """
        unheard = self._quorum.idle * MOST_BLOCKS_PER_SECOND
        waiting = max(0.0, (self._quorum.timeout or 0.0) - COVERED) * BLOCKS_PER_SECOND
        return min(int(unheard + waiting), MAX_EXTRA)

    def _send(self, entry: _Entry) -> None:
        messages = entry.messages
        entry.published = messages if entry.codec is None else entry.codec.seal(entry.header, messages)
        entry.digest, entry.data = sign_batch(entry.header, entry.published, self._author.key)
        entry.task, entry.broker = None, ""
        self._unsent.append(entry)
        self._send_waiting()

    def _send_waiting(self) -> None:
        """In their order, as far as there is room: a batch that comes before its turn is ordered in vain."""
        if self._closed:
            return
        while self._unsent and self._post(self._unsent[0]):
            self._unsent.popleft()
        if self._unsent and self._unsent[0] is self._entries[0]:
            self._start(self._unsent.popleft())  # nothing is under way whose end would make room

    def _post(self, entry: _Entry) -> bool:
        entry.broker = self._quorum.post(entry.data, partial(self._on_answer, entry, entry.digest))
        if not entry.broker:
            return False
        loop = asyncio.get_running_loop()
        entry.sent = loop.time()
        self._look_at(entry.sent + self._patience())
        return True

    def _patience(self) -> float:
        """Seconds without a receipt after which the oldest batch goes elsewhere; where there is no elsewhere, `ack`."""
        return self._quorum.receipts.patience(self._ack) if self._has_choice else self._ack

    def _look_at(self, when: float) -> None:
        """Look at the open batches then, or earlier if that was planned."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _on_answer(self, entry: _Entry, digest: bytes, broker: str, answer: Answer | Exception) -> None:
        """Take the first broker's answer to a batch: nearly always its receipt. If it is not, others are asked, too."""
        ordered = self._quorum.receipt(broker, answer, digest)
        if entry.digest != digest:
            return
        entry.broker = ""
        if entry.settled.is_set():
            return
        if ordered is not None:
            self._quorum.receipts.took(asyncio.get_running_loop().time() - entry.sent)
        if ordered is not None and _is_applied(entry, ordered):
            _stop(entry)
            self._apply(entry, ordered)
        elif entry.task is None:
            self._start(entry, ordered, skip=0 if ordered is not None else self._skip(broker))

    def _look(self) -> None:
        """Batches that the first broker is silent about are sent to as many as hold an honest one (P4).

        The oldest of them when its receipt takes longer than usual, the others when that has shown who is silent, or
        after `ack`: if the whole network is slow for a moment, it should not get everything twice.
        """
        self._timer = None
        loop = asyncio.get_running_loop()
        usual = self._patience()
        for entry in self._entries:
            if self._unsent and entry is self._unsent[0]:
                return
            if entry.task is not None:
                continue
            if (due := entry.sent + (usual if entry is self._entries[0] else self._ack)) > loop.time():
                self._look_at(min(due, loop.time() + usual))
                return
            self._send_elsewhere(entry)

    def _send_elsewhere(self, entry: _Entry) -> None:
        """To so many others that all who have it are f+1."""
        self._start(entry, skip=self._skip(entry.broker), more=max(0, self._quorum.faults - 1), noticed=True)

    def _skip(self, broker: str) -> int:
        """How many brokers to pass over, so that this one does not come first."""
        return int(self._quorum.candidates()[0] == broker)

    def _start(
        self,
        entry: _Entry,
        ordered: Ordered | None = None,
        *,
        skip: int = 0,
        more: int = 0,
        noticed: bool = False,
    ) -> None:
        """Ask the brokers, after what the first one has shown."""
        ask = partial(self._quorum.ask, more=more, trouble=self._trouble(entry), noticed=noticed)
        entry.task = asyncio.create_task(self._drive(entry, ordered, skip, ask))
        entry.task.add_done_callback(partial(_pass_fault, entry.done))

    async def _drive(self, entry: _Entry, ordered: Ordered | None, skip: int, ask: _Ask) -> None:
        try:
            await self._until_final(entry, ordered, skip, ask)
        except Refused as refusal:  # before order, by brokers of which one is honest
            if refusal.stateless:  # the batch was never ordered and never will be
                await self._until_first(entry)
                self._settle(entry, refusal)
                self._renew()
            else:
                self._give_up(refusal)

    async def _until_final(self, entry: _Entry, ordered: Ordered | None, skip: int, ask: _Ask) -> None:
        """Send the batch until it has a receipt that no later one can change."""
        for number in count():
            if ordered is None:
                ordered = await ask(self._request(entry), skip=skip + number)
            if _is_applied(entry, ordered):
                if entry.broker and self._has_choice:  # others knew, so it is not the network that is slow
                    self._leave(entry)
                self._apply(entry, ordered)
                return
            rejected = ordered.receipt.rejected
            if rejected is not None and is_final(rejected.code):
                if _leaves_a_gap(entry, rejected):
                    await self._until_first(entry)
                self._refuse(entry, ordered.height, rejected)
                return
            if rejected is not None:
                _put_off(entry, ordered.height, rejected)
            await self._until_first(entry)
            if rejected is not None and await self._is_void(entry, ordered, rejected):
                self._renew()
                return
            await asyncio.sleep(pause(number))
            ordered = None

    async def _until_first(self, entry: _Entry) -> None:
        """Until nothing before it is open: what is signed again must not be applied as it was signed first."""
        while self._entries[0] is not entry:
            await self._entries[0].settled.wait()

    def _leave(self, entry: _Entry) -> None:
        """Leave a broker that is silent about a batch which others had ordered: send them all that it was sent."""
        silent, loop = entry.broker, asyncio.get_running_loop()
        self._quorum.brokers.failed(silent)
        for other in self._entries:
            if other.broker == silent and other.task is None:
                self._send_elsewhere(other)
        left = entry.sent + self._ack - loop.time()
        if left <= 0:
            self._doubt(entry, silent)
        elif silent not in self._suspected:  # it was unusually slow, and may still answer in time
            self._suspected[silent] = loop.call_later(left, self._doubt, entry, silent)

    def _doubt(self, entry: _Entry, silent: str) -> None:
        """Name a broker that has not shown the receipt in all the time that it had."""
        self._suspected.pop(silent, None)
        if entry.broker == silent:
            self._quorum.brokers.doubt(silent, f"it has shown no receipt for a batch within {self._ack:g} s")

    def _request(self, entry: _Entry) -> Request[Receipted, Ordered]:
        _, topic, _, partition = self._place
        what = entry.what or f"publishing to partition {partition} of {topic}"
        if entry.put_off is not None:
            what += f" (put off in block {entry.put_off[0]}: {entry.put_off[1]})"
        return submission(what, entry.data, entry.digest)

    def _refuse(self, entry: _Entry, height: int, rejected: Rejected) -> None:
        """A refusal is final and, where the network has the sequence, uses the entry's numbers up."""
        self._reached = max(self._reached, height)
        self._settle(entry, rejected.refusal.error())
        if _leaves_a_gap(entry, rejected):
            self._renew()

    async def _is_void(self, entry: _Entry, ordered: Ordered, rejected: Rejected) -> bool:
        """Whether the first open batch was certainly not applied and certainly never will be."""
        first = entry.header.sequence
        if rejected.code == OutOfSequence.code:
            # All before it were applied by then, so the network has forgotten the sequence: it was idle for very long.
            # An older receipt of this kind says nothing. No batch will ever bring the forgotten sequence up to this one.
            return rejected.next_sequence < first and ordered.height > self._reached
        if rejected.code == Expired.code and ordered.height > entry.header.not_after:
            # A sequence that stands where the batch begins never had it; one that has gone on did. Without a sequence the
            # state does not tell. Brokers keep the receipts, and one of f+1 is honest. A broker without its whole history
            # says so and is not counted.
            if rejected.next_sequence:
                return rejected.next_sequence == first
            return await self._was_never_applied(entry)
        return False

    async def _was_never_applied(self, entry: _Entry) -> bool:
        def combine(answers: Sequence[Ordered], needed: int) -> Ordered | None:
            # Receipts that decided nothing then decide nothing now, and a liar may show an old one. What is not proved
            # has to be said by as many as any other answer.
            enough = 1 if self._quorum.reader.level == "certified" else self._quorum.needed
            decided = agreed([one for one in answers if _is_decided(one)], enough)
            expired = [one for one in answers if one.receipt.code == Expired.code]
            return decided or (expired[0] if len(expired) >= needed else None)

        request = self._request(entry)
        entry.fate_unknown = True
        try:
            found = await self._quorum.ask(
                replace(request, what=request.what + _FATE_UNKNOWN, combine=combine),
                needed=max(self._quorum.needed, self._quorum.enough_to_refuse),
                trouble=self._trouble(entry),
            )
        finally:
            entry.fate_unknown = False
        return found.receipt.code == Expired.code

    def _renew(self) -> None:
        """Sign again all that is open, under a new session."""
        self._begin_session()
        self._unsent.clear()
        for entry in self._entries:
            _stop(entry)
            entry.header = self._header(len(entry.messages))
            entry.put_off = None
            self._send(entry)

    def _give_up(self, refusal: Refused) -> None:
        """Brokers judge by what they know now; some of the open batches may have been applied before. None is signed again."""
        refusal.add_note("Batches that were sent before may have been applied: their receipts were not seen.")
        self._fail_all(refusal)
        self._begin_session()

    def _fail_all(self, error: ParleyError) -> None:
        self._unsent.clear()
        while self._entries:
            entry = self._entries[0]
            _stop(entry)
            self._settle(entry, error)

    def _apply(self, entry: _Entry, ordered: Ordered) -> None:
        self._reached = max(self._reached, ordered.height)
        signature = entry.data[-SIGNATURE_SIZE:]  # a batch ends with it
        self._settle(entry, Applied(ordered, entry.header, entry.published, signature))

    def _settle(self, entry: _Entry, result: Applied | ParleyError) -> None:
        self._entries.remove(entry)
        entry.messages, entry.published, entry.data = (
            (),
            (),
            b"",
        )  # a silent broker's connection holds on to the rest of it
        entry.settled.set()
        if self._unsent:  # the caller may have other plans for what waits
            asyncio.get_running_loop().call_soon(self._send_waiting)
        if entry.done.done():
            return
        if isinstance(result, Applied):
            entry.done.set_result(result)
        else:
            entry.done.set_exception(result)

    def _trouble(self, entry: _Entry) -> Callable[[ParleyError], None]:
        """Sending goes on for as long as the client is open, but waiting for it fails when no broker can be reached."""
        clock = asyncio.get_running_loop().time
        since: list[float] = []

        def note(problem: ParleyError) -> None:
            entry.problem = problem
            if not isinstance(problem, Unreachable):
                since.clear()
                return
            since.append(clock())
            del since[1:-1]
            if since[-1] - since[0] >= PATIENCE and not entry.done.done():
                problem.add_note(
                    "What was sent may still take effect: sending it goes on while the client is open."
                )
                entry.done.set_exception(problem)

        return note


def _leaves_a_gap(entry: _Entry, rejected: Rejected) -> bool:
    """Whether the refused batch did not use up its numbers, so that those behind it never come to their turn.

    Where the topic has been replaced those behind it have no turn to wait for: each of them is refused by itself.
    """
    return rejected.code != TopicReplaced.code and rejected.next_sequence <= entry.header.sequence


def _is_applied(entry: _Entry, ordered: Ordered) -> bool:
    return ordered.receipt.is_done or (entry.repeats and ordered.receipt.code == DUPLICATE)


def _is_decided(ordered: Ordered) -> bool:
    """Whether the batch was applied or refused for good, by this receipt or an earlier one."""
    receipt = ordered.receipt
    return receipt.is_done or receipt.code == DUPLICATE or is_final(receipt.code)


def _put_off(entry: _Entry, height: int, rejected: Rejected) -> None:
    """A broker may show an older receipt than another did: that is no news."""
    if entry.put_off is None or height >= entry.put_off[0]:
        entry.put_off, entry.problem = (height, rejected.refusal.error()), None


def _stop(entry: _Entry) -> None:
    if entry.task is not None and entry.task is not asyncio.current_task():
        entry.task.cancel()


def _pass_fault(done: asyncio.Future[Applied], task: asyncio.Task[None]) -> None:
    """Pass a fault of this program on to those who wait for the batch: they must not wait for ever."""
    if not task.cancelled() and (fault := task.exception()) is not None and not done.done():
        done.set_exception(fault)
