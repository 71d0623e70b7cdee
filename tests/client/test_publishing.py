"""Publishing through brokers that die, lie, censor and forget: every message is published once, or its fate is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from tests.client.stage import Stage
from tests.pubsub.world import Actor, actor

from parley.model.receipts import Published, encode_leaf
from parley.net.messages import Answer, Question, Receipted

FIRST = "broker-hospital-a"


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[tuple[Stage, Actor]]:
    async with Stage(folder) as stage:
        alice = stage.registered("alice")
        stage.ledger.topic("notes", partitions=3)
        yield stage, alice


def published(stage: Stage, topic: str = "notes") -> list[bytes]:
    """The payloads in the log, partition by partition."""
    reader = actor("alice")
    found = []
    for partition in range(3):
        answer = stage.ledger.fetched(reader, topic, partition=partition)
        for block in answer.blocks:
            found += [content.payload for batch in block.batches for content in batch.contents]  # type: ignore[union-attr]
    return found


def forged(question: Question, answer: Answer) -> Answer:
    """A receipt that names another offset."""
    if not isinstance(answer, Receipted):
        return answer
    return replace(answer, proof=replace(answer.proof, leaves=(encode_leaf(_moved(answer)),)))


def _moved(answer: Receipted):  # type: ignore[no-untyped-def]
    from parley.model.receipts import decode_leaf

    return replace(decode_leaf(answer.proof.leaves[0]), outcome=Published(77))


def test_x(tmp_path: Path) -> None:
    async def story() -> None:
        async with staged(tmp_path) as (stage, alice), stage.client(alice) as client:
            stage[FIRST].lie = forged
            receipt = await client.publish("notes", "one", partition=1)
            assert (receipt.offset, receipt.partition) == (0, 1)
            assert [lie.broker for lie in client.misbehaviour] == [FIRST]

    asyncio.run(story())
