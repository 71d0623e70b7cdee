"""What chapters of the demo share: brokers of their own for as long as a story lasts, and how sentences are listed."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.table import Table

from parley.cli import contexts
from parley.cli.network import DAY, observing, states
from parley.model.genesis import Genesis, Timeouts
from parley.node.processes import LocalBroker, free_addresses, local_brokers, stop

POLL_SECONDS = 0.1
Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """A network of one broker for each organisation, and who hears of the steps."""

    directory: Path
    genesis: Genesis
    brokers: list[LocalBroker]
    say: Say
    begin: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin


@contextmanager
def staged(
    network: str,
    people: Mapping[str, str],
    say: Say,
    timeouts: Timeouts,
    *,
    leaders: Literal["round-robin", "cwa+"] = "cwa+",
    allow_faults: bool = False,
) -> Iterator[Stage]:
    """The folder of a network whose organisations have a person each; nothing of it is left."""
    from parley.node.provision import create_identity, provision_network  # noqa: PLC0415 - needs the extra `node`

    begin, now = time.monotonic(), time.time_ns() // 1_000_000
    with TemporaryDirectory(prefix="parley-demo-") as folder:
        directory = Path(folder)
        genesis = provision_network(
            directory,
            organisations=tuple(people),
            network=network,
            start_time=now,
            timeouts=timeouts,
            clients=(),
            addresses=free_addresses(len(people), directory),
            leaders=leaders,
            allow_faults=allow_faults,
        )
        for organisation, person in people.items():
            create_identity(directory, organisation, person, not_after=now + DAY)
        yield Stage(directory, genesis, local_brokers(directory, genesis), say, begin)


@contextmanager
def running(brokers: list[LocalBroker]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The brokers' processes. All end with the block, also those that are added to the list meanwhile."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [broker.start() for broker in brokers]
        yield processes
    finally:
        stop(brokers)
        for process in processes:
            process.wait()


async def all_ready(directory: Path) -> None:
    """Until every broker answers and calls itself ready: one that was killed has caught up."""
    async with observing(contexts.find(directory, None)) as client:
        # A broker has no way to call us, so it is asked again and again; the patience of the story bounds it.
        while any(state != "ready" for state in (await states(client)).values()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


def listed(items: Iterable[tuple[str, str]]) -> Table:
    """A short mark before each sentence, and the sentence indented as one."""
    table = Table.grid(padding=(0, 1, 0, 2))
    table.add_column(justify="right", no_wrap=True)
    for mark, sentence in items:
        table.add_row(mark, sentence)
    return table
