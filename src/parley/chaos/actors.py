"""What one client does all the while. Whatever goes wrong is recorded, and it goes on."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from parley.chaos.history import (
    Acknowledged,
    Delivered,
    History,
    Invoked,
    Read,
    Resumed,
    Subscribed,
    identify,
    payload,
)
from parley.client import Client, Message, Receipt, errors
from parley.client.errors import ParleyError
from parley.client.publisher import Publisher
from parley.model.names import Value

TOPICS = {"orders": 2, "notes": 1}  # and their partitions
DOCTORS = 'role == "doctor"'
COLOURS = ("red", "green", "blue")
IN_FLIGHT = 24  # publications of one client that wait for an answer
PAUSE = 0.3  # seconds before something that failed is tried again
PAGE = 20  # messages that a reader takes at a time
BACK = 60  # offsets that it goes back at most
WANDERING = (2.0, 5.0)  # seconds between which a session of a wanderer ends

# Only order decides these, so the answer is final. One whom brokers call revoked may have published it before.
_CERTAIN = (errors.PermissionDenied, errors.UnknownTopic, errors.UnknownPartition)
_BARRED = (errors.Revoked, errors.UnknownClient, errors.NotAuthenticated)


@dataclass(frozen=True)
class Person:
    """Who a client is, and what rules see of it."""

    name: str
    organisation: str
    role: str

    @property
    def title(self) -> str:
        return f"{self.organisation}/{self.name}"

    @property
    def attributes(self) -> dict[str, Value]:
        return {"role": self.role}


@dataclass
class Scene:
    """What all clients share: the history, and when to stop."""

    history: History
    chance: random.Random
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # begin nothing new
    flights: set[asyncio.Task[None]] = field(default_factory=set)  # publications under way
    got: defaultdict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    highest: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    numbers: count[int] = field(default_factory=count)

    async def pause(self, seconds: float) -> bool:
        """Whether to go on after this time; not, if everything is to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return True
        return False


# -- publishing ------------------------------------------------------------------------------------------------------


class Send(Protocol):
    """Publishes one message and waits for its receipt."""

    def __call__(
        self, value: bytes, *, key: str | None, tags: Mapping[str, Value], rule: str
    ) -> Awaitable[Receipt]: ...


@dataclass(frozen=True)
class Publishing:
    """How somebody publishes: how often, and whether with keys and rules."""

    topic: str
    every: float
    keys: bool = False
    rules: bool = False


def in_batches(publisher: Publisher) -> Send:
    async def send(value: bytes, *, key: str | None, tags: Mapping[str, Value], rule: str) -> Receipt:
        return await (await publisher.send(value, key=key, tags=tags, rule=rule))

    return send


async def publish(scene: Scene, person: Person, how: Publishing, send: Send) -> None:
    """Begin a publication every so often, until it is time to stop; then wait for those under way."""
    room = asyncio.Semaphore(IN_FLIGHT)
    mine: set[asyncio.Task[None]] = set()

    def over(task: asyncio.Task[None]) -> None:
        room.release()
        mine.discard(task)
        scene.flights.discard(task)

    try:
        while await scene.pause(how.every):
            await room.acquire()
            task = asyncio.create_task(_publish_one(scene, person, how, send))
            mine.add(task)
            scene.flights.add(task)
            task.add_done_callback(over)
        while mine:
            await asyncio.wait(mine)
    finally:
        for task in mine:
            task.cancel()


async def _publish_one(scene: Scene, person: Person, how: Publishing, send: Send) -> None:
    history, chance = scene.history, scene.chance
    number = next(scene.numbers)
    id_ = f"{person.name}-{number}"
    tags: dict[str, Value] = {"colour": chance.choice(COLOURS), "number": number}
    rule = DOCTORS if how.rules and chance.random() < 0.3 else ""
    key = f"key-{chance.randrange(8)}" if how.keys else None
    history.add(Invoked(history.now, id_, person.title, how.topic, None, tags, rule))
    try:
        receipt = await send(payload(id_, chance.randrange(32, 512)), key=key, tags=tags, rule=rule)
    except _CERTAIN as error:
        history.failed(id_, error)
    except ParleyError as error:
        history.unknown(id_, error)
    except asyncio.CancelledError:
        history.unknown(id_, "given up")
        raise
    else:
        history.add(Acknowledged(history.now, id_, receipt.partition, receipt.offset, receipt.height))


# -- reading ---------------------------------------------------------------------------------------------------------


async def subscribe(
    scene: Scene, person: Person, client: Client, what: tuple[str, str], *, name: str, wanders: bool = False
) -> None:
    """Everything from the first offset on, in as many sessions as it takes; ends when the client is barred."""
    topic, where = what
    history = scene.history
    history.add(Subscribed(history.now, name, person.title, topic, where, person.attributes))
    positions: dict[int, int] = {}
    for session in count():
        try:
            async with asyncio.timeout(scene.chance.uniform(*WANDERING) if wanders else None):
                start = {partition: positions.get(partition, 0) for partition in range(TOPICS[topic])}
                async with client.subscribe(
                    topic, where, start=start if session else "earliest", withheld="yield"
                ) as messages:
                    if session:
                        history.add(Resumed(history.now, name))
                    async for message in messages:
                        _delivered(scene, name, message)
                        positions[message.partition] = message.offset + 1
        except _BARRED as error:
            history.trouble(name, error)
            return
        except ParleyError as error:
            history.trouble(name, error)
            await asyncio.sleep(PAUSE)
        except TimeoutError:  # a wanderer's session is over
            continue


def _delivered(scene: Scene, name: str, message: Message) -> None:
    history = scene.history
    history.add(
        Delivered(
            history.now,
            name,
            message.partition,
            message.ps,
            message.offset,
            message.height,
            "" if message.empty else identify(message.value),
            message.publisher,
            message.empty,
        )
    )
    scene.got[name].add((message.partition, message.offset))
    place = message.topic, message.partition
    scene.highest[place] = max(scene.highest[place], message.offset)


async def read(scene: Scene, person: Person, client: Client, *, every: float) -> None:
    """A page of some partition now and then, not far from its end."""
    while await scene.pause(every):
        topic = scene.chance.choice(list(TOPICS))
        partition = scene.chance.randrange(TOPICS[topic])
        start = max(0, scene.highest[topic, partition] - scene.chance.randrange(BACK))
        try:
            async for message in client.fetch(
                topic, partition=partition, start=start, count=PAGE, withheld="yield"
            ):
                seen(scene.history, person, message, final=False)
        except ParleyError as error:
            scene.history.trouble(person.title, error)


def seen(history: History, person: Person, message: Message, *, final: bool) -> None:
    history.add(
        Read(
            history.now,
            person.title,
            message.topic,
            message.partition,
            message.offset,
            message.height,
            "" if message.empty else identify(message.value),
            message.publisher,
            message.empty,
            final,
        )
    )


# -- administration --------------------------------------------------------------------------------------------------


async def administrate(scene: Scene, admin: Client, name: str, *, every: float) -> None:
    """Change an attribute of a client now and then; no rule looks at it."""
    for number in count():
        if not await scene.pause(every):
            return
        try:
            await admin.alter_client(name, set={"shift": number})
        except ParleyError as error:
            scene.history.trouble(f"{admin.organisation}/admin", error)
