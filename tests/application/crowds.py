"""Crowds that do anything, in worlds whose limits are low."""

from __future__ import annotations

from random import Random

from tests.application.codes import (
    HEAD,
    INSURER,
    LEAST,
    MALLORY,
    OTHER,
    A,
    Advertise,
    AlterClient,
    AlterTopic,
    B,
    CommitStage,
    CreateTopic,
    DeleteTopic,
    GrantRight,
    Operation,
    Policy,
    RegisterClient,
    RevokeClient,
    RevokeRight,
    Said,
    Source,
    Story,
    Subscribe,
    Unsubscribe,
    limited,
)
from tests.application.world import ADMINS, WRITER, Actor, Signed, actor, pairs, registration, tagged

from parley.model.batches import MAX_NOT_AFTER, Message
from parley.model.genesis import Limits, Timeouts
from parley.model.names import Value, sorted_pairs

TIGHT = {
    "lines": 10,
    "strangers": 4,
    "orders": 18,
    "unguarded": 2,
    "waiting": 3,
    "advertised": 2,
    "staged of client": 4 * LEAST,
    "staged": 12 * LEAST - 3,
    "writers of client": 2,
    "writers": 6,
    "compared of batch": 30 + 4 * HEAD,
    "work of block": 40,
    "numbered": 2,
}
NAMES = ("one", "one", "one", "two", "two", "three", "far/away")
ASKED = (
    "",
    "a = 1",
    "a == 1",
    "a = 1 and b != 'x'",
    "a = 1 and b != 'y'",
    "a in [1, 2]",
    "b != 'x'",
    "a != 2",
)
GIVEN = (
    "",
    "",
    "level >= 2",
    'org != "insurer"',
    'role == "nurse" or admin',
    "false",
    'client in ["c0", "c1"]',
)


class Crowd:
    """Everybody does anything, from one seed; some limits are low."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.story = Story(Limits(clients=10, topics=5, subscriptions_per_client=3), Timeouts(lease=400))
        self.world = self.story.world
        self._people = [actor(f"c{n}", organisation) for n in range(3) for organisation in (A, B, INSURER)]
        self._sent: list[Signed] = []
        self._staged: list[tuple[Actor, str, bytes, int, Signed]] = []

    def run(self, blocks: int) -> list[Said]:
        for who in self._people[:4]:
            self.story.register(who, level=self.random.randrange(4))
        for name, organisation in (("one", A), ("two", B)):
            self.story.topic(name, organisation, partitions=2)
        for _ in range(blocks):
            batches = [self._batch() for _ in range(self.random.randrange(9))]
            time = self.world.time + self.random.choice((1, 1, 1, 1, 10, 150))
            self.story.order(*{batch.digest: batch for batch in batches}.values(), time=time)
        return self.story.said

    def _batch(self) -> Signed:
        roll = self.random.random()
        if roll < 0.12 and self._sent:
            return self.random.choice(self._sent)
        if roll < 0.3:
            made = self._publication()
        elif roll < 0.45:
            made = self._stage()
        elif roll < 0.55:
            made = self._commit()
        else:
            made = self._control(*self._operation())
        self._sent.append(made)
        return made

    def _someone(self) -> Actor:
        roll = self.random.random()
        if roll < 0.1:
            return self.random.choice((MALLORY, *ADMINS.values()))
        return self.random.choice(self._people[:4] if roll < 0.8 else self._people)

    def _messages(self) -> list[Message]:
        tags: list[dict[str, Value]] = [{}, {"a": 1}, {"a": 1, "b": "x"}, {"a": True}, {"b": "y", "c": 1}]
        return [
            tagged(payload=self.random.randbytes(3), **self.random.choice(tags))
            for _ in range(self.random.choice((1, 1, 2, 3, 6)))
        ]

    def _publication(self) -> Signed:
        return self.world.publication(
            self._someone(),
            self.random.choice(NAMES),
            *self._messages(),
            partition=self.random.choice((0, 0, 0, 1, 2)),
            session=self.random.choice((bytes(16), bytes(16), OTHER)),
            sequence=self._sequence(),
            not_after=self._not_after(),
        )

    def _stage(self) -> Signed:
        who, topic = self._someone(), self.random.choice(NAMES[:5])
        writer, stage = self.random.choice((WRITER, WRITER, OTHER)), self.world.height // 6
        made = self.world.staged(
            who,
            topic,
            *self._messages(),
            stage=stage,
            writer=writer,
            partition=self.random.choice((0, 0, 1, 2)),
            not_after=self.world.height + self.random.choice((1, 5, 30, 30)),
        )
        self._staged.append((who, topic, writer, stage, made))
        return made

    def _commit(self) -> Signed:
        """Of the newest that was staged, or of something else."""
        if not self._staged:
            return self._control(self._someone(), CommitStage("one", WRITER, 0, ()))
        newest = self._staged[-self.random.randrange(1, min(6, len(self._staged)) + 1)]
        who, topic, writer, stage, _ = newest
        batches = [one[-1].digest for one in self._staged if one[:4] == newest[:4]]
        if self.random.random() < 0.1:
            batches.append(self.random.choice(self._staged)[-1].digest)
        if self.random.random() < 0.05:
            writer = self.random.randbytes(16)
        source = Source(
            self.random.choice((None, bytes(32))), self.random.choice((None, bytes(32), b"1" * 32))
        )
        return self._control(who, CommitStage(topic, writer, stage, tuple(batches), source))

    def _control(self, author: Actor, operation: Operation) -> Signed:
        return self.world.control(
            author,
            operation,
            session=self.random.choice((bytes(16), bytes(16), bytes(16), OTHER)),
            sequence=self._sequence(),
            not_after=self._not_after(),
        )

    def _sequence(self) -> int | None:
        return self.random.randrange(8) if self.random.random() < 0.05 else None

    def _not_after(self) -> int | None:
        if self.random.random() < 0.85:
            return None
        return self.world.height + self.random.choice((-1, 0, 1, 4, 12, MAX_NOT_AFTER + 1, MAX_NOT_AFTER + 2))

    def _operation(self) -> tuple[Actor, Operation]:
        pick, topic, person = self.random.choice, self.random.choice(NAMES), self.random.choice(self._people)
        if self.random.random() < 0.4:
            asked = pick(ASKED)
            return self._someone(), pick(
                (
                    Subscribe(topic, asked),
                    Subscribe(topic, asked),
                    Unsubscribe(topic, asked),
                    Advertise(topic, pick(("", "beds", "beds"))),
                )
            )
        author = ADMINS[person.organisation] if self.random.random() < 0.85 else self._someone()
        return author, pick(
            (
                self._registration(person, author),
                self._registration(person, author),
                AlterClient(person.name, pairs(level=self.random.randrange(4)), pick(((), ("role",)))),
                AlterClient(person.name, self._attributes(), pick(((), ("level",), ("client",)))),
                AlterClient(person.name, pairs(**{f"x{n}": n for n in range(pick((40, 64)))}), ()),
                RevokeClient(person.name) if self.random.random() < 0.4 else RevokeClient("nobody"),
                GrantRight(person.name, "auditor"),
                RevokeRight(person.name, "auditor"),
                CreateTopic(topic, self.random.randrange(1, 4), self._policy(), pick(GIVEN), pick(GIVEN)),
                CreateTopic(topic, 2, self._policy(), "", ""),
                AlterTopic(topic, pick((None, 1, 2, 3)), pick((None, 0, 50)), pick((None, *GIVEN)), None),
                AlterTopic(topic, pick((None, 2, 4)), None, None, pick((None, *GIVEN))),
                DeleteTopic(topic) if self.random.random() < 0.4 else DeleteTopic("none"),
            )
        )

    def _attributes(self) -> tuple[tuple[str, Value], ...]:
        choices: tuple[dict[str, Value], ...] = (
            {},
            {"level": 3},
            {"role": "nurse"},
            {"admin": True},
            {"org": A},
        )
        return sorted_pairs(self.random.choice(choices))

    def _policy(self) -> Policy:
        plain = Policy(retention=self.random.choice((0, 0, 5, 200)))
        return self.random.choice((plain,) * 6 + (Policy("sse"), Policy(payload="shared")))

    def _registration(self, person: Actor, author: Actor) -> RegisterClient:
        roll = self.random.random()
        if roll < 0.1:
            person = self.random.choice([*ADMINS.values()])
        if roll < 0.2:
            return registration(self.world.chain, person, name="other", organisation=author.organisation)
        organisation = person.organisation if roll < 0.3 else author.organisation
        return registration(self.world.chain, person, self._attributes(), organisation=organisation)


def crowd(seed: int) -> list[Said]:
    random = Random(f"crowd {seed}")
    low = {word: value for word, value in TIGHT.items() if seed % 4 and random.random() < 0.7}
    with limited(low):
        return Crowd(random).run(36)
