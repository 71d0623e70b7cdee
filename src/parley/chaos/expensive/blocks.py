"""Attacks on the time of a block: single operations that touch very many entries."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from parley.chaos.expensive.attackers import POLL_SECONDS, Attackers, operate_all
from parley.chaos.expensive.outcome import Outcome
from parley.modules.registry.operations import RevokeClient
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic


async def alter(attackers: Attackers) -> Outcome:
    """Add partitions to several topics at once that very many constraints wait on, again and again."""
    size = attackers.size
    for _ in range(size.rounds):
        topics = [await attackers.topic("altered") for _ in range(size.altered)]
        for topic in topics:
            await attackers.crowd(topic, size.constraints)
        await _widen(attackers, topics)
    return Outcome(f"{size.rounds} times {size.altered} topics with {size.constraints} constraints")


async def revoke(attackers: Attackers) -> Outcome:
    """Revoke several clients at once that hold as many subscriptions as they may, in as many partitions as opened in time."""
    size = attackers.size
    topics = [await attackers.topic("left") for _ in range(size.revoked)]
    names: list[str] = []
    for topic in topics:
        names += [client.name for client in await attackers.crowd(topic, size.subscriptions)]
    await _widen(attackers, topics, size.widening_s)
    await operate_all(attackers.admin, map(RevokeClient, names))
    return Outcome(f"{len(names)} clients with {size.subscriptions} subscriptions each")


async def subscribe(attackers: Attackers) -> Outcome:
    """One ordinary client begins and ends subscriptions to a topic with many partitions."""
    size = attackers.size
    topic = await attackers.topic("visited", size.partitions)
    client = await attackers.client(await attackers.recruit())
    constraints = [f"number == {number}" for number in range(size.churned)]
    await operate_all(
        client,
        (
            kind(topic, constraint, attackers.topics[topic])
            for constraint in constraints
            for kind in (Subscribe, Unsubscribe)
        ),
    )
    return Outcome(f"{size.churned} subscriptions begun and ended")


async def _widen(attackers: Attackers, topics: list[str], patience_s: float | None = None) -> None:
    """Ask for all partitions at once, and wait until they are there, or until patience ends."""
    admin, partitions = attackers.admin, attackers.size.partitions
    await operate_all(admin, [AlterTopic(topic, partitions, None, None, None) for topic in topics])
    with suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            for topic in topics:
                while (await admin.topic(topic)).partitions < partitions:  # noqa: ASYNC110 - brokers do not call us
                    await asyncio.sleep(POLL_SECONDS)
