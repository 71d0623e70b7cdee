"""The clients of one run: administrators set the network up and change it on the way, the others use it."""

from __future__ import annotations

from collections.abc import Callable

from parley.application.operations import Operation
from parley.ledger import layout
from parley.model.names import Value, sorted_pairs
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.sim.chance import stream
from parley.sim.observations import Observation, Opened
from parley.sim.pubsub.author import Author
from parley.sim.pubsub.checkers import log_start
from parley.sim.pubsub.people import People, Person
from parley.sim.pubsub.post import Post
from parley.sim.pubsub.roles import Administrator, Misuser, Publisher, Role, Stager, Step, Subscriber, nothing
from parley.sim.world import World

RETENTION = 1_500  # ms of block time
SHORT_LIVED = "feed"  # the topic with that retention
PUBLISHERS = 4
SUBSCRIBERS = 3
STAGERS = 2
PLACES = (
    ("orders", 0),
    ("orders", 1),
    ("orders", 2),
    ("wards", 0),
    (SHORT_LIVED, 0),
    (SHORT_LIVED, 0),
    ("notes", 0),
)
TOPICS = ("orders", "wards", SHORT_LIVED, "notes")
MIDDLE = (4_000, 9_000)  # ms: when clients are altered and revoked


class Workload:
    """Publisher 3 is revoked on the way; it goes on trying, and its name is given to another key."""

    def __init__(self, world: World, seed: int, people: People) -> None:
        self._people = people
        self._seed = seed
        self._post = Post(world)
        self.answers, self.outstanding = self._post.answers, self._post.outstanding
        self._chance = stream(seed, "workload")
        self._publishers = [self._publisher(people.member(f"p{i}", i)) for i in range(PUBLISHERS)]
        self._subscribers = [
            Subscriber(self._author(people.member(f"s{i}", i)), self._post, TOPICS)
            for i in range(SUBSCRIBERS)
        ]
        self._stagers = [self._stager(people.member(f"j{i}", i), i) for i in range(STAGERS)]
        rogue, stranger = people.member("rogue", 0), people.member("stranger", 1)
        self._misuser = Misuser(
            self._author(rogue), self._post, people.member("p0", 0), self._author(stranger)
        )
        self._successor = self._publisher(self._heir())
        self._administrators = [
            Administrator(self._author(admin), self._post, self._plan(admin.organisation))
            for admin in people.administrators
        ]

    def start(self) -> None:
        for administrator in self._administrators:
            administrator.start()

    def stop(self) -> None:
        roles: tuple[Administrator | Role, ...] = (
            *self._administrators,
            *self._publishers,
            *self._subscribers,
            *self._stagers,
            self._misuser,
            self._successor,
        )
        for role in roles:
            role.stop()

    def see(self, event: Observation) -> None:
        self._post.see(event)
        if isinstance(event, Opened):
            happened = self._post.world.happened
            happened["erased"] += sum(1 for _ in event.store.scan(layout.erased(b"")))
            happened["expired"] = max(happened["expired"], log_start(event.store, SHORT_LIVED, 0))

    # -- who does what ----------------------------------------------------------------------------------------

    def _author(self, person: Person, *names: str | int) -> Author:
        chance = stream(self._seed, "client", person.organisation, person.name, *names)
        return Author(self._post, self._people.chain, person, chance)

    def _publisher(self, person: Person) -> Publisher:
        return Publisher(self._author(person, person.key.hex()), self._post, PLACES)

    def _stager(self, person: Person, number: int) -> Stager:
        """One for a topic that stays, one for topics that may go, or whose messages do."""
        places = PLACES if number == 0 else PLACES[4:]
        return Stager(self._author(person), self._post, places)

    def _heir(self) -> Person:
        revoked = self._people.member(f"p{PUBLISHERS - 1}", PUBLISHERS - 1)
        return self._people.person(revoked.name, revoked.organisation, life=1)

    def _plan(self, organisation: str) -> list[Step]:
        """What its administrator does: first the topics, if they are its own, then its clients, then changes."""
        steps = self._topics() if organisation == self._people.organisations[0] else []
        for name, number, start in self._clients():
            person = self._people.member(name, number)
            if person.organisation == organisation:
                steps.append((0, self._people.registration(person, self._attributes()), start))
        steps += [step for owner, step in self._changes() if owner == organisation]
        return steps

    def _clients(self) -> list[tuple[str, int, Callable[[], None]]]:
        return [
            *((f"p{i}", i, publisher.start) for i, publisher in enumerate(self._publishers)),
            *((f"s{i}", i, subscriber.start) for i, subscriber in enumerate(self._subscribers)),
            *((f"j{i}", i, stager.start) for i, stager in enumerate(self._stagers)),
            ("rogue", 0, self._misuser.start),
        ]

    def _topics(self) -> list[Step]:
        return [
            _step(0, CreateTopic("orders", 2, Policy(), "", "")),
            _step(0, CreateTopic("wards", 1, Policy(), 'role == "nurse"', "level >= 1")),
            _step(0, CreateTopic(SHORT_LIVED, 1, Policy(retention=RETENTION), "", "")),
            _step(0, CreateTopic("notes", 1, Policy(), "", "")),
        ]

    def _attributes(self) -> tuple[tuple[str, Value], ...]:
        role = self._chance.choice(("nurse", "nurse", "clerk"))
        return sorted_pairs({"role": role, "level": self._chance.randrange(4)})

    def _changes(self) -> list[tuple[str, Step]]:
        """Each with the organisation whose administrator makes it."""
        first = self._people.organisations[0]
        heir = self._heir()
        altered = self._people.member("p1", 1)
        reader = self._people.member("s0", 0)
        changes = [
            (first, _step(self._when(), AlterTopic("orders", 3, None, None, None))),
            (first, _step(self._when(), AlterClient(reader.name, sorted_pairs({"level": 3}), ("role",)))),
            (altered.organisation, _step(self._when(), AlterClient(altered.name, (), ("role",)))),
            (heir.organisation, _step(self._when(), RevokeClient(heir.name))),
            (
                heir.organisation,
                (0, self._people.registration(heir, self._attributes()), self._successor.start),
            ),
        ]
        if self._chance.random() < 0.5:
            changes.append((first, _step(MIDDLE[1], DeleteTopic("notes"))))
        return changes

    def _when(self) -> int:
        return self._chance.randint(*MIDDLE)


def _step(at: int, operation: Operation) -> Step:
    return at, operation, nothing
