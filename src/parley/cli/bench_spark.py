"""`parley bench spark`: what a Spark job that checks everything costs, against one that only hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from parley.cli import bench_home, output
from parley.spark.errors import ParleySparkError
from parley.spark.session import prepare

if TYPE_CHECKING:
    from parley.bench.spark import Result

QUICK_ROWS, QUICK_RUNS = 50_000, 2


def spark(
    *,
    rows: Annotated[
        int, typer.Option(min=1_000, max=50_000_000, help="Messages of 128 bytes that are read.")
    ] = 1_000_000,
    batch: bench_home.Batch = 100,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Rounds; in each one every case has its turn.")
    ] = 5,
    brokers: bench_home.Brokers = 4,
    quick: Annotated[bool, typer.Option("--quick", help="At most 50 000 messages and two rounds.")] = False,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure rows per second of the Spark source and sink, and how long an audit takes.

    Spark runs on two cores of this machine (local[2]), and so do the brokers that serve. The certified source is compared
    with a source of the same columns and batch size that hashes the same rows from memory; the goal is half of its rate
    at 128 bytes. Needs Java and the extra spark.
    """
    if quick:
        rows, runs = min(rows, QUICK_ROWS), min(runs, QUICK_RUNS)
    bench_home.require_fitting(1024, batch)
    chosen = bench_home.parse_settings(settings)
    _require_spark()

    async def work(home: Path) -> Result:
        from parley.bench import spark as bench  # noqa: PLC0415 - needs the extras `node` and `spark`

        plan = bench.Plan(rows=rows, batch=batch, runs=runs, brokers=brokers, settings=chosen)
        with output.progress("measuring", bench.steps(plan)) as advance:
            return await bench.work(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("spark", directory, work)
    output.emit(result, lambda: _told(result), as_json=json)


def _require_spark() -> None:
    """Before a network is loaded: minutes later it would be too late to say that something is missing."""
    try:
        prepare()
    except ParleySparkError as error:
        output.fail(error.message.rstrip("."), output.ExitCode.WRONG_USE)


def _told(result: Result) -> RenderableType:
    title = f"parley bench spark: local[2], {result.brokers} brokers, batches of {result.batch}, median of {result.runs}"
    table = output.table(
        ("case", "rows/s", "against", "rows/s", "ratio", "spread"),
        (
            (
                one.case,
                f"{one.rows_per_s:,.0f}",
                one.baseline or "",
                "" if one.baseline_rows_per_s is None else f"{one.baseline_rows_per_s:,.0f}",
                "" if one.ratio is None else f"{one.ratio:.2f}",
                f"{one.spread:.0%}",
            )
            for one in result.results
        ),
        left=("case", "against"),
        title=title,
    )
    lines = [f"goal: {result.goal:.0%} of hashing from memory; measured {result.reached:.0%}"]
    lines += [
        f"audit on {one.cores} core{'s' * (one.cores > 1)}: {one.seconds_per_million:.1f} s for a million publications"
        for one in result.audit
    ]
    return Group(table, Text("\n".join(lines)))
