"""`parley bench sub`: how many deliveries a second certified subscribers get and verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import bench_home, output

if TYPE_CHECKING:
    from parley.bench.fanout import Result


def sub(
    *,
    subscribers: Annotated[
        int, typer.Option(min=1, max=1_000, help="Clients, each with a connection of its own.")
    ] = 100,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes that they are spread over.")] = 2,
    brokers: bench_home.Brokers = 4,
    size: bench_home.Size = 128,
    batch: bench_home.Batch = 100,
    in_flight: Annotated[
        int, typer.Option(min=1, max=1_000, help="Batches that some subscriber has not got yet.")
    ] = 8,
    seconds: bench_home.Seconds = 20.0,
    runs: bench_home.Runs = 5,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure deliveries per second, all subscribers together, and CPU time per delivery.

    Everybody subscribes to everything on one topic and verifies by itself what it gets. One client publishes; it waits
    for the slowest subscriber. CPU time is that of all brokers, subscribers and the publisher. The goal is 100 000
    deliveries per second.
    """
    bench_home.require_fitting(size, batch)
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> Result:
        from parley.bench.fanout import Plan, fan_out  # noqa: PLC0415 - needs the extra `node`

        plan = Plan(
            brokers=brokers,
            subscribers=subscribers,
            processes=processes,
            size=size,
            batch=batch,
            seconds=seconds,
            runs=runs,
            in_flight=in_flight,
            settings=chosen,
        )
        with output.progress("measuring", runs) as advance:
            return await fan_out(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("sub", directory, work)
    title = f"parley bench sub: {brokers} brokers, {subscribers} subscribers in {processes} processes"
    output.emit(result, lambda: bench_home.cases(title, result.results), as_json=json)
