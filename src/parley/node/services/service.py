"""What a service of a broker is, and the table that finds it by its question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from parley.model.refusals import Refused
from parley.net.messages import EXCHANGES, Answer, Question, decoder_of

if TYPE_CHECKING:
    from parley.node.access import Caller
    from parley.node.services.asking import Asking, Services
    from parley.node.view import View

Q = TypeVar("Q", bound=Question)
Asked_contra = TypeVar("Asked_contra", bound=Question, contravariant=True)
R = TypeVar("R")


class Work(Protocol):
    """An answer that takes several turns of the loop, because others wait meanwhile."""

    def step(self) -> Answer | None:
        """The answer, or None if another turn is needed. Raises `Refused`."""


Said = Answer | Work | None  # None: the question has no answer, or gets it later


@dataclass(frozen=True)
class Right:
    """Who may ask, in words. The handler judges it, because it takes what only the handler finds out."""

    about: str


@dataclass(frozen=True)
class Judged(Right, Generic[Asked_contra, R]):
    """Who may ask, judged before the handler is called.

    `judge` raises `Refused`; what it returns, such as the principal as whom the caller reads, the handler gets.
    """

    judge: Callable[[View, Caller, Asked_contra], R]


@dataclass(frozen=True)
class Cost:
    """What a question costs besides its own bytes and those of its answers, in bytes of what its client may use."""

    about: str  # in words; of a question that costs its bytes only, why
    _: KW_ONLY
    before: int | Callable[[Services], int] = 0  # charged before anything is looked up
    within: bool = False  # the handler charges what it counts as it goes on
    after: Callable[[Any], int] | None = None  # what it took to build an answer, charged when that is sent
    bytes_only: bool = False

    def __post_init__(self) -> None:
        """Raises `ValueError` for a question that would be free of charge without a reason."""
        is_charged = callable(self.before) or self.before > 0 or self.within or self.after is not None
        if not self.about or is_charged is self.bytes_only:
            raise ValueError("a question has a cost and says which, or says why it costs its bytes only")


@dataclass(frozen=True, kw_only=True)
class Service(ABC, Generic[Q]):
    """A row of the table: a question, who may ask it, what it costs, and how it is answered."""

    question: type[Q]
    right: Right
    cost: Cost
    stays: bool = False  # until it is answered or closed it takes one of the places of its connection
    whole: bool | Callable[[Q], bool] = False  # refused while old records are missing here
    answers: tuple[type[Answer], ...] = ()  # by default those that the protocol names

    # What is done before the handler is called.
    _first: tuple[Callable[[Asking, Q], None], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.answers:
            object.__setattr__(self, "answers", EXCHANGES[self.question])
        steps = (
            (self._charge, bool(self.cost.before)),
            (self._require_room, self.stays),
            (self._require_whole, bool(self.whole)),
        )
        object.__setattr__(self, "_first", tuple(step for step, needed in steps if needed))

    @abstractmethod
    def take(self, asking: Asking, question: Q) -> Said:
        """What to say at once. What it takes is charged, except for what is charged by the answer. Raises `Refused`."""

    def go_on(self, asking: Asking, work: Work) -> Said:  # noqa: ARG002 - refusals by old states need it
        """What there is to say after another turn of the work. Raises `Refused`."""
        return work.step() or work

    def _charge(self, asking: Asking, _: Q) -> None:
        before = self.cost.before
        asking.charge(before(asking.services) if callable(before) else before)

    def _require_room(self, asking: Asking, question: Q) -> None:
        if asking.held is not None:
            asking.held.require_room(question.id)

    def _require_whole(self, asking: Asking, question: Q) -> None:
        if self.whole is True or (callable(self.whole) and self.whole(question)):
            asking.services.ledger.require_whole()


@dataclass(frozen=True, kw_only=True)
class Acting(Service[Q]):
    """A question that is about the broker or the connection; its handler judges the right itself."""

    act: Callable[[Asking, Q], Said]

    def take(self, asking: Asking, question: Q) -> Said:
        for step in self._first:
            step(asking, question)
        return self.act(asking, question)


@dataclass(frozen=True, kw_only=True)
class Showing(Service[Q], Generic[Q, R]):
    """A question about the certified ledger. `fresh`: only a broker that is not cut off answers it."""

    right: Judged[Q, R]
    show: Callable[[Asking, View, Q, R], Said]
    fresh: bool

    def take(self, asking: Asking, question: Q) -> Said:
        for step in self._first:
            step(asking, question)
        if self.fresh:
            return self.shown(asking, asking.services.fresh_view(), question)
        return self._refusing_freshly(
            asking, lambda: self.shown(asking, asking.services.ledger.view(), question)
        )

    def shown(self, asking: Asking, view: View, question: Q) -> Said:
        """What the caller is shown of this view. Raises `Refused`."""
        return self.show(asking, view, question, self.right.judge(view, asking.caller, question))

    def go_on(self, asking: Asking, work: Work) -> Said:
        if self.fresh:
            return super().go_on(asking, work)
        return self._refusing_freshly(asking, lambda: work.step() or work)

    @staticmethod
    def _refusing_freshly(asking: Asking, answer: Callable[[], Said]) -> Said:
        """Raises `NotReady` instead of a refusal by an old state. Answers show their age by their header; refusals have none."""
        try:
            return answer()
        except Refused:
            asking.services.fresh_view()
            raise


class Table:
    """All services of a broker by their questions. What is decoded, and what an answer costs, follows from them."""

    def __init__(self, services: Iterable[Service[Any]]) -> None:
        """Raises `ValueError` if two services share a question or an answer."""
        self.services = tuple(services)
        self.rows: dict[type[Question], Service[Any]] = {}
        self._work: dict[type[Answer], Callable[[Any], int] | None] = {}
        for service in self.services:
            if service.question in self.rows or any(kind in self._work for kind in service.answers):
                raise ValueError(f"{service.question.__name__} or its answer stands in the table twice")
            self.rows[service.question] = service
            self._work |= dict.fromkeys(service.answers, service.cost.after)
        # Raises `WireError`.
        self.decode: Callable[[bytes], Question] = decoder_of(self.rows)

    def of(self, question: Q) -> Service[Q]:
        service: Service[Q] = self.rows[type(question)]
        return service

    def work(self, answer: Answer) -> int:
        """What it took to build the answer, in bytes."""
        after = self._work[type(answer)]
        return 0 if after is None else after(answer)
