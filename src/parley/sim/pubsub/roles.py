"""What the clients of a simulated network do: administer, publish, subscribe, and misuse what they can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from parley.application.operations import Operation, encode_operation
from parley.model.batches import CONTROL, PUBLISH, Message, MessageHeader, encode
from parley.model.expressions import parse_rule
from parley.model.names import Position, Value
from parley.model.receipts import BatchReceipt
from parley.model.refusals import DUPLICATE
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.receipts import is_staged
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.sim.pubsub.author import Author, tagged
from parley.sim.pubsub.people import LEASE, Person
from parley.sim.pubsub.post import Post

CONSTRAINTS = ("", "a = 1", "b = 'x'", "a = 1 and b = 'x'", "not a = 1", "c")
RULES = tuple(parse_rule(text).text for text in ("", "", "", "level >= 2", 'role == "nurse"'))
MAX_MESSAGES = 3
WINDOW = 3  # batches of a publisher that may be undecided
MAX_STAGED = 5  # batches of a stage
STAGED_SHORT, STAGED_LONG = 6, 200  # heights until they expire

Place = tuple[str, int]  # topic, partition
Step = tuple[
    int, Operation, Callable[[], None]
]  # not before this time, what, and what follows when it is decided


class Role(ABC):
    """Acts again and again, after a while each time, until it is stopped."""

    pauses = (150, 900)

    def __init__(self, author: Author, post: Post) -> None:
        self._author = author
        self._post = post
        self._chance = author.chance
        self._stopped = False
        self.started = False

    def start(self) -> None:
        if not self.started:
            self.started = True
            self._post.world.after(self._chance.randint(*self.pauses), self._turn)

    def stop(self) -> None:
        self._stopped = True

    @abstractmethod
    def act(self) -> None:
        """One thing that a client in this role does."""

    def _turn(self) -> None:
        if not self._stopped:
            self.act()
            self._post.world.after(self._chance.randint(*self.pauses), self._turn)


class Administrator:
    """Goes through its list, one operation after the other."""

    def __init__(self, author: Author, post: Post, steps: Iterable[Step]) -> None:
        self._author = author
        self._post = post
        self._steps = deque(steps)

    def start(self) -> None:
        if self._steps:
            self._post.world.after(max(0, self._steps[0][0] - self._post.world.now), self._next)

    def stop(self) -> None:
        self._steps.clear()

    def _next(self) -> None:
        if self._steps:
            _, operation, follow = self._steps.popleft()
            self._author.operate(operation, lambda _receipt: self._done(follow))

    def _done(self, follow: Callable[[], None]) -> None:
        follow()
        self.start()


class Publisher(Role):
    """Publishes to any place, up to `WINDOW` batches at a time; brokers may order them the wrong way round."""

    def __init__(self, author: Author, post: Post, places: tuple[Place, ...]) -> None:
        super().__init__(author, post)
        self._places = places

    def act(self) -> None:
        if self._author.waiting < WINDOW:
            topic, partition = self._chance.choice(self._places)
            messages = tuple(message(self._chance) for _ in range(self._chance.randint(1, MAX_MESSAGES)))
            self._author.publish(topic, partition, messages, enough)


class Stager(Role):
    """Stages batches and commits them, as a Spark job does that fails now and then: after a failure it stages again."""

    pauses = (100, 500)

    def __init__(self, author: Author, post: Post, places: tuple[Place, ...]) -> None:
        super().__init__(author, post)
        self._places = places
        self._topic = places[0][0]
        self._stage = 0
        self._staged: list[bytes] = []
        self._commit: CommitStage | None = None

    def act(self) -> None:
        if self._author.waiting:
            return
        roll = self._chance.random()
        if self._commit is not None and roll < 0.05:
            self._come_late(self._commit)
        elif self._commit is not None and roll < 0.3:
            self._author.operate(self._commit, enough)  # the driver does not know that it has committed
        elif self._staged and roll < 0.8:
            self._chance.shuffle(self._staged)
            kept = self._staged[: self._chance.randint(0, len(self._staged))] if roll < 0.4 else self._staged
            topic_id = self._post.topic_id(self._topic)
            self._commit = CommitStage(
                self._topic, self._author.session, self._stage, tuple(kept), topic_id=topic_id
            )
            self._author.operate(self._commit, self._committed)
        else:
            self._staged = []
            self._topic, _ = self._chance.choice(self._places)
            for _ in range(self._chance.randint(1, MAX_STAGED)):
                place = self._chance.choice([one for one in self._places if one[0] == self._topic])
                messages = tuple(message(self._chance) for _ in range(self._chance.randint(1, MAX_MESSAGES)))
                valid = self._chance.choice((STAGED_SHORT, STAGED_LONG, STAGED_LONG))
                self._author.stage(place, messages, self._stage, valid, self._noted)

    def _come_late(self, committed: CommitStage) -> None:
        """A task that the driver has given up stages its batch after the commit."""
        place = self._chance.choice([one for one in self._places if one[0] == committed.topic])
        self._author.stage(place, (message(self._chance),), committed.stage, STAGED_LONG, enough)

    def _noted(self, receipt: BatchReceipt) -> None:
        if is_staged(receipt) or receipt.code == DUPLICATE:
            self._staged.append(receipt.digest)

    def _committed(self, receipt: BatchReceipt) -> None:
        """What was refused is staged again, as the next stage or as the same."""
        self._staged = []
        if receipt.is_done:
            self._post.world.happened["stages"] += 1
            self._stage += self._chance.choice((1, 1, 2))
        else:
            self._commit = None


class Subscriber(Role):
    """Subscribes, renews before the lease ends or lets it lapse, and unsubscribes."""

    pauses = (300, LEASE // 2)

    def __init__(self, author: Author, post: Post, topics: tuple[str, ...]) -> None:
        super().__init__(author, post)
        self._topics = topics
        self._held: list[tuple[str, str]] = []

    def act(self) -> None:
        if self._author.waiting:
            return
        roll = self._chance.random()
        if self._held and roll < 0.5:
            self._author.operate(Subscribe(*self._named(self._chance.choice(self._held))), enough)
        elif self._held and roll < 0.6:
            self._author.operate(Unsubscribe(*self._named(self._held.pop())), enough)
        else:
            subscription = (self._chance.choice(self._topics), self._chance.choice(CONSTRAINTS))
            self._held.append(subscription)
            self._author.operate(Subscribe(*self._named(subscription)), enough)

    def _named(self, subscription: tuple[str, str]) -> tuple[str, str, Position]:
        return *subscription, self._post.topic_id(subscription[0])


class Misuser(Role):
    """A registered client that tries what must be refused, and waits for no receipt."""

    pauses = (500, 2500)

    def __init__(self, author: Author, post: Post, victim: Person, stranger: Author) -> None:
        super().__init__(author, post)
        self._victim = victim
        self._stranger = stranger

    def act(self) -> None:
        repeat = partial(self._post.repeat, self._chance)
        self._chance.choice(
            (
                self._reuse_a_sequence,
                partial(self._begin_a_session, self._author, 7),  # leaves a gap
                partial(self._deceive, publisher=self._victim.key),  # signs for another
                self._send_garbage,
                partial(self._deceive, chain=bytes(32)),  # means another network
                partial(self._begin_a_session, self._author, 0, not_after=1),  # comes too late
                partial(self._begin_a_session, self._stranger, 0),  # is not registered
                self._overreach,
                repeat,
                repeat,
                repeat,
            )
        )()

    def _reuse_a_sequence(self) -> None:
        """Two batches for one place: brokers must agree which one it is."""
        session = self._chance.randbytes(16)
        for _ in range(2):
            signed = self._author.sign(_ORDERS, (message(self._chance),), 0, session=session)
            self._post.throw_in(*signed, self._chance, brokers=2)

    def _begin_a_session(self, author: Author, sequence: int, not_after: int | None = None) -> None:
        session = self._chance.randbytes(16)
        signed = author.sign(
            _ORDERS, (message(self._chance),), sequence, session=session, not_after=not_after
        )
        self._post.throw_in(*signed, self._chance)

    def _deceive(self, *, chain: bytes | None = None, publisher: bytes | None = None) -> None:
        """The batch says that it is for another network, or from another client, than it is."""
        _, body = self._author.sign(_ORDERS, (message(self._chance),), 0, chain=chain, publisher=publisher)
        self._post.throw_in(None, body, self._chance)

    def _send_garbage(self) -> None:
        _, body = self._author.sign(_ORDERS, (message(self._chance),), 0)
        cut = self._chance.randrange(1, len(body))
        self._post.throw_in(
            None, self._chance.choice((body[:cut], self._chance.randbytes(cut))), self._chance
        )

    def _overreach(self) -> None:
        """Only administrators may, and only their own clients; and no client commits what another one has staged."""
        orders, wards = map(self._post.topic_id, ("orders", "wards"))
        writer, named = self._chance.randbytes(16), (self._chance.randbytes(32),)
        commit = CommitStage("orders", writer, 0, named, topic_id=orders)
        operation = encode_operation(self._chance.choice((Subscribe("wards", "a = 1", wards), commit)))
        salt, header = self._chance.randbytes(16), encode(MessageHeader())
        session = self._chance.randbytes(16)
        signed = self._author.sign(
            (CONTROL, "", 0), (Message(salt, header, "", operation),), 0, session=session
        )
        self._post.throw_in(*signed, self._chance)


def message(chance: Random) -> Message:
    tags: dict[str, Value] = {}
    if chance.random() < 0.7:
        tags["a"] = chance.choice((1, 2))
    if chance.random() < 0.5:
        tags["b"] = chance.choice(("x", "y"))
    if chance.random() < 0.3:
        tags["c"] = True
    return tagged(chance, chance.randbytes(chance.randint(0, 48)), chance.choice(RULES), **tags)


def enough(receipt: BatchReceipt) -> None:
    del receipt  # whatever it says, the batch is decided


def nothing() -> None:
    """For steps after which there is nothing to do."""


_ORDERS = (PUBLISH, "orders", 0)
