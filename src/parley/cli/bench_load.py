"""`parley bench pub`, `sub`, `latency` and `idle`: what a network of real brokers does in a second, how soon, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from parley.cli import bench_home, output
from parley.cli.pubsub_values import choice

if TYPE_CHECKING:
    from parley.bench import fanout, quiet
    from parley.bench import pub as bench_pub
    from parley.bench.profile import Profiler

# Those of parley.bench.network, which needs the extra `node`; the others of DESIGN come with their kinds of payload.
PRESETS = ("bps", "chios-p")
IDLE_PHASES = 2
Rate = Annotated[float, typer.Option(min=0.1, max=1_000, help="Publications per second, one at a time.")]


def pub(
    *,
    brokers: bench_home.Brokers = 4,
    size: bench_home.Size = 128,
    batch: bench_home.Batch = 100,
    seconds: bench_home.Seconds = 20.0,
    runs: bench_home.Runs = 5,
    preset: Annotated[
        str,
        typer.Option(
            parser=choice(*PRESETS),
            metavar="PRESET",
            help="The topic's policy: bps or chios-p, which today are the same, clear matching and plain payload.",
        ),
    ] = "bps",
    clients: Annotated[
        int, typer.Option(min=1, max=64, help="Publishing processes, each at another broker.")
    ] = 1,
    in_flight: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Batches of all clients that wait for their receipt; by default as many as keep brokers busy.",
        ),
    ] = None,
    solo: Annotated[bool, typer.Option("--solo", help="One broker and no replication.")] = False,
    settings: bench_home.Set = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Make one more run, which does not count, and write flame graphs of it."
        ),
    ] = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure publications per second, the time to the certified receipt, and CPU time per publication.

    Real brokers with TLS on this machine order what real clients publish; only publications whose certified receipt came
    within the window count. CPU time is that of all brokers and clients together. The best run is reported, with how
    far the runs lie apart: (max - min) / median.
    """
    bench_home.require_fitting(size, batch)
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> bench_pub.Result:
        from parley.bench.measure import enough_in_flight  # noqa: PLC0415 - needs the extra `node`
        from parley.bench.pub import Plan, publish  # noqa: PLC0415

        profiler = None if profile is None else _profiler(profile, seconds)
        plan = Plan(
            brokers=1 if solo else brokers,
            size=size,
            batch=batch,
            seconds=seconds,
            runs=runs,
            preset=preset,
            clients=clients,
            in_flight=in_flight or enough_in_flight(size, batch),
            settings=chosen,
        )
        with output.progress("measuring", runs + (profile is not None)) as advance:
            return await publish(home, plan, advance, profiler=profiler, keep=directory is not None)

    result = bench_home.measured("pub", directory, work)
    output.emit(result, lambda: _told(result), as_json=json)
    if profile is not None:
        output.note(f"parley: flame graphs and lists of costs are in {profile}")


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

    async def work(home: Path) -> fanout.Result:
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

    async def work(home: Path) -> quiet.LatencyResult:
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

    async def work(home: Path) -> quiet.IdleResult:
        from parley.bench import quiet  # noqa: PLC0415 - needs the extra `node`

        plan = quiet.Plan(brokers=brokers, seconds=seconds, rate=rate, settings=chosen)
        with output.progress("measuring", IDLE_PHASES) as advance:
            return await quiet.idle(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("idle", directory, work)
    title = f"parley bench idle: {brokers} brokers for {seconds:g} s"
    output.emit(result, lambda: bench_home.cases(title, result.results), as_json=json)


def _profiler(directory: Path, seconds: float) -> Profiler:
    """Before anything is measured: minutes later it would be too late to say that it is missing."""
    from parley.bench.profile import Profiler, find_profiler  # noqa: PLC0415

    command = find_profiler()
    if command is None:
        output.fail(
            'profiles need py-spy, which is not installed; run: pip install "parley[bench]"',
            output.ExitCode.WRONG_USE,
        )
    return Profiler(command, directory, seconds)


def _told(result: bench_pub.Result) -> RenderableType:
    how = "one broker, no replication" if result.solo else f"{result.brokers} brokers"
    title = (
        f"parley bench pub: {how}, batches of {result.batch} x {result.size} bytes, {result.clients} "
        f"client{'s' * (result.clients > 1)}, {result.in_flight} batches in flight, {result.filesystem}"
    )
    columns = (
        "run",
        "publications/s",
        "p50 ms",
        "p99 ms",
        "CPU µs each",
        "brokers",
        "clients",
        "MB",
        "failed",
        "view changes",
    )
    table = output.table(columns, (), left=(), title=title)
    for number, run in enumerate(result.runs, 1):
        best = run.publications_per_s == result.publications_per_s
        table.add_row(
            str(number),
            f"{run.publications_per_s:,.0f}",
            f"{run.p50_ms:.1f}",
            f"{run.p99_ms:.1f}",
            f"{run.cpu_us_per_publication:.1f}",
            f"{run.cpu_us_brokers:.1f}",
            f"{run.cpu_us_client:.1f}",
            f"{run.rss_mb:.0f}",
            str(run.failed),
            "?" if run.view_changes is None else str(run.view_changes),
            style="bold" if best else "",
        )
    return Group(table, Text(f"best of {len(result.runs)}; spread {result.spread:.0%}"))
