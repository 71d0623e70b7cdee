"""Attacks on what is remembered and repeated: batches that never take effect, and sessions that are never used again."""

from __future__ import annotations

import asyncio
import time

from parley.chaos.expensive.attackers import Attackers, message
from parley.chaos.expensive.outcome import Outcome
from parley.chaos.gauges import scrape
from parley.client.errors import ParleyError
from parley.client.sequences import VALID

WRONG_SEQUENCE = 7
LONGEST_HOLD = 64  # heights within which pools propose all that they keep: longer than any of their holds
FEW = 10  # receipts in that time that other clients may cause
LOOK_SECONDS = 0.5
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
    what, began = f"{size.wrong_batches} batches", time.monotonic()
    try:
        async with asyncio.timeout(size.quiet_s):
            while await _repeated(attackers) > FEW:
                pass
    except TimeoutError:
        return Outcome(f"{what}, not quiet {size.quiet_s:.0f} s after the last", held=False)
    return Outcome(f"{what}, quiet {time.monotonic() - began:.0f} s after the last", held=True)


async def sessions(attackers: Attackers) -> Outcome:
    """Publish to all partitions in ever new sessions, as many short runs of a program do; then once more."""
    size = attackers.size
    topic = await attackers.topic("short", size.partitions)
    identity = await attackers.recruit()
    sender = await attackers.sender(identity)
    await sender.send(
        sender.publication(topic, [message()], partition=partition, valid=VALID)
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


async def _repeated(attackers: Attackers) -> int:
    """How many batches out of sequence are ordered while all of them that are kept come again. It needs blocks to tell."""
    height, before = await _reached(attackers)
    now, after = height, before
    while now <= height + LONGEST_HOLD:
        await asyncio.sleep(LOOK_SECONDS)
        now, after = await _reached(attackers)
    return after - before


async def _reached(attackers: Attackers) -> tuple[int, int]:
    """The height of the organisation's own broker, and its receipts of batches out of sequence so far."""
    while not (samples := await scrape(attackers.metrics)):  # noqa: ASYNC110 - it does not answer now
        await asyncio.sleep(LOOK_SECONDS)
    heights = [value for name, value in samples.items() if name.startswith("parley_executed_height")]
    return int(max(heights, default=0.0)), int(
        samples.get('parley_batches_total{result="OutOfSequence"}', 0.0)
    )
