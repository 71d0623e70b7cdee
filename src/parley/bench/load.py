"""`python -m parley.bench.load`: a process that publishes or subscribes as it is told on its standard input.

It is a process of its own so that its CPU time can be told from that of whoever measures.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import uvloop

from parley.bench.errors import Unavailable
from parley.bench.jobs import BEGUN, GO, READY, Job, Window, say
from parley.bench.traffic import PublishingLoad, SubscribingLoad
from parley.client.errors import ParleyError


async def work() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer
    )
    job = msgspec.json.decode(await lines.readline(), type=Job)
    load = PublishingLoad(job) if job.role == "publish" else SubscribingLoad(job)
    await load.prepare()  # so that nothing of connecting is measured
    say(READY)
    if await lines.readline() != GO:
        return  # whoever started this has gone
    running = asyncio.create_task(load.run())
    telling = asyncio.create_task(_tell_begun(load))
    asked = asyncio.create_task(lines.readline())
    try:
        await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        line = await asked
    finally:
        for task in (running, telling):
            task.cancel()
        await asyncio.gather(running, telling, return_exceptions=True)
    if line:
        say(msgspec.json.encode(await load.finish(msgspec.json.decode(line, type=Window))) + b"\n")


async def _tell_begun(load: PublishingLoad | SubscribingLoad) -> None:
    await load.begun.wait()
    say(BEGUN)


def main() -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work())
    except (ParleyError, Unavailable) as error:
        sys.exit(str(error))  # on standard error, where whoever started this looks for it


if __name__ == "__main__":
    main()
