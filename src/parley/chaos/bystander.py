"""A client of another organisation that publishes and commits rows during attacks, and notes how long each takes.

It begins each at a fixed time, whether or not those before are done, so that a network that stands still for a minute
delays all publications of this minute and not one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from parley.chaos.history import History, Waited
from parley.client import Client
from parley.client.compose import EMPTY_HEADER
from parley.client.errors import ParleyError
from parley.model.batches import Message
from parley.modules.subscriptions.operations import Subscribe

PUBLICATION, ROW = "publication", "row"
NAME = "bystander"
TOPICS = (PUBLICATION + "s", ROW + "s")
EVERY = {PUBLICATION: 0.1, ROW: 1.0}  # seconds between the beginnings of two
IN_FLIGHT = {PUBLICATION: 3_000, ROW: 120}
PAYLOAD = bytes(100)
LOOK_SECONDS = 0.1


class Bystander:
    """From `begin` to `stop`. The client is of another organisation than the attackers, and so are both topics."""

    def __init__(self, client: Client, history: History) -> None:
        self._client = client
        self._history = history
        self._tasks: set[asyncio.Task[None]] = set()
        self._beginning: list[asyncio.Task[None]] = []
        self._stage = 0

    async def begin(self) -> None:
        """A few constraints wait on its topics, so that its publications are matched like everybody's."""
        for topic in TOPICS:
            topic_id = await self._client.topic_id(topic)
            await self._client.operate(Subscribe(topic, 'colour == "red"', topic_id))
        for what, work in {PUBLICATION: self._publish, ROW: self._commit_row}.items():
            self._beginning.append(asyncio.create_task(self._again_and_again(what, work)))

    async def stop(self, seconds: float) -> None:
        """Begin nothing new, and wait so long for what is under way."""
        for task in self._beginning:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._beginning, *self._tasks, return_exceptions=True)

    async def _again_and_again(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        due, room = time.monotonic(), asyncio.Semaphore(IN_FLIGHT[what])
        while True:
            await room.acquire()
            task = asyncio.create_task(self._timed(what, work))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: room.release())
            due += EVERY[what]
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _timed(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        began, answered = self._history.now, False
        try:
            await work()
            answered = True
        except ParleyError as error:
            self._history.trouble(NAME, error)
        finally:
            self._history.add(Waited(began, what, round(self._history.now - began, 4), answered))

    async def _publish(self) -> None:
        await self._client.publish(TOPICS[0], PAYLOAD)

    async def _commit_row(self) -> None:
        """Stage one row, commit it, and wait until it has its place."""
        client, topic = self._client, TOPICS[1]
        self._stage += 1
        writer, row = (
            client.writer(topic, f"row {self._stage}"),
            Message(bytes(16), EMPTY_HEADER, "", PAYLOAD),
        )
        staged = await client.stage(topic, 0, [row], writer, 0)
        await client.commit_stage(topic, writer, 0, [staged.digest])
        # Brokers do not call us.
        while (record := await client.stage_record(topic, writer)) is None or record.pending:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
