"""`parley status`: what each broker says of itself and of the others, asked of all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.live import Live

from parley.cli import output
from parley.cli.contexts import As, Chosen, ContextName, Directory, find
from parley.cli.network import observing, run, starting
from parley.cli.status_summary import Shard, reached, summary, unready
from parley.cli.status_table import Query, missing, page
from parley.client.administration import BrokerStatus
from parley.client.client import Client
from parley.client.contexts import read_genesis
from parley.client.readers import ReaderStatus
from parley.consensus.committee import Committee, committees_of
from parley.model.genesis import Genesis
from parley.node.processes import local_brokers

POLL_SECONDS = 0.25
WATCH_SECONDS = 1.0  # from one look to the next
PATIENCE = 3.0  # seconds for which one look waits for a broker that says nothing
DATA = "data"  # the layer of the shards; there is no governance yet (P26)


@dataclass(frozen=True, slots=True)
class Found:
    """What the members of one shard said of themselves and of the readers that they know."""

    committee: Committee
    members: list[BrokerStatus]
    readers: list[ReaderStatus]


class Picture:
    """The network at one moment, for scripts and for people. `found` is what the members of each shard said."""

    def __init__(self, chosen: Chosen, found: Sequence[Found]) -> None:
        self._genesis: Genesis = read_genesis(chosen.file.genesis)
        pids = {broker.name: broker.pid() for broker in local_brokers(chosen.directory, self._genesis)}
        self.shards: dict[int, Shard] = {
            one.committee.shard: summary(one.members, pids, self._genesis, one.committee) for one in found
        }
        self.answering = sum(member.status is not None for one in found for member in one.members)
        self._queries = [_query(reader) for one in found for reader in one.readers]

    def emit(self, *, as_json: bool) -> None:
        """Print it on stdout."""
        layers = {DATA: {"shards": {str(number): shard for number, shard in self.shards.items()}}}
        result = {"network": self._genesis.network, "layers": layers, "readers": self._queries}
        output.emit(result, self.page, as_json=as_json)

    def page(self) -> RenderableType:
        """For people."""
        network, last = self._genesis.network, max(self.shards)
        several = len(self.shards) > 1
        return Group(
            *(
                page(
                    f"{network}, shard {number}" if several else network,
                    shard,
                    self._queries if number == last else (),
                )
                for number, shard in self.shards.items()
            )
        )


def status(
    *,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, max=3_600, help="Wait until every broker is ready and has caught up."
        ),
    ] = 0,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Look again every second until Ctrl-C; with --json, a line each time."),
    ] = False,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Show the state of the network: view, height, leader, the state of every broker, and how many more may fail.

    Ends with 1 if too few brokers vote for a quorum; with 3 if none answers, or with --wait, if not all are ready in time.
    """
    if wait and watch:
        raise typer.BadParameter("say --wait or --watch, not both.", param_hint="--watch")
    chosen = find(directory, context)
    if watch:
        run(_watch(chosen, who, as_json=json))
        return

    async def command() -> tuple[list[Found], dict[str, str]]:
        async with _observers(chosen, who) as observers:
            deadline = asyncio.get_running_loop().time() + wait
            found = [await one.look() for one in observers]
            begin = [reached(one.members) for one in found]
            while (late := _late(found, begin)) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                found = [await one.look() for one in observers]
            return found, late

    found, late = run(command())
    picture = Picture(chosen, found)
    picture.emit(as_json=json)
    if wait and late:
        waiting = ", ".join(f"{name} ({why})" for name, why in late.items())
        output.note(f"parley: not ready within {wait:g} s: {waiting}")
    _conclude(chosen, picture, late=bool(wait and late))


async def _watch(chosen: Chosen, who: str | None, *, as_json: bool) -> None:
    """Show the network again and again. A look begins when the one before has ended, so there is one question at a time."""
    clock = asyncio.get_running_loop().time
    async with _observers(chosen, who) as observers:
        with _display(as_json=as_json) as show:
            while True:
                began = clock()
                show(Picture(chosen, [await one.look(PATIENCE) for one in observers]))
                await asyncio.sleep(max(0.0, began + WATCH_SECONDS - clock()))


@dataclass(frozen=True, slots=True)
class _Observer:
    """Asks the members of one shard."""

    client: Client

    async def look(self, *patience: float) -> Found:
        members = await self.client.status(*patience)
        return Found(self.client.committee, members, self.client.readers(members))


@asynccontextmanager
async def _observers(chosen: Chosen, who: str | None) -> AsyncIterator[list[_Observer]]:
    """One for each shard of the network."""
    async with AsyncExitStack() as closing:
        yield [
            _Observer(await closing.enter_async_context(observing(chosen, who, one.shard)))
            for one in committees_of(read_genesis(chosen.file.genesis))
        ]


def _late(found: Sequence[Found], begin: Sequence[int]) -> dict[str, str]:
    """The brokers that are not ready in one of the shards, and why."""
    late: dict[str, str] = {}
    for one, height in zip(found, begin, strict=True):
        late |= unready(one.members, height)
    return late


@contextmanager
def _display(*, as_json: bool) -> Iterator[Callable[[Picture], None]]:
    """What shows one picture after the other: in place on a terminal, one below the other in a pipe."""
    console = output.stdout()
    if as_json or not console.is_terminal:
        yield lambda picture: picture.emit(as_json=as_json)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda picture: live.update(picture.page(), refresh=True)


def _conclude(chosen: Chosen, picture: Picture, *, late: bool) -> None:
    """End with an exit code that tells a script how the network is, and say what to do if it is not well."""
    without = [shard for shard in picture.shards.values() if not shard.quorum]
    for shard in without:
        output.note(f"parley: no quorum: {missing(shard)}")
    if not without and not late:
        return
    if remedy := starting(chosen):
        output.note(f"parley: {remedy}")
    unreachable = late or not picture.answering
    raise typer.Exit(output.ExitCode.UNREACHABLE if unreachable else output.ExitCode.DOES_NOT_HOLD)


def _query(said: ReaderStatus) -> Query:
    places = [asdict(one) for one in said.positions]
    age = max(0, time.time_ns() // 1_000_000 - said.time) // 1_000
    return Query(said.query, said.reader, said.run, said.topic, said.lag, age, places)
