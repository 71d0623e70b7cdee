"""Asks brokers until as many as it takes agree: one that proves its answer, f+1, or some of one's own organisation.

Whatever goes wrong with one broker leads to the next. A refusal without proof is believed when f+1 brokers say it, one
of which is honest, or, if it is one that cannot be proved, when no other broker can be reached.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

from parley.client.beliefs import (
    Behind,
    Ordered,
    Reader,
    Stale,
    VerifiedView,
    check_receipt,
    check_receipts,
    is_fresh,
    shown_receipt,
)
from parley.client.brokers import FAILURES, Brokers
from parley.client.circumstances import Circumstances, clock_ahead
from parley.client.clock import Clock
from parley.client.connection import Connection, Declined, Gone
from parley.client.errors import Busy, Overloaded, ParleyError, Stalled, Unreachable
from parley.client.pace import Pace
from parley.ledger.proofs import Anchor, Certified, ProofError
from parley.model.genesis import Timeouts
from parley.model.refusals import Refusal
from parley.net.messages import (
    Answer,
    CertifiedAnswer,
    Failure,
    Fetch,
    Question,
    ReadHeader,
    Receipted,
    ShownHeader,
    Submit,
)

PATIENCE = 15.0  # seconds for which all brokers may be unreachable before that is an error
FIRST_PAUSE = 0.05  # seconds between two rounds of asking, doubled each time
LONGEST_PAUSE = 2.0
ANSWER_SECONDS = 10.0
RECEIPT_SECONDS = 70.0  # brokers themselves give up after 60

A = TypeVar("A", bound=CertifiedAnswer)
R = TypeVar("R")


def agreed(answers: Sequence[R], needed: int) -> R | None:
    """An answer that enough brokers gave."""
    return next((answer for answer in answers if answers.count(answer) >= needed), None)


def swallow_result(task: asyncio.Task[Any]) -> None:
    """Take the result of a task that is not waited for any more, or Python would complain about its exception."""
    if not task.cancelled():
        task.exception()


def is_old(refusal: Refusal, floor: int) -> bool:
    """Whether a broker judged by an earlier state than this one: what it did not find may exist by now."""
    height = dict(refusal.fields).get("judged", floor)
    return isinstance(height, int) and height < floor


def pause(number: int) -> float:
    """Seconds to wait after the round of this number."""
    return min(FIRST_PAUSE * (1 << min(number, 16)), LONGEST_PAUSE)


@dataclass(frozen=True)
class Request(Generic[A, R]):
    """A question and how its answer is read. `read` raises `ProofError` or `Stale`.

    `judge` looks into a refusal: it raises `Refused` if the refusal is proven, `ProofError` if it is a lie.
    """

    what: str  # in words, for errors
    question: Question
    kind: type[A]
    read: Callable[[VerifiedView, A], R]
    combine: Callable[[Sequence[R], int], R | None] = agreed
    judge: Callable[[Connection, Declined], Awaitable[None]] | None = None


def submission(what: str, batch: bytes, digest: bytes) -> Request[Receipted, Ordered]:
    """To order a batch, and to show its receipt."""
    return Request(what, Submit(0, batch), Receipted, partial(check_receipt, digest=digest))


@dataclass(eq=False, repr=False)
class QuorumClient:
    """Asks brokers until `needed` of the `eligible` ones agree; `height` is the highest certified one that they have shown.

    `clock` is in ms since 1970. `report` is called when the network stalls.
    """

    brokers: Brokers
    reader: Reader
    timeouts: Timeouts
    clock: Callable[[], int]
    needed: int
    faults: int
    eligible: Container[str]
    timeout: float | None
    report: Callable[[ParleyError], None]
    height: int = 0
    time: Clock = field(init=False)  # as far as certified headers correct it
    receipts: Pace = field(default_factory=Pace)  # from handing over a batch to its receipt
    answers: Pace = field(default_factory=Pace)  # from any other question to its answer
    _heard: float | None = None  # when a certified height was shown last, by the loop's clock
    _checked: tuple[Receipted, dict[bytes, Ordered]] | None = None

    def __post_init__(self) -> None:
        self.time = Clock(self.clock, self.timeouts.freshness)

    def candidates(self, skip: int = 0) -> list[str]:
        """The brokers to ask, in this order; `skip` moves the first ones to the end."""
        names = [name for name in self.brokers.preferred() if name in self.eligible]
        skip %= max(1, len(names))
        return names[skip:] + names[:skip]

    @property
    def enough_to_refuse(self) -> int:
        """How many must refuse alike to be believed without proof."""
        return self.needed if self.reader.level == "trusted" else self.faults + 1

    def require_fresh(self, view: VerifiedView) -> None:
        """Raises `Stale` for what may not be so any more."""
        if not self.time.is_settled():
            raise Stale(
                f"this machine's clock is behind (set it), and fewer than {self.enough_to_refuse} brokers show headers to "
                "compare"
            )
        if not self.is_fresh(view):
            age = self.time.now() - view.time
            raise Stale(f"its newest header is {age} ms old, so it cannot say how things are now")

    def is_fresh(self, view: VerifiedView, arrived: int | None = None) -> bool:
        """Whether the header is new, or was when this machine's clock had that reading."""
        return self.time.is_settled() and is_fresh(view, self.time.now(arrived), self.timeouts.freshness)

    async def settle_time(self) -> None:
        """If this machine's clock is behind, compare the headers of f+1 brokers, one of which is honest (P7).

        If fewer answer, no header counts as new. A reader that trusts its own brokers takes the header of one.
        """
        if self.time.is_settled():
            return
        async with self.time.comparing:
            if self.time.is_settled():
                return
            asked = [asyncio.create_task(self._sees_header(name)) for name in self.candidates()]
            for task in asked:
                task.add_done_callback(swallow_result)
            seen = 0
            try:
                for answer in asyncio.as_completed(asked):
                    seen += await answer
                    if seen >= self.enough_to_refuse:
                        self.time.compared()
                        break
            finally:
                for task in asked:
                    task.cancel()

    async def _sees_header(self, name: str) -> bool:
        """Take note of the time of the broker's newest certified header; False if it shows none."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await self.brokers.connection(name)
                self.certified((await connection.ask(ReadHeader(0, 0), ShownHeader)).anchor)
        except FAILURES as error:
            self.brokers.note(name, error)
            return False
        return True

    def post(self, batch: bytes, on_answer: Callable[[str, Answer | Exception], None]) -> str:
        """Hand a batch to the broker that comes first, without waiting: its name; empty if that is not enough or not
        possible now. `on_answer` is called with the broker's name and its answer, which `receipt` reads.
        """
        if self.needed > 1:
            return ""
        name = self.candidates()[0]
        connection = self.brokers.connected(name)
        return name if connection is not None and connection.post(batch, partial(on_answer, name)) else ""

    def receipt(self, broker: str, answer: Answer | Exception, digest: bytes) -> Ordered | None:
        """The receipt of a batch that was posted; None if the answer is anything else, which may tell of the broker."""
        match answer:
            case Receipted():
                try:
                    found = shown_receipt(self._receipts(answer), digest)
                except ProofError as error:
                    self.brokers.note(broker, error)
                else:
                    self.brokers.worked(broker)
                    return found
            case ProofError() | Gone():
                self.brokers.note(broker, answer)
            case Failure():
                pass  # one broker's word; others may have another
            case _:
                self.brokers.distrust(broker, f"it answered a Submit with a {type(answer).__name__}")
        return None

    def _receipts(self, answer: Receipted) -> dict[bytes, Ordered]:
        """An answer to many batches is checked once, when the first of them is looked at."""
        if self._checked is None or self._checked[0] is not answer:
            view = self.view(answer.anchor)
            self._checked = (answer, check_receipts(view, answer))
            self.saw(view.height)
        return self._checked[1]

    def view(self, anchor: Anchor) -> VerifiedView:
        """What an answer with this header shows. Raises `ProofError`."""
        if self.reader.level == "certified":
            return self.certified(anchor)
        # Such an answer is not checked. Its header may still tell that the clock is behind.
        if anchor.header.time > self.time.newest:
            with suppress(ProofError):
                self.certified(anchor)
        return self.reader.view(anchor)

    def certified(self, anchor: Anchor) -> Certified:
        """What a quorum certified, whatever the level. Raises `ProofError`."""
        view = self.reader.trust.certified(anchor)
        self.time.saw(view.time)
        return view

    def circumstances(self, answered: Collection[str], silent: Collection[str]) -> Circumstances:
        """What is known of the brokers when these have answered, and those were asked in vain."""
        committee = self.reader.trust.committee
        age = max(0, self.time.now() - self.time.newest) if self.time.newest else None
        ahead = clock_ahead(list(self.brokers.clocks.values()), self.faults + 1) or -self.time.behind
        return Circumstances(tuple(answered), tuple(silent), committee.size, committee.quorum, age, ahead)

    def saw(self, height: int) -> None:
        """A broker has shown this certified height."""
        if height >= self.height:
            self.height = height
            self._heard = asyncio.get_running_loop().time()

    @property
    def idle(self) -> float:
        """Seconds since a broker has shown the highest certified height: there may be a higher one by now."""
        return 0.0 if self._heard is None else asyncio.get_running_loop().time() - self._heard

    async def ask(
        self,
        request: Request[A, R],
        *,
        needed: int | None = None,
        skip: int = 0,
        more: int = 0,
        patience: float = PATIENCE,
        trouble: Callable[[ParleyError], None] | None = None,
        noticed: bool = False,
    ) -> R:
        """Ask until enough agree, `more` at a time than it takes. With `trouble`, go on for ever, and say there what else
        would be raised. `noticed`: others are asked because a broker was silent, so the first wait is `ack`.
        """
        call = _QuorumCall(self, request, needed or self.needed, more, trouble, noticed=noticed)
        limit = asyncio.timeout(self.timeout if trouble is None else None)
        try:
            async with limit:
                return await call.until_agreed(skip, patience)
        except TimeoutError:
            if limit.expired():
                raise call.problem() from None
            raise

    async def ask_each(self, names: Sequence[str], ask: Callable[[str], Awaitable[R]]) -> dict[str, R]:
        """The answers of those of these brokers that give one. Raises a refusal, or `Unreachable`, if none does."""
        answers = await asyncio.gather(*map(ask, names), return_exceptions=True)
        found: dict[str, R] = {}
        reasons: dict[str, str] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, FAILURES):
                reasons[name] = self.brokers.note(name, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        if not found:
            raise next(
                (answer.refusal.error() for answer in answers if isinstance(answer, Declined)),
                Unreachable(reasons, self.brokers.addresses),
            )
        return found


class _QuorumCall(Generic[A, R]):
    """One request to the quorum, round after round."""

    def __init__(
        self,
        quorum: QuorumClient,
        request: Request[A, R],
        needed: int,
        more: int,
        trouble: Callable[[ParleyError], None] | None,
        *,
        noticed: bool,
    ) -> None:
        self._quorum = quorum
        self._request = request
        self._needed = needed
        self._more = more
        self._trouble = trouble
        self._noticed = noticed
        self._reported = False
        self._known: dict[str, str] = {}  # the last reason of each broker
        self._heard: dict[str, bool] = {}  # and whether it said anything then
        # The highest certified height that was seen when each broker was asked.
        self._floors: dict[str, int] = {}
        self._running: dict[asyncio.Task[tuple[R, int]], str] = {}
        self._last: ParleyError = Stalled(request.what, {})  # of the round before
        self._forget()

    def _forget(self) -> None:
        self._answers: dict[str, tuple[R, int]] = {}
        self._reasons: dict[str, str] = {}
        self._stale: dict[str, str] = {}  # those whose answer was old, and how
        self._denials: defaultdict[str, dict[str, Refusal]] = defaultdict(dict)  # by code and broker
        self._busy: set[str] = set()
        self._reached: set[str] = set()

    async def until_agreed(self, skip: int, patience: float) -> R:
        clock = asyncio.get_running_loop().time
        began = clock()
        for number in count():
            self._forget()
            found = await self._round(self._quorum.candidates(skip + number))
            if found is not None:
                return found
            problem = self._last = self.problem()
            if clock() - began >= self._quorum.timeouts.freshness / 1_000:
                self._report(problem)
            if self._trouble is not None:
                self._trouble(problem)
            else:
                self._require_undecided()
                if isinstance(problem, Unreachable) and clock() - began >= patience:
                    raise problem
            await asyncio.sleep(pause(number))
        raise AssertionError("counting does not end")

    def problem(self) -> ParleyError:
        waiting = dict.fromkeys(self._running.values(), "it has not answered yet")
        if not self._reasons and not self._answers and (self._known or not waiting):
            return self._last
        alone = dict.fromkeys(self._answers, "too few others have given the same answer")
        reasons = {**self._known, **alone, **waiting}
        if self._reasons and not self._reached:
            return Unreachable(reasons, self._quorum.brokers.addresses)
        # One of so many is honest: a single one that has no room, or says so, is no reason to publish more slowly.
        if self._busy >= self._reached and len(self._busy) >= self._quorum.enough_to_refuse:
            return Overloaded(self._request.what, self._reasons)
        heard = {**self._heard, **dict.fromkeys(waiting, False)}
        answered = [name for name, said in heard.items() if said]
        silent = [name for name, said in heard.items() if not said]
        return Stalled(self._request.what, reasons, self._quorum.circumstances(answered, silent))

    async def _round(self, candidates: list[str]) -> R | None:
        """Ask each broker at most once, no more at a time than it takes; None if they do not agree."""
        waiting = deque(candidates)
        running = self._running = {}
        silent: dict[str, float] = {}  # for how long it has been, at least
        extra = self._more
        try:
            while True:
                wanted = max(1, self._needed - len(self._answers)) + extra
                while waiting and len(running) < wanted:
                    name = waiting.popleft()
                    task = asyncio.create_task(self._ask(name))
                    task.add_done_callback(swallow_result)
                    running[task] = name
                if not running:
                    return None
                seconds = self._patience()
                done, _ = await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    self._noticed = True
                    for name in running.values():
                        silent[name] = silent.get(name, 0.0) + seconds
                    extra += max(1, self._quorum.faults)  # a silent broker may be censoring (P4)
                    if self._trouble is not None:
                        self._trouble(self.problem())
                    if not waiting:
                        self._report(self.problem())
                for task in done:
                    self._note(running.pop(task), task)
                if (found := self._found()) is not None:
                    self._blame({name: silent[name] for name in running.values() if name in silent})
                    return found
        finally:
            for task in running:
                task.cancel()

    def _patience(self) -> float:
        """Seconds of silence after which more brokers are asked: once when it is unusual, then every `ack`."""
        question, timeouts = self._request.question, self._quorum.timeouts
        ack = timeouts.ack / 1_000
        wait = question.wait / 1_000 if isinstance(question, Fetch) else 0
        return wait + (ack if self._noticed else self._pace().patience(ack))

    def _pace(self) -> Pace:
        is_batch = isinstance(self._request.question, Submit)
        return self._quorum.receipts if is_batch else self._quorum.answers

    def _blame(self, silent: Mapping[str, float]) -> None:
        """Prefer other brokers to those that were silent or stale, and record a doubt: others had an answer."""
        brokers, ack = self._quorum.brokers, self._quorum.timeouts.ack / 1_000
        for name, seconds in silent.items():
            brokers.failed(name)
            if seconds >= ack:
                brokers.doubt(name, f"it has not answered for {seconds:.1f} s ({self._request.what})")
        for name, problem in self._stale.items():
            brokers.doubt(name, f"{problem} ({self._request.what})")

    async def _ask(self, name: str) -> tuple[R, int]:
        request, quorum = self._request, self._quorum
        self._floors[name] = quorum.height
        connection = await quorum.brokers.connection(name)
        self._reached.add(name)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_seconds(request.question)):
                answer = await connection.ask(request.question, request.kind)
        except Declined as declined:
            if request.judge is not None and not declined.kind.passing:
                await request.judge(connection, declined)
            raise
        view = quorum.view(answer.anchor)
        if not isinstance(request.question, Submit):
            await quorum.settle_time()
        found = request.read(view, answer)
        if not (isinstance(request.question, Fetch) and request.question.wait):
            self._pace().took(asyncio.get_running_loop().time() - began)
        return found, view.height

    def _note(self, name: str, task: asyncio.Task[tuple[R, int]]) -> None:
        try:
            self._answers[name] = task.result()
            self._heard[name] = True
            self._known.pop(name, None)
            self._quorum.brokers.worked(name)
        except FAILURES as error:
            self._reasons[name] = self._known[name] = self._quorum.brokers.note(name, error)
            self._heard[name] = not isinstance(error, Gone | TimeoutError)
            if isinstance(error, Stale) and not isinstance(error, Behind):
                self._stale[name] = str(error)
            if isinstance(error, Declined):
                if error.kind is Busy:
                    self._busy.add(name)
                if not error.kind.passing and not is_old(error.refusal, self._floors[name]):
                    self._denials[error.refusal.code][name] = error.refusal

    def _found(self) -> R | None:
        for said in self._denials.values():
            if len(said) >= self._quorum.enough_to_refuse:
                raise next(iter(said.values())).error()
        if not self._answers:
            return None
        found = self._request.combine([answer for answer, _ in self._answers.values()], self._needed)
        if found is not None:
            self._quorum.saw(min(height for _, height in self._answers.values()))
        return found

    def _require_undecided(self) -> None:
        """Raises the refusal that stands after all brokers were asked: some refuse and the others cannot be reached.

        One that could have been proved does not stand, and none while others say that they cannot answer now or are behind:
        a single liar would be enough then.
        """
        provable = self._request.judge is not None and self._quorum.reader.level == "certified"
        undecided = self._reached.difference(*self._denials.values())
        if self._denials and not self._answers and not provable and not undecided:
            said = max(self._denials.values(), key=len)
            raise next(iter(said.values())).error()

    def _report(self, problem: ParleyError) -> None:
        """Report a problem once, not for every round."""
        if not self._reported:
            self._reported = True
            self._quorum.report(problem)


def _seconds(question: Question) -> float:
    """How long a broker may take to answer."""
    if isinstance(question, Submit):
        return RECEIPT_SECONDS
    return ANSWER_SECONDS + (question.wait / 1_000 if isinstance(question, Fetch) else 0)
