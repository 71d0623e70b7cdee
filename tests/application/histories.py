"""Random histories: whatever clients, administrators, strangers and lying brokers may send, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from tests.application import models
from tests.application.world import ADMINS, ORGANISATIONS, Actor, Signed, World, actor, registration, tagged

from parley.application.operations import Operation
from parley.model.batches import Message
from parley.model.genesis import Limits, Timeouts
from parley.model.names import Value, sorted_pairs
from parley.modules.registry.operations import AlterClient, RegisterClient, RevokeClient
from parley.modules.staging.operations import CommitStage, Source
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy

LEASE = 500
LIMITS = Limits(clients=6, topics=3, subscriptions_per_client=3)
TIMEOUTS = Timeouts(lease=LEASE)

TOPICS = ("orders", "orders", "orders", "orders", "results", "results", "orders/urgent", "notes")
RULES = ("", 'role == "nurse"', 'org != "insurer"', "level >= 2 or admin", 'client in ["c0", "c1"]')
CONSTRAINTS = (
    "",
    "a = 1",
    "a == 1",
    "b != 'x'",
    "a = 1 and b = 'x'",
    "b = 'x' && a = 1",
    "not a = 1",
    "c",
    "false",
)
SESSIONS = (bytes(16), b"1" * 16)
WRITERS = (b"v" * 16, b"w" * 16)
RETENTIONS = (0, 1, 5, 40, 160, 300, 1_000)  # ms; a block takes 1 to 250


class History:
    """Makes batches for a world, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(LIMITS, TIMEOUTS)
        self._people = [actor(f"c{i}", organisation) for i in range(3) for organisation in ORGANISATIONS[:2]]
        self._sent: list[Signed] = []
        self._staged: dict[
            tuple[Actor, str, bytes, int], list[Signed]
        ] = {}  # by who, where, writer and stage; in the order of the first of each
        self._stages: Counter[tuple[Actor, str, bytes]] = Counter()

    def blocks(self, count: int) -> Iterator[tuple[list[Signed], int]]:
        """Batches of a block and its time; each must be applied before the next is asked for."""
        # First something that can go well, or most histories would be about unknown topics.
        yield (
            [
                self._control(ADMINS[p.organisation], self._registration(p, ADMINS[p.organisation]))
                for p in self._people[:4]
            ],
            self._time(),
        )
        yield (
            [
                self._control(
                    ADMINS[ORGANISATIONS[i % 2]],
                    CreateTopic(name, i + 1, Policy(retention=self.random.choice(RETENTIONS)), "", ""),
                )
                for i, name in enumerate(("results", "orders"))
            ],
            self._time(),
        )
        for _ in range(count - 2):
            batches = [self._batch() for _ in range(self.random.randrange(8))]
            if self.random.random() < 0.25:
                batches += self._job()
            yield list({batch.digest: batch for batch in batches}.values()), self._time()

    def _time(self) -> int:
        return self.world.time + self.random.choice((1, 1, 1, 1, 1, 10, 100, LEASE // 2))

    def _batch(self) -> Signed:
        roll = self.random.random()
        if roll < 0.1 and self._sent:
            return self.random.choice(self._sent)  # a client retries, or a broker lies
        if roll < 0.4:
            batch = self._publication()
        elif roll < 0.55:
            batch = self._staged_batch()
        elif roll < 0.65 and self._staged:
            batch = self._commit()
        else:
            author = self.random.choice((self._author(), self._author(), *ADMINS.values()))
            batch = self._control(author, self._operation(author))
        self._sent.append(batch)
        return batch

    def _author(self) -> Actor:
        """Mostly one of those who were registered first."""
        return self.random.choice(self._people[:4] if self.random.random() < 0.8 else self._people)

    def _publication(self) -> Signed:
        pick, author = self.random.choice, self._author()
        return self.world.publication(
            author,
            pick(TOPICS),
            *(self._message() for _ in range(self.random.randrange(1, 4))),
            partition=self.random.choice((0, 0, 0, 1, 2)),
            session=pick(SESSIONS),
            sequence=self._sequence(),
            not_after=self._not_after(),
        )

    def _job(self) -> list[Signed]:
        """Several batches of one stage, mostly with its commit, as Spark would have them ordered."""
        author, topic = self.random.choice(self._people[:2]), self.random.choice(TOPICS[:6])
        batches = [
            self._staged_batch(author, topic, WRITERS[0], valid=50)
            for _ in range(self.random.randrange(1, 6))
        ]
        if self.random.random() < 0.7:
            batches.append(self._commit((author, topic, WRITERS[0], self._stages[author, topic, WRITERS[0]])))
        self._sent += batches
        return batches

    def _staged_batch(
        self, author: Actor | None = None, topic: str = "", writer: bytes = b"", valid: int | None = None
    ) -> Signed:
        pick, late = self.random.choice, author is None and self.random.random() < 0.1
        author, topic, writer = author or self._author(), topic or pick(TOPICS), writer or pick(WRITERS)
        stage = self.random.randrange(4) if late else self._stages[author, topic, writer]
        batch = self.world.staged(
            author,
            topic,
            *(self._message() for _ in range(self.random.randrange(1, 4))),
            stage=stage,
            writer=writer,
            partition=pick((0, 0, 0, 1, 2)),
            not_after=self.world.height + (pick((0, 3, 8, 50, 1_000)) if valid is None else valid),
        )
        self._staged.setdefault((author, topic, writer, stage), []).append(batch)
        return batch

    def _commit(self, key: tuple[Actor, str, bytes, int] | None = None) -> Signed:
        """Mostly of all that was staged, in any order; or of some of it, or of something else, or once more."""
        author, topic, writer, stage = key = key or self.random.choice(list(self._staged))
        batches = [*dict.fromkeys(self._staged[key])]
        if self.random.random() < 0.3:
            self.random.shuffle(batches)
            del batches[self.random.randrange(len(batches) + 1) :]
        if self.random.random() < 0.1:
            batches += self.random.choice(list(self._staged.values()))
        self._stages[author, topic, writer] = max(self._stages[author, topic, writer], stage + 1)
        named = tuple(batch.digest for batch in batches)
        return self._control(author, CommitStage(topic, writer, stage, named, self._source()))

    def _source(self) -> Source:
        """Of few, so that many commits have the same; mostly of none."""
        plan, rows = (self.random.choice((None, None, bytes(32), b"1" * 32)) for _ in range(2))
        return Source(plan, rows)

    def _message(self) -> Message:
        tags: dict[str, Value] = {}
        if self.random.random() < 0.7:
            tags["a"] = self.random.choice((1, 2, True, "1"))
        if self.random.random() < 0.5:
            tags["b"] = self.random.choice(("x", "y"))
        if self.random.random() < 0.3:
            tags["c"] = True
        return tagged(payload=self.random.randbytes(4), **tags)

    def _control(self, author: Actor, operation: Operation) -> Signed:
        return self.world.control(
            author,
            operation,
            session=self.random.choice(SESSIONS),
            sequence=self._sequence(),
            not_after=self._not_after(),
        )

    def _sequence(self) -> int | None:
        """Mostly the next one."""
        return self.random.randrange(6) if self.random.random() < 0.07 else None

    def _not_after(self) -> int | None:
        """Never so short that a line is forgotten and begins anew: the reference does not forget."""
        if self.random.random() < 0.95:
            return None
        return self.random.choice((0, self.world.height, self.world.height + 200_000))

    def _registration(self, person: Actor, author: Actor) -> RegisterClient:
        attributes: dict[str, Value] = {}
        if self.random.random() < 0.5:
            attributes["role"] = self.random.choice(("nurse", "clerk"))
        if self.random.random() < 0.5:
            attributes["level"] = self.random.randrange(4)
        organisation = person.organisation if self.random.random() < 0.1 else author.organisation
        return registration(self.world.chain, person, sorted_pairs(attributes), organisation=organisation)

    def _operation(self, author: Actor) -> Operation:
        pick, person, topic = self.random.choice, self.random.choice(self._people), self.random.choice(TOPICS)
        if self.random.random() < 0.8 and author.name != "admin":
            return pick(
                (
                    Subscribe(topic, pick(CONSTRAINTS)),
                    Subscribe(topic, pick(CONSTRAINTS)),
                    Subscribe(topic, pick(CONSTRAINTS)),
                    Unsubscribe(topic, pick(CONSTRAINTS)),
                    *(file.random_operation(self.random, topic) for file in models.FILES),
                )
            )
        return pick(
            (
                self._registration(person, author),
                self._registration(person, author),
                AlterClient(
                    person.name, sorted_pairs({"level": self.random.randrange(4)}), pick(((), ("role",)))
                ),
                AlterClient(person.name, sorted_pairs({"admin": True}), ()),
                RevokeClient(person.name),
                registration(self.world.chain, person, name="other", organisation=author.organisation),
                CreateTopic(
                    topic,
                    self.random.randrange(1, 4),
                    Policy(retention=pick(RETENTIONS)),
                    pick(RULES),
                    pick(RULES),
                ),
                CreateTopic(topic, 1, Policy(matching=pick(("clear", "sse"))), "", ""),
                AlterTopic(topic, self.random.randrange(1, 4), None, None, pick((None, *RULES))),
                AlterTopic(topic, pick((None, 3)), pick(RETENTIONS), pick((None, *RULES)), None),
                DeleteTopic(topic) if self.random.random() < 0.5 else DeleteTopic("notes"),
            )
        )
