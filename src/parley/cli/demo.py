"""`parley demo`: the product told as a story. Each part of the product adds a chapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from parley.cli import demo_liar, demo_pipeline, demo_records, output
from parley.cli.demo_stage import listed
from parley.cli.local_folder import require_node_extra
from parley.consensus.types import Block
from parley.replica.ports import PersistSafety
from parley.sim import observations as seen
from parley.sim.network import Weather
from parley.sim.report import Report
from parley.sim.scenario import Simulation
from parley.spark.java import INSTALL, OLDEST, find_java
from parley.spark.pipeline.run import PipelineFailed

NAMES = ("Alpha", "Bravo", "Charlie", "Delta", "Echo", "Foxtrot", "Golf")
SEED = 1
SECONDS = 20
LOSS = 0.05
CRASHING = 2
CRASH_TIME = 6_000  # ms
DOWNTIME = 5_000
WIDEST = 24  # views in the picture

# What scripts read of it, what people read, and whether everything was as it should be.
Chapter = tuple[Mapping[str, object], RenderableType | Callable[[], RenderableType], bool]


def demo(
    chapter: Annotated[int | None, typer.Option(min=1, max=4, help="Only this one.")] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where chapter 4 leaves its tables and charts.")
    ] = Path("parley-demo"),
    json: output.Json = False,
) -> None:
    """Watch it work: organisations agree while one of them lies, hospitals share records while a broker is killed, a
    reader is told the truth although its own broker lies, and Spark makes tables and charts of what it has verified.
    """
    result: dict[str, object] = {}
    holds = True
    chapters: list[Callable[[], Chapter]] = [_order, _records, _liar, lambda: _pipeline(out)]
    for number, play in enumerate(chapters, 1):
        if chapter in {None, number}:
            played, text, fine = play()
            result |= played
            holds &= fine
            if not json:
                output.emit({}, text, as_json=False)
    if json:
        output.emit(result, "", as_json=True)
    if not holds:
        raise typer.Exit(output.ExitCode.DOES_NOT_HOLD)


def _order() -> Chapter:
    """Chapter 1; the keys of its result stand at the top."""
    story = _Story()
    report = story.play()
    result = {
        "trace_hash": report.trace_hash,
        "committed": report.committed,
        "acknowledged": report.acknowledged,
        "evidence": report.evidence,
        "violations": report.violations,
    }
    return result, lambda: story.tell(report), not report.violations


def _records() -> Chapter:
    """Chapter 2."""
    require_node_extra("demo")
    with output.progress("four hospitals", demo_records.STEPS) as advance:
        outcome = demo_records.play(lambda _step: advance())
    return {"records": outcome}, lambda: demo_records.tell(outcome), outcome.holds


def _liar() -> Chapter:
    """Chapter 3."""
    require_node_extra("demo")
    with output.progress("a lying broker", demo_liar.STEPS) as advance:
        outcome = demo_liar.play(lambda _step: advance())
    return {"liar": outcome}, lambda: demo_liar.tell(outcome), outcome.holds


def _pipeline(out: Path) -> Chapter:
    """Chapter 4. All the rest works without Java, so its absence is no failure of the demo."""
    require_node_extra("demo")
    if missing := _missing():
        text = f"\nChapter 4, the pipeline on Spark, is left out: {missing}"
        return {"pipeline": {"skipped": missing}}, text, True
    try:
        with output.progress("two tenants and Spark", demo_pipeline.STEPS) as advance:
            outcome = demo_pipeline.play(out, lambda _step: advance())
    except PipelineFailed as error:
        output.fail(str(error))
    return {"pipeline": outcome}, lambda: demo_pipeline.tell(outcome), outcome.holds


def _missing() -> str:
    """What Spark lacks here, and how to get it; empty if it is all there."""
    if find_spec("pyspark") is None or find_spec("deltalake") is None:
        return 'it needs Spark: pip install "parley[spark]"'
    return "" if find_java() else f"it needs Java {OLDEST} or newer: {INSTALL}"


class _Story:
    """One simulated network and what is worth telling about it."""

    def __init__(self) -> None:
        self._simulation = Simulation(
            len(NAMES), 1, SEED, actors=["equivocator"], batches=1_000, observer=self._see
        )
        self._liar = next(iter(self._simulation.actors))
        self._chain: dict[int, Block] = {}  # by view
        self._height_of = [0] * len(NAMES)
        self._returning: int | None = None
        self._events: list[tuple[str, str]] = []

    def play(self) -> Report:
        world = self._simulation.world
        world.network.weather = Weather(max_latency=60, loss=LOSS)
        world.after(CRASH_TIME, lambda: world.hosts[CRASHING].arm(0, DOWNTIME, PersistSafety))
        self._simulation.start()
        world.run(SECONDS * 1_000)
        self._simulation.heal()
        self._simulation.finish()
        return self._simulation.report()

    def tell(self, report: Report) -> Group:
        liar, crashing = NAMES[self._liar], NAMES[CRASHING]
        return Group(
            Text("Chapter 1: one order that nobody can bend\n", style="bold"),
            f"Seven organisations, {', '.join(NAMES[:-1])} and {NAMES[-1]}, each run one replica of a ledger. Nobody "
            f"trusts anybody. The network between them loses one message in twenty. {liar} lies: whenever it leads, it "
            f"makes two blocks, shows different ones to different replicas, and votes for both. {crashing} will lose "
            f"power in the middle of a write. This is what happened in {SECONDS} simulated seconds:\n",
            listed(self._events),
            "\nThe end of the chain that all of them hold. Below each view stands who led it; x is a view that ended "
            f"without a block. {liar}'s lies cost views, never agreement: a block of {liar} is final only where enough of "
            f"the others were shown the same one.\n",
            _Picture(self._chain, self._liar),
            listed([("*", f"{sentence}.") for sentence in self._outcome(report)]),
            Text("\nAnother run: ./parley sim run --nodes 7 --byzantine 2 --seed 1", style="dim"),
        )

    def _outcome(self, report: Report) -> list[str]:
        caught = sum(report.evidence.values())
        verdict = "no property was violated" if not report.violations else "PROPERTIES WERE VIOLATED"
        return [
            f"{report.committed} blocks are final at every honest replica, in the same order, with the same results",
            f"{report.acknowledged} client batches were applied, each exactly once",
            f"{caught} times an honest replica caught {NAMES[self._liar]} with two signatures that contradict each other",
            f"Checked all the time: agreement, order, no creation, no duplication, equal results: {verdict}",
        ]

    def _see(self, time: int, event: seen.Observation) -> None:
        match event:
            case seen.Applied():
                self._applied(time, event)
            case seen.Crashed():
                torn = ", in the middle of writing down a vote" if event.record else ""
                self._note(
                    time,
                    f"{NAMES[event.replica]} loses power at block {self._height_of[event.replica]}{torn}",
                )
            case seen.Started() if time > 0:
                behind = max(self._height_of) - event.committed
                self._note(
                    time,
                    f"{NAMES[event.replica]} is back. It reads which votes it cast, so it cannot vote twice, and asks "
                    f"the others for {behind} blocks",
                )
                self._returning = event.replica
            case seen.Healed():
                self._note(time, f"the network stops losing messages; {NAMES[self._liar]} goes on lying")
            case _:
                pass

    def _applied(self, time: int, event: seen.Applied) -> None:
        self._chain[event.block.view] = event.block
        self._height_of[event.replica] = event.block.height
        if event.replica == self._returning and event.block.height == max(self._height_of):
            self._returning = None
            self._note(
                time, f"{NAMES[event.replica]} has caught up: block {event.block.height}, same as the others"
            )

    def _note(self, time: int, sentence: str) -> None:
        self._events.append((f"{time / 1_000:.1f} s", f"{sentence}."))


class _Picture:
    """Two lines: block heights joined along the views, and below each view the initial of its leader."""

    def __init__(self, chain: dict[int, Block], liar: int) -> None:
        self._chain = chain
        self._liar = liar

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        newest = max(self._chain)
        views = min(WIDEST, (options.max_width - 10) // 4)
        blocks, leaders = Text("  block   "), Text("  leader  ")
        for view in range(max(1, newest - views + 1), newest + 1):
            leader = view % len(NAMES)
            block = self._chain.get(view)
            style = "red" if leader == self._liar else "yellow" if leader == CRASHING else ""
            blocks.append(f"{block.height:─>4}" if block else "───x", style="" if block else "red")
            leaders.append(f"{NAMES[leader][0]:>4}", style=style)
        yield from (blocks, leaders, "")
