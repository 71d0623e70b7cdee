"""Charts of tables as PNG files: a panel for each measure, a line for each place. Matplotlib comes with the extra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DPI = 110
WIDTH, HEIGHT = 7.2, 2.1  # inches, of a panel
INK, GRID = "#333333", "#dddddd"
COLOURS = ("#4878a8", "#ca8a2b", "#1f7a5c", "#6c5b9e", "#b03a2e", "#7d6608")


class Line(NamedTuple):
    """One place over time."""

    times: Sequence[datetime]
    values: Sequence[float]


class Panel(NamedTuple):
    """A measure; `limit` is a value to compare with, and what it is called."""

    title: str
    lines: Mapping[str, Line]
    limit: tuple[float, str] | None = None


def draw(title: str, panels: Sequence[Panel], path: Path) -> None:
    """One below the other, over the same time; the same bytes for the same numbers."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    figure = Figure(figsize=(WIDTH, HEIGHT * len(panels) + 0.6), layout="constrained")
    figure.suptitle(title, fontsize=10, color=INK)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for number, panel in enumerate(panels):
        _panel(axes[number][0], panel)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


def _panel(axes: Axes, panel: Panel) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415

    for number, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(line.times, line.values, color=colour, linewidth=1.4, marker=".", markersize=4, label=name)  # type: ignore[arg-type]
    if panel.limit is not None:
        value, words = panel.limit
        axes.axhline(value, color=INK, linewidth=0.8, linestyle="--")
        axes.annotate(
            words, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7
        )
    axes.set_title(panel.title, fontsize=8, color=INK, loc="left")
    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.tick_params(labelsize=7, colors=INK, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
