"""`parley bench growth` and `parley bench memory`: what a publication costs and brokers hold while something grows, as charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from parley.bench.figures import Case
from parley.cli import bench_home, output, plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parley.bench.growth import Growth
    from parley.bench.memory import Result

NAMES = ("brokers", "size", "batch", "subscribers", "subscriptions", "topics", "ledger")
QUICK_SECONDS = 3.0
WARM_UP, QUICK_WARM_UP = 2.0, 1.0
STEEP = 10  # times: then small values are seen on a logarithmic axis only
COLOURS = (plots.BAR, "#ca8a2b", "#1f7a5c", "#6c5b9e", "#b03a2e", "#7d6608")


def growth(
    *,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="DIR", help="Where a chart and a file of points go, per dimension."),
    ] = Path("growth"),
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Which dimensions, with commas between them.")
    ] = ",".join(NAMES),
    seconds: bench_home.Seconds = 10.0,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Windows per point, of which the middle one counts.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="At most 3 s per window.")] = False,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure what a publication costs against brokers, sizes, batches, readers, subscriptions, topics and ledger.

    Each dimension grows alone while the others stay: 4 brokers, batches of 100 messages of 128 bytes, one topic, nobody
    who reads. Every point is taken at full load, but for readers, who set the pace of the publisher. A file of points and a
    chart are written after each dimension.
    """
    asked = bench_home.parse_names(only, NAMES, "--only")
    names = [name for name in NAMES if name in asked]
    to.mkdir(parents=True, exist_ok=True)
    plots.check(to / "growth.png", "--to")
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> list[Growth]:
        from parley.bench.growth import DIMENSIONS, Bench, dimension  # noqa: PLC0415 - needs the extra `node`

        found = []
        with output.progress("measuring", sum(len(DIMENSIONS[name].values) for name in names)) as advance:
            bench = Bench(
                home=home,
                seconds=min(seconds, QUICK_SECONDS) if quick else seconds,
                warm_up=QUICK_WARM_UP if quick else WARM_UP,
                runs=runs,
                advance=advance,
                keep=directory is not None,
                settings=chosen,
            )
            for name in names:
                one = await dimension(bench, name)
                _write(to, one, logarithmic=DIMENSIONS[name].logarithmic)
                found.append(one)
        return found

    found = bench_home.measured("growth", directory, work)
    results = [case for one in found for case in _cases(one)]
    title = f"parley bench growth: CPU time per publication; charts are in {to}"
    output.emit({"results": results, "growth": found}, lambda: bench_home.cases(title, results), as_json=json)


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
        _draw_memory(result, chart)
    output.emit(result, lambda: _told(result), as_json=json)


def _write(to: Path, one: Growth, *, logarithmic: bool) -> None:
    (to / f"{one.dimension}.json").write_bytes(msgspec.json.format(msgspec.json.encode(one)) + b"\n")
    _draw_growth(one, to / f"{one.dimension}.png", logarithmic=logarithmic)


def _cases(one: Growth) -> list[Case]:
    """Against the first point of the dimension."""
    first = one.points[0].cpu_us_per_publication
    return [
        Case(
            f"{one.label}: {point.x}",
            point.cpu_us_per_publication,
            "µs/publication",
            first,
            round(point.cpu_us_per_publication / first, 3),
            point.spread,
        )
        for point in one.points
    ]


def _told(result: Result) -> RenderableType:
    title = (
        f"parley bench memory: {result.publications_per_s:,.0f} publications/s for {result.seconds:.0f} s (peak "
        f"{result.peak_publications_per_s:,.0f}); the baseline is {result.early_seconds:.0f} s after the beginning"
    )
    verdict = f"largest ratio {result.largest_ratio:.2f}; the goal is {result.goal:g} at most"
    return Group(bench_home.cases(title, result.results), Text(verdict))


# -- charts ----------------------------------------------------------------------------------------------------------


def _draw_growth(growth: Growth, path: Path, *, logarithmic: bool = False) -> None:
    """The cost and its parts."""
    points = growth.points
    lines = {
        "in all": [point.cpu_us_per_publication for point in points],
        "brokers": [point.cpu_us_brokers for point in points],
        "publisher": [point.cpu_us_publishers for point in points],
    }
    if any(point.cpu_us_readers for point in points):
        lines["subscribers"] = [point.cpu_us_readers for point in points]
    others = ", ".join(f"{name} {value}" for name, value in growth.constant.items())
    title = f"CPU time per publication against {growth.label} ({others})"
    figure, axes = _chart(title, [point.x for point in points], lines, (growth.label, "µs"))
    if logarithmic:
        axes.set_xscale("log")
        if max(lines["in all"]) > STEEP * min(lines["in all"]):
            values = [value for line in lines.values() for value in line if value > 0]
            axes.set_yscale("log")
            axes.set_ylim(min(values) / 2, max(values) * 2)
        axes.set_xticks([point.x for point in points], [str(point.x) for point in points])
        axes.minorticks_off()
    plots.save(figure, path)


def _draw_memory(result: Result, path: Path) -> None:
    """A line for each broker."""
    lines = {name: [sample.rss_mb[name] for sample in result.samples] for name in result.samples[0].rss_mb}
    title = f"Resident size of each broker at {result.publications_per_s:,.0f} publications/s"
    seconds = [sample.seconds for sample in result.samples]
    figure, axes = _chart(title, seconds, lines, ("seconds", "MB"), marker="")
    axes.axvline(result.early_seconds, color=plots.INK, linewidth=0.8, linestyle="--")
    plots.save(figure, path)


def _chart(
    title: str,
    places: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    labels: tuple[str, str],
    *,
    marker: str = "o",
) -> tuple[Figure, Axes]:
    figure, (axes,) = plots.new_figure(title, 1, 6.4)
    for number, (name, values) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, values, color=colour, linewidth=1.2, marker=marker, markersize=3, label=name)
    axes.set_xlabel(labels[0], fontsize=8)
    axes.set_ylabel(labels[1], fontsize=8)
    axes.set_ylim(0)
    axes.tick_params(labelsize=7, colors=plots.INK, length=0)
    axes.grid(axis="y", color=plots.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, ncols=min(len(lines), 4))
    return figure, axes
