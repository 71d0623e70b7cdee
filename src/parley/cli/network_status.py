"""`parley status`: what each broker says of itself and of the others, asked of all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.live import Live

from parley.cli import output
from parley.cli.contexts import As, Chosen, ContextName, Directory, find
from parley.cli.network import observing, run, starting
from parley.cli.status_summary import Shard, reached, summary, unready
from parley.cli.status_table import Query, missing, page
from parley.client.administration import BrokerStatus
from parley.client.contexts import read_genesis
from parley.client.readers import ReaderStatus
from parley.model.genesis import Genesis
from parley.node.processes import local_brokers

POLL_SECONDS = 0.25
WATCH_SECONDS = 1.0  # from one look to the next
PATIENCE = 3.0  # seconds for which one look waits for a broker that says nothing
DATA, SHARD = "data", "0"  # until there is governance, a network is one shard (P26)


class Picture:
    """The network at one moment, for scripts and for people."""

    def __init__(self, chosen: Chosen, found: list[BrokerStatus], readers: list[ReaderStatus]) -> None:
        self._genesis: Genesis = read_genesis(chosen.file.genesis)
        pids = {broker.name: broker.pid() for broker in local_brokers(chosen.directory, self._genesis)}
        self.shard: Shard = summary(found, pids, self._genesis)
        self.answering = sum(one.status is not None for one in found)
        self._queries = [_query(one) for one in readers]

    def emit(self, *, as_json: bool) -> None:
        """Print it on stdout."""
        layers = {DATA: {"shards": {SHARD: self.shard}}}
        result = {"network": self._genesis.network, "layers": layers, "readers": self._queries}
        output.emit(result, self.page, as_json=as_json)

    def page(self) -> RenderableType:
        """For people."""
        return page(self._genesis.network, self.shard, self._queries)


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

    async def command() -> tuple[list[BrokerStatus], dict[str, str], list[ReaderStatus]]:
        async with observing(chosen, who) as client:
            deadline = asyncio.get_running_loop().time() + wait
            answers = await client.status()
            begin = reached(answers)
            while (late := unready(answers, begin)) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                answers = await client.status()
            return answers, late, client.readers(answers)

    found, late, readers = run(command())
    picture = Picture(chosen, found, readers)
    picture.emit(as_json=json)
    if wait and late:
        waiting = ", ".join(f"{name} ({why})" for name, why in late.items())
        output.note(f"parley: not ready within {wait:g} s: {waiting}")
    _conclude(chosen, picture, late=bool(wait and late))


async def _watch(chosen: Chosen, who: str | None, *, as_json: bool) -> None:
    """Show the network again and again. A look begins when the one before has ended, so there is one question at a time."""
    clock = asyncio.get_running_loop().time
    async with observing(chosen, who) as client:
        with _display(as_json=as_json) as show:
            while True:
                began = clock()
                found = await client.status(PATIENCE)
                show(Picture(chosen, found, client.readers(found)))
                await asyncio.sleep(max(0.0, began + WATCH_SECONDS - clock()))


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
    if not picture.shard.quorum:
        output.note(f"parley: no quorum: {missing(picture.shard)}")
    elif not late:
        return
    if remedy := starting(chosen):
        output.note(f"parley: {remedy}")
    unreachable = late or not picture.answering
    raise typer.Exit(output.ExitCode.UNREACHABLE if unreachable else output.ExitCode.DOES_NOT_HOLD)


def _query(said: ReaderStatus) -> Query:
    places = [asdict(one) for one in said.positions]
    age = max(0, time.time_ns() // 1_000_000 - said.time) // 1_000
    return Query(said.query, said.reader, said.run, said.topic, said.lag, age, places)
