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
    figure = Figure(figsize=(10, 1.7 + 0.6 * max(len(subjects), 1)), layout="constrained")
    axes = figure.add_subplot()
    title = f"Episodes of misbehaviour: {len(found.episodes)}, not over: {found.ongoing}"
    axes.set_title("No misbehaviour was noticed" if found.quiet else title, fontsize=9, color=plots.INK)
    first = min((one.start for one in found.episodes), default=0)
    last = max((one.end for one in found.episodes), default=0)
    width = max(last - first, 1_000) * 1.05
    kinds = [kind for kind in Kind if kind.value in found.kinds]
    height = 0.8 / max(len(kinds), 1)
    for episode in found.episodes:
        if episode.subject in subjects:
            line = subjects.index(episode.subject)
            _bar(axes, episode, (line, kinds.index(episode.kind) * height, height), (first, width))
    for line in range(1, len(subjects)):
        axes.axhline(line - 0.5, color=plots.GRID, linewidth=0.6)
    axes.set_xlim(0, width / 1_000)
    since = datetime.fromtimestamp(first / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    axes.set_xlabel(f"seconds of block time since {since}" if found.episodes else "", fontsize=8)
    axes.set_yticks(range(len(subjects)), [unsteering(name)[:MAX_NAME] for name in subjects], fontsize=8)
    axes.invert_yaxis()
    patches = [Patch(color=COLOURS[kind], label=kind.value) for kind in kinds]
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


def _bar(axes: Axes, episode: Episode, place: tuple[int, float, float], frame: tuple[int, float]) -> None:
    """`place` is the line, and the lane of the line that is the kind's own: who probes is refused at the same time."""
    (line, lane, height), (first, width) = place, frame
    start = episode.start - first
    end = width if episode.ongoing else episode.end - first
    span = (start / 1_000, max(end - start, SHORTEST * width) / 1_000)
    edge = plots.INK if episode.severity == "critical" else "none"
    low = line - 0.4 + lane
    axes.broken_barh([span], (low, height * 0.9), facecolor=COLOURS[episode.kind], edgecolor=edge)
    axes.annotate(
        f" {episode.count}", (sum(span), low + height / 2), fontsize=6, va="center", color=plots.INK
    )
