"""The timeline of a chaos run as a chart: what was wrong with each broker, and what was acknowledged meanwhile."""

from __future__ import annotations

from pathlib import Path

from parley.chaos.report import Report
from parley.cli import plots

COLOURS = {
    "killed": "#b03a2e",
    "full": "#7d6608",
    "paused": "#ca8a2b",
    "cut": "#6c5b9e",
    "slow": "#b7a8d8",
    "lying": "#1f7a5c",
}
UP = "#e4e9ee"


def draw(found: Report, path: Path) -> None:
    """A bar for each broker and a curve below them, on one axis of time."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    from matplotlib.patches import Patch  # noqa: PLC0415

    names = sorted(found.heights)
    figure = Figure(figsize=(10, 1.8 + 0.4 * len(names) + 1.6), layout="constrained")
    verdict = "every property holds" if found.holds else f"BROKEN: {', '.join(found.violations)}"
    figure.suptitle(f"parley chaos, seed {found.seed}: {verdict}", fontsize=9, color=plots.INK)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[0.4 * len(names) + 0.3, 1.6])
    for place, name in enumerate(names):
        upper.broken_barh([(0, found.seconds)], (place - 0.35, 0.7), color=UP)
        for state, colour in reversed(COLOURS.items()):
            bars = [
                (span.at, span.end - span.at)
                for span in found.timeline
                if (span.broker, span.state) == (name, state)
            ]
            # Liars go on while other things happen to them, so they get the lower part.
            height = 0.25 if state == "lying" else 0.7
            upper.broken_barh(bars, (place - 0.35, height), color=colour)
    upper.set_yticks(range(len(names)), names, fontsize=8)
    upper.invert_yaxis()
    states = [state for state in COLOURS if any(span.state == state for span in found.timeline)]
    patches = [Patch(color=COLOURS[state], label=state) for state in states]
    if patches:
        upper.legend(
            handles=patches,
            fontsize=7,
            frameon=False,
            ncols=len(patches),
            loc="lower right",
            bbox_to_anchor=(1, 1),
        )
    lower.step(range(len(found.rate)), found.rate, where="post", color=plots.BAR, linewidth=1)
    lower.fill_between(range(len(found.rate)), found.rate, step="post", color=plots.BAR, alpha=0.25)
    lower.set_ylabel("acknowledged / s", fontsize=8)
    lower.set_xlabel("seconds", fontsize=8)
    lower.set_ylim(0)
    for axes in (upper, lower):
        axes.set_xlim(0, max(found.seconds, 1.0))
        axes.tick_params(labelsize=7, colors=plots.INK, length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    lower.grid(axis="y", color=plots.GRID, linewidth=0.6)
    plots.save(figure, path)
