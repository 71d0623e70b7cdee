"""One organisation whose administrator and clients ask, within their rights, for all that is expensive to execute.

Simulated machines are `SCALE` times slower than real ones in these runs, so that everything can be as many times smaller:
the attacks here, and the limits of a block with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parley.application.operations import Operation
from parley.model.batches import PUBLISH
from parley.model.names import Value
from parley.model.receipts import BatchReceipt
from parley.modules.registry.operations import RevokeClient
from parley.modules.staging.operations import CommitStage
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, Policy
from parley.sim.pubsub.author import Author, tagged
from parley.sim.pubsub.people import People, Person
from parley.sim.pubsub.post import Post
from parley.sim.pubsub.roles import Administrator, Role, Step, enough, message, nothing

SCALE = 4
WIDE = "wide"  # a topic with many partitions
COSTLY = "costly"  # a topic whose messages are expensive to match
# A quarter of what may be: all orders of a subscription end in one block, and 64 of them would be two thirds of its budget here.
PARTITIONS = 16
TOPICS = 3  # that get more partitions at a time
CONSTRAINTS = (24, 40)  # of each of them
CHURNED = (3, 6)  # subscriptions that begin and end at once
STAGED = 24  # batches of a stage
STAGED_HEIGHTS = 1_000
EARLY = 6  # batches with a wrong sequence, at a time
UNGUARDED, TERMS = 24, 20  # constraints that are evaluated for every message, and the comparisons of each
MATCHED = (2, 16)  # batches at a time and messages of each

Enlist = Callable[[Person, str], Author]  # a session of a client, for a role


class Expensive:
    """All that the organisation does, until it is stopped. No one else waits for its receipts."""

    def __init__(self, post: Post, people: People, organisation: str, enlist: Enlist) -> None:
        self._people = people
        self._organisation = organisation
        self._enlist = enlist
        admin = next(one for one in people.administrators if one.organisation == organisation)
        self._roles: dict[str, Role] = {
            "dear-churn": Churner(self._author("dear-churn"), post),
            "dear-stage": BulkStager(self._author("dear-stage"), post),
            "dear-early": EarlyBird(self._author("dear-early"), post),
            "dear-match": Matcher(self._author("dear-match"), post),
        }
        self._widener = Widener(enlist(admin, "widener"), post, self._newcomer)
        self._administrator = Administrator(enlist(admin, "setup"), post, self._steps())

    def start(self) -> None:
        self._administrator.start()

    @property
    def acts(self) -> bool:
        """Whether all of its clients are registered, and its administrator has widened the first topics."""
        return self._widener.struck and all(role.started for role in self._roles.values())

    def stop(self) -> None:
        self._administrator.stop()
        for role in (self._widener, *self._roles.values()):
            role.stop()

    def _steps(self) -> list[Step]:
        """Topics first, then the clients, each of which begins when it is registered."""
        return [
            (0, CreateTopic(WIDE, PARTITIONS, Policy(), "", ""), nothing),
            (0, CreateTopic(COSTLY, 1, Policy(), "", ""), self._widener.start),
            *((0, self._registration(name), role.start) for name, role in self._roles.items()),
        ]

    def _newcomer(self, name: str) -> tuple[Operation, Author]:
        return self._registration(name), self._author(name)

    def _registration(self, name: str) -> Operation:
        return self._people.registration(self._people.person(name, self._organisation), ())

    def _author(self, name: str) -> Author:
        return self._enlist(self._people.person(name, self._organisation), name)


class Widener(Role):
    """An administrator who gives topics with many constraints many partitions, and revokes the subscribers at once."""

    pauses = (2_000, 4_000)

    def __init__(
        self, author: Author, post: Post, newcomer: Callable[[str], tuple[Operation, Author]]
    ) -> None:
        super().__init__(author, post)
        self._newcomer = newcomer
        self._rounds = 0
        self._missing = 0  # receipts before the next step
        self.struck = False  # whether it has done so once

    def act(self) -> None:
        if self._missing:
            return
        self._rounds += 1
        constraints = [self._chance.randint(*CONSTRAINTS) for _ in range(TOPICS)]
        self._missing = sum(constraints)
        for number, count in enumerate(constraints):
            topic, client = f"tall-{self._rounds}-{number}", f"dear-{self._rounds}-{number}"
            register, subscriber = self._newcomer(client)
            self._author.operate(CreateTopic(topic, 1, Policy(), "", ""), enough)
            self._author.operate(register, partial(self._registered, topic, subscriber, count))

    def _registered(self, topic: str, subscriber: Author, constraints: int, _receipt: BatchReceipt) -> None:
        for number in range(constraints):
            wanted = Subscribe(topic, f"k = {number}", self._post.topic_id(topic))
            subscriber.operate(wanted, self._subscribed)

    def _subscribed(self, _receipt: BatchReceipt) -> None:
        self._missing -= 1
        if self._missing:
            return
        self._missing = 2 * TOPICS
        self.struck = True
        for number in range(TOPICS):
            topic, client = f"tall-{self._rounds}-{number}", f"dear-{self._rounds}-{number}"
            self._author.operate(AlterTopic(topic, PARTITIONS, None, None, None), self._done)
            self._author.operate(RevokeClient(client), self._done)

    def _done(self, _receipt: BatchReceipt) -> None:
        self._missing -= 1


class Churner(Role):
    """Subscribes to a topic with many partitions and leaves at once, again and again."""

    pauses = (800, 2_000)

    def act(self) -> None:
        if self._author.waiting:
            return
        for _ in range(self._chance.randint(*CHURNED)):
            asked = (WIDE, f"k = {self._chance.randrange(2)}", self._post.topic_id(WIDE))
            self._author.operate(Subscribe(*asked), enough)
            self._author.operate(Unsubscribe(*asked), enough)


class BulkStager(Role):
    """Commits stages that take the numbering of many blocks."""

    pauses = (1_000, 2_000)

    def __init__(self, author: Author, post: Post) -> None:
        super().__init__(author, post)
        self._stage = 0

    def act(self) -> None:
        if self._author.waiting:
            return
        places = [(WIDE, self._chance.randrange(PARTITIONS)) for _ in range(STAGED)]
        digests = [
            self._author.stage(place, (message(self._chance),), self._stage, STAGED_HEIGHTS, self._staged)
            for place in places
        ]
        topic_id = self._post.topic_id(WIDE)
        self._commit = CommitStage(WIDE, self._author.session, self._stage, tuple(digests), topic_id=topic_id)
        self._stage += 1

    def _staged(self, _receipt: BatchReceipt) -> None:
        if not self._author.waiting:
            self._author.operate(self._commit, enough)


class EarlyBird(Role):
    """Sends batches whose turn never comes, each in a session of its own: they are ordered, put off and ordered again."""

    pauses = (1_000, 2_000)

    def act(self) -> None:
        for _ in range(EARLY):
            session = self._chance.randbytes(16)
            signed = self._author.sign((PUBLISH, WIDE, 0), (message(self._chance),), 7, session=session)
            self._post.throw_in(*signed, self._chance)


class Matcher(Role):
    """Makes messages as expensive to match as it may, and publishes some that match nothing."""

    pauses = (600, 1_500)

    def __init__(self, author: Author, post: Post) -> None:
        super().__init__(author, post)
        self._subscribed = False

    def act(self) -> None:
        if self._author.waiting:
            return
        if not self._subscribed:
            self._subscribed = True
            for number in range(UNGUARDED):
                terms = (f"z{term} != {number}" for term in range(TERMS))
                wanted = Subscribe(COSTLY, " and ".join(terms), self._post.topic_id(COSTLY))
                self._author.operate(wanted, enough)
            return
        batches, messages = MATCHED
        tags: dict[str, Value] = {f"z{TERMS - 1}": self._chance.randrange(UNGUARDED)}
        for _ in range(batches):
            costly = tuple(tagged(self._chance, b"", "", **tags) for _ in range(messages))
            self._author.publish(COSTLY, 0, costly, enough)
