"""`parley chaos`: real brokers under real faults, and a verdict on what their clients saw."""

from __future__ import annotations

import math
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.chaos.checker import CHECKS
from parley.chaos.history import HistoryError, read_history
from parley.chaos.nemesis import ALL_KINDS, KINDS, WAYS
from parley.chaos.report import Report, report, timeline
from parley.cli import chaos_expense, output, plots
from parley.cli.local_folder import new_folder, provisioning, require_node_extra
from parley.cli.network import INTERRUPTED, handling
from parley.model.expressions import ExpressionError

# States of a broker in the chart; `UP` is none of them.
COLOURS = {
    "killed": "#b03a2e",
    "full": "#7d6608",
    "paused": "#ca8a2b",
    "cut": "#6c5b9e",
    "slow": "#b7a8d8",
    "lying": "#1f7a5c",
}
UP = "#e4e9ee"
# Kinds of faults, and single ways of them.
_CHOICES = [choice for kind, ways in WAYS.items() for choice in (kind, *(f"{kind}:{way}" for way in ways))]
MAX_SHOWN = 12  # details of violations
# Ctrl-C and a polite kill end the run in order; a broker that is gone does not end it at all.
SIGNALS = {signal.SIGPIPE: signal.SIG_IGN, signal.SIGTERM: signal.default_int_handler}
PHASES = ("starting", "faults", "recovering", "reading everything", "examining the stores")


def chaos(
    *,
    minutes: Annotated[
        float,
        typer.Option(min=0.05, max=7 * 24 * 60, help="How long faults come; the rest takes a little more."),
    ] = 1.0,
    faults: Annotated[
        str,
        typer.Option(
            metavar="KINDS",
            help=f"Which kinds, with commas between them; by default {', '.join(KINDS)}. One that comes only if it is "
            "said: expensive. A single way of a kind: partition:ring.",
            show_default=False,
        ),
    ] = ",".join(KINDS),
    seed: Annotated[int, typer.Option(min=0, help="Chooses which faults come, when, and to whom.")] = 0,
    brokers: Annotated[int, typer.Option(min=4, max=10, help="Brokers in the network.")] = 4,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Keep everything in this new folder. If not said, it is kept only on a violation."
        ),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the timeline as a PNG file.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge the history of an earlier run; start nothing.")
    ] = None,
    json: output.Json = False,
) -> None:
    """Run a network of real brokers under faults, and check what its clients saw.

    Brokers are killed, paused, cut off, left without room on their disks, and, at most f of them at a time, made to lie,
    while clients publish, subscribe, read and administrate. Then everything heals, and every property is checked:
    nothing acknowledged is lost, doubled or reordered, everything gets done again, all brokers hold the same. With
    `--faults expensive` one organisation's clients try to make others wait, and what that costs these is measured.
    """
    kinds = _kinds(faults)
    plots.check(chart, "--chart")
    if check is not None:
        found = _judged(check)
    else:
        require_node_extra("chaos")
        found = _run(minutes, kinds, seed, brokers, directory)
    if chart is not None:
        _draw(found, chart)
    output.emit(found, lambda: _told(found), as_json=json)
    if not found.holds:
        _advise(found)
        raise typer.Exit(output.ExitCode.DOES_NOT_HOLD)


def _kinds(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _CHOICES:
            raise typer.BadParameter(f"there is no fault {name!r}; {_advice(name)}", param_hint="--faults")
    return tuple(name for name in _CHOICES if name in names)


def _advice(name: str) -> str:
    """What else could be meant: a way of the kind that is named, or else a kind."""
    kind, _, way = name.partition(":")
    known = kind in WAYS
    near = get_close_matches(way if known else name, WAYS[kind] if known else ALL_KINDS, n=1, cutoff=0.5)
    prefix = f"{kind}:" if known else ""
    if near:
        return f"did you mean {prefix + near[0]!r}?"
    return f"choose from {', '.join(prefix + each for each in (WAYS[kind] if known else ALL_KINDS))}."


def _judged(path: Path) -> Report:
    try:
        found = report(read_history(path))
    except HistoryError as error:
        raise typer.BadParameter(str(error), param_hint="--check") from None
    except ExpressionError as error:
        problem = f"{path} is not a history: a rule or a constraint in it cannot be read: {error}."
        raise typer.BadParameter(problem, param_hint="--check") from None
    found.history = str(path)
    return found


def _run(minutes: float, kinds: tuple[str, ...], seed: int, brokers: int, directory: Path | None) -> Report:
    from parley.chaos import runner  # noqa: PLC0415 - needs the extra `node`

    home = new_folder(directory, "parley-chaos-")
    settings = runner.Settings(home / "network", minutes * 60, kinds, seed, brokers)
    kept = directory is not None
    try:
        with handling(SIGNALS), provisioning(), _progress(settings.seconds) as say:
            found = report(runner.run(settings, say))
        kept |= not found.holds
    except runner.Unavailable as error:
        kept = True
        output.fail(f"{str(error).rstrip('.')} ({home})", output.ExitCode.WRONG_USE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if not kept:
            shutil.rmtree(home, ignore_errors=True)
    if kept:
        found.history = str(settings.directory / runner.HISTORY)
    return found


@contextmanager
def _progress(seconds: float) -> Iterator[Callable[[str, float], None]]:
    """Steps of about a second of the faults, and one for each other phase."""
    steps = math.ceil(seconds)
    done = 0
    with output.progress("chaos", steps + len(PHASES)) as advance:

        def say(phase: str, part: float) -> None:
            nonlocal done
            place = PHASES.index(phase)
            at = place + int(part * steps) if phase == "faults" else place + (steps if place > 1 else 0)
            advance(max(0, at - done))
            done = max(at, done)

        yield say


def _told(found: Report) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 2))
    rows = {
        "published": f"{found.published}, of which {found.acknowledged} acknowledged, {found.refused} refused, "
        f"{found.unknown} without an answer",
        "delivered": f"{found.delivered}, and {found.empties} empties",
        "lies": f"{found.caught} noticed by clients",
        "lost": str(found.lost),
        "doubled": str(found.doubled),
        "reordered": str(found.reordered),
        "heights": ", ".join(f"{name} {height}" for name, height in found.heights.items()) or "unknown",
        "digests": "equal" if found.digests_equal else "NOT EQUAL",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    kinds = ", ".join(found.faults) or "no faults"
    title = f"\n{found.brokers} brokers, seed {found.seed}, {found.fault_seconds:.0f} s of {kinds}\n"
    details = [Text(f"  {one.name}: {one.detail}") for one in found.details[:MAX_SHOWN]]
    verdict = (
        Text(f"\nEvery property holds ({len(CHECKS)} checked).", style="bold green")
        if found.holds
        else Text(f"\nBROKEN: {', '.join(found.violations)}", style="bold red")
    )
    costs = [] if found.expense is None else [chaos_expense.told(found.expense)]
    return Group(Text(title, style="bold"), Text(timeline(found)), Text(""), table, *costs, verdict, *details)


def _kinds_of(found: Report) -> list[str]:
    """Those that there are: what is to be copied into a shell is not taken from a file."""
    return [choice for choice in _CHOICES if choice in found.faults]


def _advise(found: Report) -> None:
    """How somebody else gets to see it."""
    if _kinds_of(found):
        words = f"--minutes {found.fault_seconds / 60:g} --faults {','.join(_kinds_of(found))} --seed {found.seed}"
        output.note(f"parley: the same faults again: parley chaos {words} --brokers {found.brokers}")
    if found.history:
        output.note(f"parley: this history again: parley chaos --check {shlex.quote(found.history)}")
        sys.stderr.flush()


def _draw(found: Report, path: Path) -> None:
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
            upper.broken_barh(bars, (place - 0.35, 0.25 if state == "lying" else 0.7), color=colour)
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
