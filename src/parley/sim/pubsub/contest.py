"""The clients of a run in which one organisation asks for all that is expensive, and a bystander must not wait for it."""

from __future__ import annotations

from parley.sim.chance import stream
from parley.sim.observations import Observation
from parley.sim.pubsub.author import Author
from parley.sim.pubsub.bystander import Bystander
from parley.sim.pubsub.expensive import Expensive
from parley.sim.pubsub.people import People, Person
from parley.sim.pubsub.post import Post
from parley.sim.pubsub.workload import Workload
from parley.sim.world import World

A_WHILE = 6_000  # ms


class Contest:
    """The usual clients until the faults end; the expensive organisation from the beginning until the bystander is served.

    The bystander begins when the faults are over and all of the expensive organisation is at work, or a while later.
    """

    def __init__(self, world: World, seed: int, people: People) -> None:
        self._world = world
        self._seed, self._chain = seed, people.chain
        self._usual = Workload(world, seed, people)
        self.answers = self._usual.answers
        self._healed = False
        self._costly, self._plain = Post(world), Post(world)
        own, others = people.administrators[0], people.organisations[-1]
        self._expensive = Expensive(self._costly, people, others, self._enlist)
        person = people.person("bystander", own.organisation)
        self._bystander = Bystander(
            self._plain, people, self._author(self._plain, own), self._author(self._plain, person)
        )

    def start(self) -> None:
        self._bystander.start()
        self._expensive.start()
        self._usual.start()

    def stop(self) -> None:
        self._usual.stop()
        self._healed = True
        self._world.after(A_WHILE, self._bystander.begin)

    def outstanding(self) -> tuple[bytes, ...]:
        return self._usual.outstanding() or self._bystander.unserved

    def see(self, event: Observation) -> None:
        self._usual.see(event)
        self._costly.see(event)
        self._plain.see(event)
        if self._healed and self._expensive.acts:
            self._bystander.begin()
        if not self._bystander.unserved:
            self._expensive.stop()

    def _enlist(self, person: Person, role: str) -> Author:
        return self._author(self._costly, person, role)

    def _author(self, post: Post, person: Person, role: str = "bystander") -> Author:
        chance = stream(self._seed, "contest", role, person.organisation, person.name)
        return Author(post, self._chain, person, chance, cautious=post is self._plain)
