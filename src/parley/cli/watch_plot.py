"""Misbehaviour as a chart: a line for each client or broker, a bar for each episode, over block time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from parley.cli import plots
from parley.model.text import unsteering
from parley.spark.detect_report import Episode, Report
from parley.spark.detect_rules import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

COLOURS = {
    Kind.REFUSALS: plots.BAR,
    Kind.PROBING: "#ca8a2b",
    Kind.REPLAYS: "#b7a8d8",
    Kind.REUSED: "#6c5b9e",
    Kind.SILENT: "#7d6608",
    Kind.EQUIVOCATION: "#b03a2e",
}
MAX_LINES = 40  # the ones with most episodes, if there are more
MAX_NAME = 32
SHORTEST = 0.006  # of the width: what lasted a moment must be seen


def draw(found: Report, path: Path) -> None:
    """What lasts goes to the right edge."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    from matplotlib.patches import Patch  # noqa: PLC0415

    subjects = _subjects(found)
    figure = Figure(figsize=(10, 1.6 + 0.36 * max(len(subjects), 1)), layout="constrained")
    axes = figure.add_subplot()
    title = f"{len(found.episodes)} episodes of misbehaviour, {found.ongoing} of them go on"
    axes.set_title("No misbehaviour was noticed" if found.quiet else title, fontsize=9, color=plots.INK)
    first = min((one.start for one in found.episodes), default=0)
    last = max((one.end for one in found.episodes), default=0)
    width = max(last - first, 1_000) * 1.05
    for episode in found.episodes:
        if episode.subject in subjects:
            _bar(axes, episode, subjects.index(episode.subject), (first, width))
    axes.set_xlim(0, width / 1_000)
    since = datetime.fromtimestamp(first / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    axes.set_xlabel(f"seconds of block time since {since}" if found.episodes else "", fontsize=8)
    names = [unsteering(name)[:MAX_NAME] for name in subjects]
    axes.set_yticks(range(len(subjects)), names, fontsize=8)
    axes.invert_yaxis()
    patches = [Patch(color=COLOURS[kind], label=kind.value) for kind in Kind if kind.value in found.kinds]
    if patches:
        figure.legend(
            handles=patches, fontsize=7, frameon=False, ncols=len(patches), loc="outside lower center"
        )
    axes.tick_params(labelsize=7, colors=plots.INK, length=0)
    axes.grid(axis="x", color=plots.GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    plots.save(figure, path)


def _subjects(found: Report) -> list[str]:
    """In the order of their first episode."""
    counts = Counter(episode.subject for episode in found.episodes)
    shown = {name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_LINES]}
    return [name for name in dict.fromkeys(one.subject for one in found.episodes) if name in shown]


def _bar(axes: Axes, episode: Episode, line: int, frame: tuple[int, float]) -> None:
    first, width = frame
    start = episode.start - first
    end = width if episode.ongoing else episode.end - first
    # A lane for each kind, because a client that probes is refused at the same time.
    lane = list(Kind).index(episode.kind) / len(Kind)
    height = 0.8 / len(Kind)
    span = (start / 1_000, max(end - start, SHORTEST * width) / 1_000)
    edge = plots.INK if episode.severity == "critical" else "none"
    axes.broken_barh(
        [span], (line - 0.4 + lane * 0.8, height), facecolor=COLOURS[episode.kind], edgecolor=edge
    )
