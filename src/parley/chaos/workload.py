"""The clients of a run: who they are, what each of them does, and what has to be waited for at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial

from parley.chaos import actors, bystander
from parley.chaos.actors import Person, Publishing, Scene
from parley.chaos.facts import Facts
from parley.chaos.history import Caught, Granted, History, Revoked
from parley.chaos.network import Network, until
from parley.client import Client, connect, errors
from parley.client.errors import ParleyError
from parley.model.credentials import Identity

RED = 'colour == "red"'
PEOPLE = {
    "anna": "doctor",
    "ben": "doctor",
    "carl": "doctor",
    "rita": "doctor",
    "dora": "doctor",
    "emil": "doctor",
    "fred": "nurse",
    "gina": "doctor",
    "guest": "doctor",
}
CENSORED = "alpha/anna"
GOODBYE = 2.0  # seconds that a revoked client goes on trying


class Workload:
    """From `prepare` to `finish`; everything that happens is added to the history."""

    def __init__(
        self, network: Network, history: History, seed: int, organisations: Sequence[str] | None = None
    ) -> None:
        self._network = network
        self._history = history
        self._scene = Scene(history, random.Random(seed))
        organisations = organisations or [one.name for one in network.genesis.organisations]
        # Each at another organisation than the one before, so that all brokers are somebody's first choice.
        self._people = {
            name: Person(name, organisations[place % len(organisations)], role)
            for place, (name, role) in enumerate(PEOPLE.items())
        }
        self._identities = {
            name: network.identity(person.organisation, name) for name, person in self._people.items()
        }
        self._clients: dict[str, Client] = {}
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._welcome = asyncio.Event()  # the guest may come
        self._barred = asyncio.Event()  # it has to go
        self._gone = asyncio.Event()  # it has gone

    # -- phases ------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Topics, registered clients, and everybody connected."""
        people = self._people.values()
        for organisation in dict.fromkeys(person.organisation for person in people):
            await self._join(f"{organisation}/admin", self._network.administrator(organisation))
        owner = self._admin(self._people["anna"])
        for topic, partitions in actors.TOPICS.items():
            await owner.create_topic(topic, partitions=partitions, publish=actors.DOCTORS)
        await asyncio.gather(*(self._register(person) for person in people))
        await asyncio.gather(
            *(
                self._join(person.title, self._identities[person.name])
                for person in people
                if person.name != "guest"
            )
        )

    async def bystander(self, organisation: str) -> Client:
        """A client of this organisation that has nothing to do with all the others, and topics of its own."""
        admin = self._clients[f"{organisation}/admin"]
        identity = self._network.identity(organisation, bystander.NAME)
        await admin.register_client(bystander.NAME, identity.credential.key, proof=identity.proof())
        for topic in bystander.TOPICS:
            await admin.create_topic(topic)
        title = f"{organisation}/{bystander.NAME}"
        await self._join(title, identity)
        return self._clients[title]

    def begin(self) -> None:
        """Everybody gets to work."""
        self._welcome.set()
        self._do(self._publish("anna", Publishing("orders", every=0.25, keys=True)))
        self._do(self._publish_in_batches("ben", Publishing("orders", every=0.12)))
        self._do(self._publish("carl", Publishing("notes", every=0.3, rules=True)))
        self._do(self._publish("fred", Publishing("orders", every=2.0)))  # a nurse, who may not
        self._do(self._subscribe("dora", "orders", RED))
        self._do(self._subscribe("emil", "orders", RED))
        self._do(self._subscribe("gina", "orders", RED, wanders=True))
        self._do(self._subscribe("dora", "orders", ""))
        self._do(self._subscribe("emil", "notes", ""))
        self._do(self._subscribe("fred", "notes", ""))
        self._do(actors.read(self._scene, self._people["rita"], self._client("rita"), every=1.0))
        self._do(actors.administrate(self._scene, self._admin(self._people["fred"]), "fred", every=1.5))
        self._do(self._receive_guest())

    async def revoke_guest(self) -> None:
        person = self._people["guest"]
        admin = self._admin(person)
        try:
            height = await self._surely(lambda: admin.revoke_client(person.name))
        except errors.UnknownClient:  # an attempt that got no answer has succeeded, at the latest now
            height = admin.height
        self._history.add(Revoked(self._history.now, person.title, height))
        self._welcome.clear()
        self._barred.set()

    async def welcome_guest(self) -> None:
        """Under the same name with a new key: a revoked key never becomes valid again."""
        await self._gone.wait()
        person = self._people["guest"]
        self._identities["guest"] = self._network.identity(person.organisation, "guest")
        await self._register(person)
        self._barred.clear()
        self._welcome.set()

    async def settle(self, seconds: float) -> bool:
        """Begin nothing new, and wait for the publications under way; whether all of them were answered in time."""
        self._scene.stop.set()
        return await until(lambda: not self._scene.flights, seconds)

    async def read_all(self) -> None:
        """The whole log, by somebody who may see everything."""
        rita = self._people["rita"]
        for topic, partitions in actors.TOPICS.items():
            for partition in range(partitions):
                async for message in self._client("rita").fetch(topic, partition=partition, withheld="yield"):
                    actors.seen(self._history, rita, message, final=True)

    async def hand_out(self, seconds: float) -> bool:
        """Whether all subscribers have what they asked for in time."""
        facts, got = Facts(self._history.records), self._scene.got
        wanted = {
            one.subscription: {(entry.partition, entry.offset) for entry in facts.matching(one)}
            for one in facts.subscriptions.values()
            if facts.is_entitled(one)
        }
        return await until(lambda: all(wanted[name] <= got[name] for name in wanted), seconds)

    async def heights(self) -> dict[str, int]:
        """How far each broker says it is; -1 if it is not ready."""
        return {
            one.name: one.status.height if one.status is not None and one.status.state == "ready" else -1
            for one in await self._client("rita").status()
        }

    async def finish(self) -> None:
        """Everybody leaves."""
        self._scene.stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for title, client in self._clients.items():
            self._note_lies(title, client)
        await self._stack.aclose()

    def require_sane(self) -> None:
        """What clients meet is recorded. If one of them failed all the same, it is a fault of this program."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    # -- clients -----------------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(asyncio.create_task(work))

    def _client(self, name: str) -> Client:
        return self._clients[self._people[name].title]

    def _admin(self, person: Person) -> Client:
        return self._clients[f"{person.organisation}/admin"]

    async def _join(self, title: str, identity: Identity) -> None:
        self._clients[title] = await self._entered(self._stack, title, identity)

    def _note_lies(self, title: str, client: Client) -> None:
        for lie in client.misbehaviour:
            self._history.add(Caught(self._history.now, title, lie.broker, lie.problem))

    async def _publish(self, name: str, how: Publishing) -> None:
        await self._publish_as(name, self._client(name), how)

    async def _publish_as(self, name: str, client: Client, how: Publishing) -> None:
        send = partial(client.publish, how.topic)
        await actors.publish(self._scene, self._people[name], how, send)

    async def _publish_in_batches(self, name: str, how: Publishing) -> None:
        publisher = self._client(name).publisher(how.topic, linger=0.3, batch_size=8)
        await actors.publish(self._scene, self._people[name], how, actors.in_batches(publisher))

    async def _subscribe(self, name: str, topic: str, where: str, *, wanders: bool = False) -> None:
        title, client = f"{name}: {topic} {where or 'all'}", self._client(name)
        await actors.subscribe(
            self._scene, self._people[name], client, (topic, where), name=title, wanders=wanders
        )

    async def _register(self, person: Person) -> None:
        admin, identity = self._admin(person), self._identities[person.name]
        key, proof = identity.credential.key, identity.proof()
        try:
            height = await self._surely(
                lambda: admin.register_client(person.name, key, person.attributes, proof=proof)
            )
        except errors.ClientExists:  # an attempt that got no answer has succeeded
            height = (await admin.client_record(person.name)).changed
        self._history.add(Granted(self._history.now, person.title, height))

    async def _receive_guest(self) -> None:
        """The guest publishes and subscribes whenever it may, and tries on for a while when it may no more."""
        person = self._people["guest"]
        life = 0
        while True:
            await self._welcome.wait()
            self._gone.clear()
            life += 1
            async with AsyncExitStack() as stack:
                client = await self._entered(stack, person.title, self._identities["guest"])
                visit = asyncio.gather(
                    actors.subscribe(
                        self._scene, person, client, ("orders", RED), name=f"guest, life {life}: orders {RED}"
                    ),
                    self._publish_as("guest", client, Publishing("orders", every=0.5)),
                )
                try:
                    await self._barred.wait()
                    await asyncio.sleep(GOODBYE)
                finally:
                    visit.cancel()
                    await asyncio.gather(visit, return_exceptions=True)
                    self._note_lies(person.title, client)
            self._gone.set()

    async def _entered(self, stack: AsyncExitStack, title: str, identity: Identity) -> Client:
        """A connected client; a network that is down is tried again."""
        brokers = await self._network.door(title)
        while True:
            client = connect(
                genesis=self._network.genesis,
                identity=identity,
                brokers=brokers,
                on_stalled=lambda trouble: self._history.trouble(title, trouble),
            )
            try:
                return await stack.enter_async_context(client)
            except ParleyError as error:
                self._history.trouble(title, error)
                await asyncio.sleep(actors.PAUSE)

    async def _surely(self, operation: Callable[[], Awaitable[int]]) -> int:
        """Until it is done or refused, whatever the network does meanwhile."""
        while True:
            try:
                return await operation()
            except errors.Refused:
                raise
            except ParleyError as error:
                self._history.trouble("administration", error)
                await asyncio.sleep(actors.PAUSE)
