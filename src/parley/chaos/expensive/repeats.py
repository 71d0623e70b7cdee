"""Attacks on what is remembered and repeated: batches that never take effect, and sessions that are never used again."""

from __future__ import annotations

import asyncio
import time

from parley.chaos.expensive.attackers import Attackers, message
from parley.chaos.expensive.outcome import Outcome
from parley.chaos.gauges import scrape
from parley.client.errors import ParleyError

WRONG_SEQUENCE = 7
WINDOW_SECONDS = 3.0
FEW = 5.0  # receipts a second that other clients may cause
ANSWER_SECONDS = 20.0  # for a key that has used very many sessions to publish again


async def sequences(attackers: Attackers) -> Outcome:
    """Send one-byte batches that wait for others which never come, and leave; the network has to forget them."""
    size = attackers.size
    topic = await attackers.topic("waiting")
    sender = await attackers.sender(await attackers.recruit())
    await sender.send(
        sender.publication(topic, [message()], sequence=WRONG_SEQUENCE) for _ in range(size.wrong_batches)
    )
    await sender.leave()
    left, began = f"{size.wrong_batches} batches", time.monotonic()
    while time.monotonic() - began < size.quiet_s:
        before = await _out_of_sequence(attackers)
        await asyncio.sleep(WINDOW_SECONDS)
        after = await _out_of_sequence(attackers)
        if before is not None and after is not None and after - before <= FEW * WINDOW_SECONDS:
            return Outcome(f"{left}, quiet {time.monotonic() - began:.0f} s after the last", held=True)
    return Outcome(f"{left}, not quiet {size.quiet_s:.0f} s after the last", held=False)


async def sessions(attackers: Attackers) -> Outcome:
    """Publish to all partitions in ever new sessions, as many short runs of a program do; then once more."""
    size = attackers.size
    topic = await attackers.topic("short", size.partitions)
    identity = await attackers.recruit()
    sender = await attackers.sender(identity)
    await sender.send(
        sender.publication(topic, [message()], partition=partition)
        for _ in range(size.sessions)
        for partition in range(size.partitions)
    )
    await sender.leave()
    client = await attackers.client(identity)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.publish(topic, b"x")
    except (ParleyError, TimeoutError) as error:
        why = str(error) or f"no answer within {ANSWER_SECONDS:g} s"
        return Outcome(f"after {size.sessions} sessions the key is locked out: {why}", held=False)
    return Outcome(f"{size.sessions} sessions, and the key can publish", held=True)


async def _out_of_sequence(attackers: Attackers) -> float | None:
    """How many receipts of this kind a broker has given so far; None if it does not say."""
    samples = await scrape(attackers.metrics)
    if not samples:
        return None
    return samples.get('parley_batches_total{result="OutOfSequence"}', 0.0)
