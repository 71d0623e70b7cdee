"""Made-up histories: a story of a small network that is right, and the means to make it wrong in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from parley.chaos.history import (
    Acknowledged,
    Audited,
    Chain,
    Delivered,
    Ended,
    Failed,
    Granted,
    Healed,
    Invoked,
    Read,
    Record,
    Revoked,
    Subscribed,
    Unknown,
)
from parley.model.expressions import parse_constraint, parse_rule
from parley.model.names import Value

TOPIC = "log"
RED = 'colour == "red"'
DOCTORS = 'role == "doctor"'
BOUND = 10.0
BROKERS = ("alpha-1", "beta-1", "gamma-1", "delta-1")


@dataclass
class Story:
    """Tells a history publication by publication: each goes to the end of the log and to all who asked for it."""

    records: list[Record] = field(default_factory=list)
    log: list[Read] = field(default_factory=list)
    subscribers: dict[str, Subscribed] = field(default_factory=dict)
    numbers: Counter[str] = field(default_factory=Counter)
    gone: set[str] = field(default_factory=set)
    now: float = 0.0
    height: int = 1

    def subscribe(self, name: str, where: str, role: str) -> None:
        self.subscribers[name] = Subscribed(self.tick(), name, f"alpha/{name}", TOPIC, where, {"role": role})
        self.records.append(self.subscribers[name])

    def publish(
        self,
        id_: str,
        colour: str = "red",
        *,
        publisher: str = "alpha/anna",
        rule: str = "",
        invoked: bool = True,
        acknowledged: bool = True,
        skip: Collection[str] = (),
        delay: float = 0.0,
    ) -> None:
        tags: dict[str, Value] = {"colour": colour}
        self.height += 1
        if invoked:
            self.records.append(Invoked(self.tick(), id_, publisher, TOPIC, None, tags, rule))
        offset = len(self.log)
        entry = Read(0.0, "alpha/rita", TOPIC, 0, offset, self.height, id_, publisher, False, True)
        self.log.append(entry)
        if acknowledged:
            self.records.append(Acknowledged(self.tick(), id_, 0, offset, self.height))
        for name, one in self.subscribers.items():
            if name in self.gone or not parse_constraint(one.where).matches(tags):
                continue
            ps, self.numbers[name] = self.numbers[name], self.numbers[name] + 1
            if name in skip:
                continue
            empty = bool(rule) and not parse_rule(rule).allows(one.attributes)
            self.records.append(
                Delivered(
                    self.tick() + delay,
                    name,
                    0,
                    ps,
                    offset,
                    self.height,
                    "" if empty else id_,
                    publisher,
                    empty,
                )
            )

    def attempt(self, id_: str, *, refused: bool = False, publisher: str = "alpha/anna") -> None:
        """A publication that comes to nothing: refused, or nobody knows."""
        self.records.append(Invoked(self.tick(), id_, publisher, TOPIC, None, {"colour": "red"}, ""))
        end = Failed(self.tick(), id_, "no") if refused else Unknown(self.tick(), id_, "no answer")
        self.records.append(end)

    def read(self, offset: int) -> None:
        """Somebody reads in the middle of the run."""
        entry = self.log[offset]
        self.records.append(
            Read(
                self.tick(),
                "alpha/rita",
                TOPIC,
                0,
                offset,
                entry.height,
                entry.id,
                entry.publisher,
                False,
                False,
            )
        )

    def grant(self, client: str) -> None:
        self.height += 1
        self.records.append(Granted(self.tick(), client, self.height))

    def revoke(self, client: str) -> None:
        self.height += 1
        self.records.append(Revoked(self.tick(), client, self.height))
        self.gone.add(client.partition("/")[2])

    def heal(self) -> None:
        self.records.append(Healed(self.tick(), BOUND))

    def end(self) -> list[Record]:
        blocks = tuple(f"{height:064x}" for height in range(self.height + 3))
        for broker in BROKERS:
            self.records.append(
                Chain(self.tick(), broker, blocks, len(blocks) - 1, "s" * 64, "h" * 64),
            )
            self.records.append(Audited(self.tick(), broker, len(blocks) - 1, ""))
        return [*self.records, *self.log, Ended(self.tick())]

    def tick(self) -> float:
        self.now = round(self.now + 0.01, 4)
        return self.now


def beginning() -> Story:
    """Three subscribers, a guest that is revoked, publications of every fate; no fault has ended yet."""
    story = Story()
    story.subscribe("dora", RED, "doctor")
    story.subscribe("emil", RED, "doctor")
    story.subscribe("fred", "", "nurse")
    story.grant("alpha/guest")
    story.subscribe("guest", RED, "doctor")
    for number in range(4):
        story.publish(f"a-{number}", "red" if number % 2 == 0 else "blue")
    story.publish("g-0", publisher="alpha/guest")
    story.publish("a-4", rule=DOCTORS)
    story.attempt("a-refused", refused=True)
    story.attempt("a-nobody-knows")
    story.publish("a-unknown", acknowledged=False)
    story.read(2)
    story.revoke("alpha/guest")
    story.attempt("g-late", publisher="alpha/guest")
    story.publish("a-5")
    return story


def middle() -> Story:
    """Everything is well again and something was published since."""
    story = beginning()
    story.heal()
    story.publish("b-0")
    story.publish("b-1", "blue")
    return story


def good() -> list[Record]:
    story = middle()
    story.publish("b-2", rule=DOCTORS)
    return story.end()
