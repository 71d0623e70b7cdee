"""`parley bench latency` and `parley bench idle`: one publication at a time, and nothing at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import bench_home, output

if TYPE_CHECKING:
    from parley.bench.quiet import IdleResult, LatencyResult

IDLE_PHASES = 2
Rate = Annotated[float, typer.Option(min=0.1, max=1_000, help="Publications per second, one at a time.")]


def latency(
    *,
    rate: Rate = 10.0,
    brokers: bench_home.Brokers = 4,
    size: bench_home.Size = 128,
    seconds: bench_home.Seconds = 20.0,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Windows, one after another.")] = 3,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure the time from publishing one message to its certified receipt, on a network that does nothing else.

    The goal is a median of 25 ms.
    """
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> LatencyResult:
        from parley.bench import quiet  # noqa: PLC0415 - needs the extra `node`

        plan = quiet.Plan(brokers=brokers, size=size, seconds=seconds, runs=runs, rate=rate, settings=chosen)
        with output.progress("measuring", runs) as advance:
            return await quiet.latency(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("latency", directory, work)
    title = f"parley bench latency: {brokers} brokers, {result.publications} publications of {size} bytes"
    output.emit(result, lambda: bench_home.cases(title, result.results), as_json=json)


def idle(
    *,
    seconds: bench_home.Seconds = 30.0,
    rate: Rate = 1.0,
    brokers: bench_home.Brokers = 4,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure what brokers use while nothing happens, and how soon a publication is certified then.

    For --seconds nobody is connected; then, for as long again, a client publishes one message a second. The goals are 2 %
    of a core for each broker, and a median of 25 ms.
    """
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> IdleResult:
        from parley.bench import quiet  # noqa: PLC0415 - needs the extra `node`

        plan = quiet.Plan(brokers=brokers, seconds=seconds, rate=rate, settings=chosen)
        with output.progress("measuring", IDLE_PHASES) as advance:
            return await quiet.idle(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("idle", directory, work)
    title = f"parley bench idle: {brokers} brokers for {seconds:g} s"
    output.emit(result, lambda: bench_home.cases(title, result.results), as_json=json)
