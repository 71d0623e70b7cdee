"""Charts of results as PNG files. Matplotlib is an extra, so it is imported only when a chart is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from parley.cli import output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 110
WIDTH = 3.2  # inches of a panel
INK, BAR, GRID = "#333333", "#4878a8", "#dddddd"


def check(path: Path | None, option: str = "--plot") -> None:
    """End the command before it works for minutes if its chart could not be drawn or written."""
    if path is None:
        return
    if path.suffix.lower() != ".png":
        raise typer.BadParameter(f"charts are PNG files, and {path} does not end in .png.", param_hint=option)
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}.", param_hint=option)
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError:
        output.fail(
            'charts need Matplotlib, which is not installed; run: pip install "parley[bench]"',
            output.ExitCode.WRONG_USE,
        )


def new_figure(title: str, panels: int, width: float = WIDTH) -> tuple[Figure, list[Axes]]:
    """A row of panels under one title. No state outside the figure: nothing to close, nothing shared."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width * panels, 3.4), layout="constrained")
    figure.suptitle(title, fontsize=9, color=INK)
    return figure, [figure.add_subplot(1, panels, number + 1) for number in range(panels)]


def bars(axes: Axes, title: str, values: Mapping[str, float], form: str) -> None:
    """One bar for each value with the number on it; `form` is how numbers are written."""
    drawn = axes.bar(list(values), list(values.values()), color=BAR, width=0.62)
    axes.bar_label(drawn, labels=[form.format(value) for value in values.values()], fontsize=8, padding=2)
    axes.set_title(title, fontsize=9, color=INK)
    axes.set_ylim(0, max([*values.values(), 1e-9]) * 1.15)
    axes.tick_params(axis="x", labelsize=8, length=0)
    axes.tick_params(axis="y", labelsize=7, colors=INK, length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def mark(axes: Axes, value: float, label: str) -> None:
    """A dashed line across the panel at a value to compare with."""
    axes.axhline(value, color=INK, linewidth=0.8, linestyle="--", label=label)
    axes.set_ylim(0, max(axes.get_ylim()[1], value * 1.15))
    axes.legend(fontsize=7, frameon=False, loc="upper right")


def save(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG file, the same bytes for the same figure."""
    figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
