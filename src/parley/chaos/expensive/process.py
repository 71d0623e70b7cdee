"""`python -m parley.chaos.expensive.process`: the attackers, in a process of their own.

Signing and sending takes time, and must not delay the process that measures the bystander. It reads a job from its standard
input, then names of attacks, one in a line, which it begins at once. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from parley.chaos.expensive.attackers import Attackers
from parley.chaos.expensive.attacks import ATTACKS
from parley.chaos.expensive.jobs import MAX_LINE, Job, Told
from parley.chaos.expensive.outcome import Outcome
from parley.client.connection import Declined, Gone
from parley.client.errors import ParleyError
from parley.localnet.proxy import Proxy
from parley.node.provision import read_genesis

# Another address than everybody else's, because brokers count what comes from one address together.
SOURCE = "127.0.0.2" if sys.platform == "linux" else ""


async def work() -> None:
    lines = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
    )
    job = msgspec.json.decode(await lines.readline(), type=Job)
    running: dict[str, asyncio.Task[None]] = {}
    async with AsyncExitStack() as stack:
        brokers = {
            name: (await stack.enter_async_context(Proxy(address, SOURCE))).address
            for name, address in job.brokers.items()
        }
        genesis = read_genesis(Path(job.directory) / "genesis.json")
        attackers = Attackers(job, genesis, brokers)
        await stack.enter_async_context(attackers)
        _tell(Told(""))
        while line := await lines.readline():
            name = line.decode().strip()
            if name not in running or running[name].done():
                running[name] = asyncio.create_task(_attack(name, attackers))
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _attack(name: str, attackers: Attackers) -> None:
    try:
        outcome = await ATTACKS[name](attackers)
    except (ParleyError, Declined, Gone) as error:  # the network defends itself; that is no fault of it
        outcome = Outcome(f"given up: {error}")
    _tell(Told(name, outcome.text, outcome.held))


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(work())
