"""Reading a topic whose beginning moves meanwhile: it is told, and what is left is read; nothing is asked for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from parley.cli.pubsub_reading import going_on, history
from parley.cli.pubsub_values import Start
from parley.client.administration import PartitionInfo
from parley.client.errors import Pruned


@dataclass
class Topic:
    """Stands in for a client: a partition of six messages that loses its beginning after the second one was read."""

    start: int = 0
    moves: bool = True
    asked: list[int] = field(default_factory=list)

    async def topic(self, name: str) -> SimpleNamespace:
        assert name == "notes"
        return SimpleNamespace(heads=[PartitionInfo(0, self.start, 6)])

    async def fetch(
        self, name: str, *, partition: int, start: int, withheld: str
    ) -> AsyncIterator[SimpleNamespace]:
        assert (name, partition, withheld) == ("notes", 0, "yield")
        self.asked.append(start)
        for offset in range(start, 6):
            if offset == 2 and self.start < 4:
                self.start = 4 if self.moves else self.start
                raise Pruned("partition 0 of notes starts at offset 4")
            yield SimpleNamespace(offset=offset, empty=False, tags={})


def offsets(topic: Topic, start: Start) -> list[int]:
    client: Any = topic

    async def read() -> list[int]:
        return [message.offset async for message in history(client, "notes", start, "")]

    return asyncio.run(read())


def test_from_earliest_what_is_gone_is_told_and_the_rest_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    topic = Topic()
    assert offsets(topic, "earliest") == [0, 1, 4, 5]
    assert topic.asked == [0, 4]
    said = capsys.readouterr().err
    assert said.count("partition 0 of notes starts at offset 4") == said.count("\n") == 1


def test_from_an_offset_that_is_gone_nothing_else_is_read_instead() -> None:
    with pytest.raises(Pruned):
        offsets(Topic(), 1)


def test_what_nobody_can_get_past_ends_the_command() -> None:
    topic = Topic(moves=False)
    with pytest.raises(Pruned):
        offsets(topic, "earliest")
    assert topic.asked == [0]


class Stuck:
    """A subscription whose position does not move."""

    def position(self) -> str:
        return "here"

    def __aiter__(self) -> Stuck:
        return self

    async def __anext__(self) -> None:
        raise Pruned("partition 0 of notes starts at offset 4")


def test_a_subscription_that_does_not_get_past_it_ends_after_it_was_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = []
    stuck: Any = Stuck()

    async def read() -> None:
        async for _ in going_on(stuck, lambda: saved.append("here")):
            pass

    with pytest.raises(Pruned):
        asyncio.run(read())
    assert saved == ["here"]
    assert capsys.readouterr().err.count("\n") == 1
