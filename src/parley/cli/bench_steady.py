"""`parley bench memory`: whether brokers under steady load grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from parley.cli import bench_home, bench_plot, output, plots

if TYPE_CHECKING:
    from parley.bench.memory import Result


def memory(
    *,
    minutes: Annotated[
        float, typer.Option(min=0.02, max=24 * 60, help="How long the steady load lasts.")
    ] = 5.0,
    rate_share: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="The steady load, as a share of the peak.")
    ] = 0.5,
    peak_seconds: Annotated[
        float, typer.Option(min=0.5, max=600, help="How long the peak is measured.")
    ] = 10.0,
    brokers: bench_home.Brokers = 4,
    size: bench_home.Size = 128,
    batch: bench_home.Batch = 100,
    settings: bench_home.Set = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the resident size over time as a PNG file.")
    ] = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure the resident size of each broker at the end of a steady load, against that after two fifths of it.

    First the peak rate is found, then another network gets a share of it. With the default of five minutes, minute 5 is
    compared with minute 2; the goal is a ratio of at most 1.1.
    """
    bench_home.require_fitting(size, batch)
    plots.check(chart, "--chart")
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> Result:
        from parley.bench.memory import SAMPLES, Plan, grow  # noqa: PLC0415 - needs the extra `node`

        plan = Plan(
            minutes=minutes,
            rate_share=rate_share,
            peak_seconds=peak_seconds,
            brokers=brokers,
            size=size,
            batch=batch,
            settings=chosen,
        )
        with output.progress("measuring", 1 + SAMPLES) as advance:
            return await grow(home, plan, advance, keep=directory is not None)

    result = bench_home.measured("memory", directory, work)
    if chart is not None:
        bench_plot.draw_memory(result, chart)
    output.emit(result, lambda: _told(result), as_json=json)


def _told(result: Result) -> RenderableType:
    title = (
        f"parley bench memory: {result.publications_per_s:,.0f} publications/s for {result.seconds:.0f} s (peak "
        f"{result.peak_publications_per_s:,.0f}); the baseline is {result.early_seconds:.0f} s after the beginning"
    )
    verdict = f"largest ratio {result.largest_ratio:.2f}; the goal is {result.goal:g} at most"
    return Group(bench_home.cases(title, result.results), Text(verdict))
