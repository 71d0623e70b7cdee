"""Attacks on what a block shares out: matching, and the numbering of what is staged."""

from __future__ import annotations

import asyncio

from parley.chaos.expensive.attackers import Attackers, message, operate_all
from parley.chaos.expensive.outcome import Outcome
from parley.client import Client
from parley.client.errors import Refused
from parley.model.batches import Message
from parley.model.credentials import Identity
from parley.modules.publishing.budget import MAX_COMPARED
from parley.modules.subscriptions.matching import HEAD, LEAST
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe

COMPARISONS = 32  # of one constraint; with as many words between them it is as long as one may be
MOST_MESSAGES = 20  # of a costly batch, where constraints are few
PAYLOAD = b"row"
TAGS = {"a": 1, "b": 0}  # that all costly constraints match


async def matching(attackers: Attackers) -> Outcome:
    """One publisher whose batches take all that matching may cost, in every block."""
    topic, identity, number = await _costly_topic(attackers)
    publisher = await attackers.client(identity)
    sending = publisher.publisher(topic, batch_size=number, linger=0.0)
    answers = []
    for _ in range(attackers.size.costly_batches):
        answers += [await sending.send(PAYLOAD, tags=TAGS) for _ in range(number)]
    await asyncio.gather(*answers)
    return Outcome(f"{attackers.size.costly_batches} batches of {number} messages")


async def busy(attackers: Attackers) -> Outcome:
    """The same, all at once and each in a session of its own, so that nearly all of them are put off in every block."""
    topic, identity, number = await _costly_topic(attackers)
    sender = await attackers.sender(identity)
    await sender.send(sender.publication(topic, _costly(number)) for _ in range(attackers.size.busy_batches))
    await sender.leave()
    return Outcome(f"{attackers.size.busy_batches} batches: {_told(sender.answers)}")


async def stage(attackers: Attackers) -> Outcome:
    """Commit very many staged batches at once, each of which takes what a block has for matching."""
    topic, identity, number = await _costly_topic(attackers)
    writer = await attackers.client(identity)
    name = writer.writer(topic, "attack")
    stager = writer.stager(topic, name, 0, in_flight=64)
    for _ in range(attackers.size.staged_batches):
        await stager.send(0, _costly(number))
    staged = await stager.finish()
    await writer.commit_stage(topic, name, 0, [one.digest for one in staged])
    # Brokers do not call us.
    while (record := await writer.stage_record(topic, name)) is None or record.pending:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    return Outcome(f"{len(staged)} staged batches of {number} rows")


async def commit(attackers: Attackers) -> Outcome:
    """Commit more rows than a block may look at again, while somebody subscribes and leaves all the time."""
    size = attackers.size
    topic = await attackers.topic("rows")
    writer, visitor = [await attackers.client(await attackers.recruit()) for _ in range(2)]
    await visitor.operate(Subscribe(topic, "kind == 1", attackers.topics[topic]))
    name = writer.writer(topic, "rows")
    stager = writer.stager(topic, name, 0, in_flight=4)
    for _ in range(size.row_batches):
        await stager.send(0, [message(PAYLOAD) for _ in range(size.rows_per_batch)])
    staged = await stager.finish()
    rows = f"{sum(one.messages for one in staged)} rows"
    await _visit(visitor, topic)
    visiting = asyncio.create_task(_visit_for_ever(visitor, topic))
    try:
        await writer.commit_stage(topic, name, 0, [one.digest for one in staged])
    except Refused as refused:
        return Outcome(f"the commit of {rows} was refused: {refused}", held=False)
    finally:
        visiting.cancel()
    return Outcome(f"{rows} were committed", held=True)


async def _costly_topic(attackers: Attackers) -> tuple[str, Identity, int]:
    """A topic with many constraints, who may publish to it, and how many messages a batch may have."""
    topic = await attackers.topic("costly")
    identity = await attackers.recruit()
    client = await attackers.client(identity)
    constraints, messages = costliest(attackers.size.subscriptions)
    await operate_all(
        client, [Subscribe(topic, _constraint(one), attackers.topics[topic]) for one in range(constraints)]
    )
    return topic, identity, messages


def costliest(subscriptions: int) -> tuple[int, int]:
    """How many constraints of so many, and messages of a batch, take what matching may: half for heads, half to compare."""
    constraints = min(subscriptions, MAX_COMPARED // (2 * HEAD))
    return constraints, min((MAX_COMPARED - constraints * HEAD) // (constraints * LEAST), MOST_MESSAGES)


def _costly(number: int) -> list[Message]:
    return [message(PAYLOAD, **TAGS) for _ in range(number)]


def _constraint(number: int) -> str:
    """One that is as short as matching counts them, and holds for every costly message: numbering takes longest."""
    return f"a == 1 and b != {number + 1}"


def _heavy_constraint() -> str:
    """One that counts for as much as one may: comparisons of one tag would be taken together."""
    return " and ".join(f"tag{number} != 1" for number in range(COMPARISONS))


async def _visit(visitor: Client, topic: str) -> None:
    asked = (topic, _heavy_constraint(), await visitor.topic_id(topic))
    await visitor.operate(Subscribe(*asked))
    await visitor.operate(Unsubscribe(*asked))


async def _visit_for_ever(visitor: Client, topic: str) -> None:
    while True:
        await _visit(visitor, topic)


def _told(answers: dict[str, int]) -> str:
    return (
        ", ".join(f"{number} {code or 'receipts'}" for code, number in sorted(answers.items())) or "no answer"
    )
