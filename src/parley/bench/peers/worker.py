"""`python -m parley.bench.peers.worker`: one publishing process, for any of the systems.

It is a process of its own so that its CPU time can be told from that of whoever measures.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from importlib import import_module

import msgspec
import uvloop

from parley.bench.jobs import GO, READY, say
from parley.bench.peers.publishing import Job, Publisher, Report, SystemName

# Imported when asked for: each needs another library.
PUBLISHERS: dict[SystemName, tuple[str, str]] = {
    "parley": ("parley.bench.peers.parley_client", "ParleyPublisher"),
    "nats": ("parley.bench.peers.nats_client", "NatsPublisher"),
    "kafka": ("parley.bench.peers.kafka_client", "KafkaPublisher"),
    "rabbitmq": ("parley.bench.peers.rabbitmq_client", "RabbitPublisher"),
}


def publisher(job: Job) -> Publisher:
    module, name = PUBLISHERS[job.system]
    make: Callable[[Job], Publisher] = getattr(import_module(module), name)
    return make(job)


async def work(job: Job) -> None:
    client = publisher(job)
    await client.prepare()
    await client.publish(job.warm_up)
    say(READY)
    # Nothing else is to be done meanwhile, so this may block.
    if sys.stdin.buffer.readline() != GO:
        return  # whoever started this has gone
    cpu, begin = time.process_time(), time.monotonic()
    await client.publish(job.messages)
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    say(msgspec.json.encode(Report(seconds, round(1e6 * cpu))) + b"\n")
    await client.close()


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(job))


if __name__ == "__main__":
    main()
