"""Charts of measurements: what a publication costs against what grows, and what brokers hold over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parley.cli import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from parley.bench.growth import Growth
    from parley.bench.memory import Result

STEEP = 10  # times: then small values are seen on a logarithmic axis only
COLOURS = (plots.BAR, "#ca8a2b", "#1f7a5c", "#6c5b9e", "#b03a2e", "#7d6608")


def draw_growth(growth: Growth, path: Path, *, logarithmic: bool = False) -> None:
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


def draw_memory(result: Result, path: Path) -> None:
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
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    figure.suptitle(title, fontsize=9, color=plots.INK)
    axes = figure.add_subplot()
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
