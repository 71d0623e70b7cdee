"""`parley bench failover`: measures how long clients of the other brokers wait when one fails under load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from parley.cli import bench_home, output

if TYPE_CHECKING:
    from parley.bench.failover.rounds import Result

# Those of parley.bench.failover, which needs the extra `node`.
FAULTS = ("kill", "stop", "cut", "isolate")
PEERS = ("nats", "kafka")


def failover(
    *,
    cases: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What happens: kill (-9), stop (SIGSTOP), cut (one link), isolate (all links of a broker).",
        ),
    ] = "kill,stop,cut",
    rounds: Annotated[int, typer.Option(min=1, max=1_000, help="Faults of each case.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="How long each fault lasts.")] = 15.0,
    rate: Annotated[
        float, typer.Option(min=1, max=1_000, help="Publications per second of the client at each broker.")
    ] = 50.0,
    brokers: Annotated[
        int, typer.Option(min=4, max=32, help="Brokers, each a process of its own organisation.")
    ] = 4,
    size: bench_home.Size = 128,
    peers: Annotated[
        bool, typer.Option(help="Kill the leaders of NATS and Kafka as well, where they are installed.")
    ] = True,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure how long clients of other brokers get no certified receipt when a broker fails.

    A client at each broker publishes steadily. The broker that leads, or another one, is killed, stopped or cut off, and
    comes back after --seconds. Of each round the longest time between two receipts counts, at the worst client of the
    other brokers; and how many views failed. docs/performance.md tells more.
    """
    chosen = bench_home.parse_names(cases, FAULTS, "--cases")
    if not chosen:
        raise typer.BadParameter(f"name one of {', '.join(FAULTS)}.", param_hint="--cases")
    changes = bench_home.parse_settings(settings)

    async def work(home: Path) -> Result:
        from parley.bench.failover.gaps import Fault  # noqa: PLC0415 - needs the extra `node`
        from parley.bench.failover.plan import Plan  # noqa: PLC0415
        from parley.bench.failover.rounds import failover as play  # noqa: PLC0415

        plan = Plan(
            brokers=brokers,
            size=size,
            settings=changes,
            faults=tuple(map(Fault, chosen)),
            rounds=rounds,
            seconds=seconds,
            rate=rate,
            peers=PEERS if peers else (),
            keep=directory is not None,
        )
        with output.progress("measuring", plan.steps) as advance:
            return await play(home, plan, advance)

    result = bench_home.measured("failover", directory, work)
    output.emit(result, lambda: _told(result), as_json=json)
    for one in result.skipped:
        output.note(f"parley: skipped: {one.name}: {one.reason}")


def _told(result: Result) -> RenderableType:
    title = (
        f"parley bench failover: {result.brokers} brokers, {result.rounds} rounds of {result.seconds:g} s, "
        f"{result.rate:g} publications/s at each, {result.filesystem}"
    )
    table = output.table(
        (
            "case",
            "median s",
            "worst s",
            "least s",
            "no fault s",
            "own client s",
            "on return s",
            "failed views",
        ),
        (
            (
                one.case,
                f"{one.value:.2f}",
                f"{one.worst:.2f}",
                f"{min(one.gaps):.2f}",
                "" if one.baseline is None else f"{one.baseline:.2f}",
                _largest(one.own_client),
                _largest(one.on_return),
                " ".join(map(str, one.failed_views)),
            )
            for one in result.results
        ),
        left=("case", "failed views"),
        title=title,
    )
    meaning = "longest time between receipts at clients of other brokers; own client, on return: the worst of all rounds"
    return Group(table, Text("; ".join([meaning, *result.versions.values()])))


def _largest(values: list[float]) -> str:
    return f"{max(values):.2f}" if values else ""
