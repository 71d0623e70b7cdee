"""`parley sim leaders` and `parley sim placements`: what a leader scheme is worth, and what re-sent votes are worth."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from parley.cli import plots
from parley.cli.output import Json, emit, fail, note, progress, table
from parley.consensus.committee import faults
from parley.sim.leader_faults import Fault, Network, Plan
from parley.sim.leaders import TIMEOUT_FACTOR, VARIANTS, Comparison, StalledError, compare, steps
from parley.sim.placements import Placements, every, modelled, try_all

MAX_NODES = 32
MAX_PLACEMENT_NODES = 13  # 715 placements; their number explodes


def leaders(
    *,
    nodes: Annotated[int, typer.Option(min=4, max=MAX_NODES, help="Members of the committee.")] = 32,
    faulty: Annotated[
        int | None, typer.Option(min=1, help="How many are faulty. If not said, as many as it bears.")
    ] = None,
    fault: Annotated[Fault, typer.Option(help="What the faulty members do.")] = Fault.CRASH,
    network: Annotated[
        Network, typer.Option(help="Distances: every two members their own, or five regions.")
    ] = Network.WAN,
    seed: Annotated[int, typer.Option(min=0, help="Chooses who is faulty, who lives where, all delays.")] = 0,
    blocks: Annotated[int, typer.Option(min=10, max=100_000, help="Blocks that count, per scheme.")] = 3_000,
    schemes: Annotated[
        str | None,
        typer.Option(
            help="Which to compare, separated by commas. If not said, all; cwa (grace) only under withhold."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, max=16, help="Processes; by default one per core.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the result into this PNG file.")] = None,
    json: Json = False,
) -> None:
    """Compare leader schemes: the same committee across a wide area, the same faults, one scheme after the other.

    Time is virtual, so the figures do not depend on this machine. `crash`: never started. `withhold`: vote, but never
    propose. `omit`: leave the votes of chosen victims out of certificates. `none`: nobody is faulty.
    """
    names = _default(fault) if schemes is None else _schemes(schemes)
    plots.check(plot)
    if fault is Fault.NONE and faulty is not None:
        note("parley: nobody is faulty under --fault none, so --faulty is ignored")
    plan = Plan(nodes, _faulty(nodes, faulty), fault, seed, blocks, network)
    begin = time.monotonic()
    try:
        with progress("simulating", steps(plan, names)) as advance:
            result = compare(plan, names, jobs or os.cpu_count() or 1, advance)
    except StalledError as stalled:
        fail(f"the network stalled: {stalled}")
    seconds = round(time.monotonic() - begin, 1)
    if plot is not None:
        _draw(result, plot)
    emit({**asdict(result), "seconds": seconds}, lambda: _comparison(result, seconds), as_json=json)


def placements(
    *,
    nodes: Annotated[int, typer.Option(min=4, max=MAX_PLACEMENT_NODES, help="Members of the committee.")] = 4,
    chain: Annotated[int, typer.Option(min=2, max=3, help="Commit depth.")] = 3,
    json: Json = False,
) -> None:
    """Crash f members in every possible placement under round-robin, and see whether blocks are still committed.

    Once as the code is, with the vote sent again in the timeout, and once without that (trap T9).
    """
    with progress("placing", 2 * len(every(nodes))) as advance:
        result = try_all(nodes, chain, advance)
    emit(result, lambda: _placements(result), as_json=json, holds=not result.stuck_with_repair)


# -- options ---------------------------------------------------------------------------------------------------------


def _default(fault: Fault) -> tuple[str, ...]:
    """Waiting for late votes only makes a difference to who withholds; elsewhere it is slow and nothing else."""
    return tuple(name for name, variant in VARIANTS.items() if not variant.grace or fault is Fault.WITHHOLD)


def _schemes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in VARIANTS:
            raise typer.BadParameter(
                f"there is no scheme {name!r}; choose from {', '.join(VARIANTS)}.", param_hint="--schemes"
            )
    return names


def _faulty(nodes: int, faulty: int | None) -> int:
    if faulty is None:
        return faults(nodes)
    if faulty > faults(nodes):
        raise typer.BadParameter(
            f"{nodes} members bear {faults(nodes)} faulty ones, not {faulty}: beyond that no scheme commits.",
            param_hint="--faulty",
        )
    return faulty


# -- for people --------------------------------------------------------------------------------------------------------


def _comparison(result: Comparison, seconds: float) -> RenderableType:
    share = _byzantine(result.fault)
    shown = table(
        ("scheme", "blocks/s", "to round-robin", "failed views", share, "slow views", "proposers"),
        (
            (
                name,
                f"{throughput:.2f}",
                f"{result.ratio[name]:.2f} x" if result.ratio else "-",
                f"{result.failed_view_share[name]:.1%}",
                f"{result.byzantine_share[name]:.1%}",
                f"{result.timeouts[name]:.1%}",
                str(result.proposers[name]),
            )
            for name, throughput in result.throughput.items()
        ),
        left=("scheme",),
    )
    return Group(_title(result), "", shown, "", *_remarks(result, seconds))


def _title(result: Comparison) -> str:
    who = "nobody faulty" if result.fault is Fault.NONE else f"{result.faulty} faulty ({result.fault})"
    where = "across a wide area" if result.network is Network.WAN else "in five regions"
    return f"{result.nodes} members {where}, {who}, seed {result.seed}, {result.blocks} blocks"


def _byzantine(fault: Fault) -> str:
    return "blocks of faulty" if fault is Fault.OMIT else "views of faulty"


def _remarks(result: Comparison, seconds: float) -> list[str]:
    timing = (
        f"view timeout {result.view_timeout_ms} ms = {TIMEOUT_FACTOR} x the median healthy view of {result.median_view_ms} ms, "
        "without back-off"
    )
    lines = [
        timing,
        f"not counted: the first {result.warm_up} blocks of each scheme, the longest memory of them all",
        "failed views: no block of the chain; slow views: given up on, but their block was certified all the same",
        "proposers: members with a block in the chain",
    ]
    if result.fault is not Fault.NONE:
        lines.append(f"a fair share of the faulty members is {result.fair_share:.1%}")
    if "cwa (grace)" in result.throughput:
        lines.append(f"cwa (grace): collectors wait {result.vote_grace_ms} ms for more votes than a quorum")
    return [*lines, f"{seconds:.0f} s on this machine"]


def _draw(result: Comparison, path: Path) -> None:
    title = f"{_title(result)}, view timeout {result.view_timeout_ms / 1000:.1f} s"
    figure, (throughput, failed, byzantine) = plots.new_figure(title, 3)
    plots.bars(throughput, "committed blocks per second", result.throughput, "{:.2f}")
    plots.bars(failed, "failed views", result.failed_view_share, "{:.1%}")
    plots.bars(byzantine, _byzantine(result.fault), result.byzantine_share, "{:.1%}")
    if result.fault is not Fault.NONE:
        plots.mark(byzantine, result.fair_share, f"fair share {result.fair_share:.1%}")
    plots.save(figure, path)


def _placements(result: Placements) -> RenderableType:
    count, model = result.placements, modelled(result.nodes, result.chain)
    vote, stuck = "the vote in the timeout", "never commit, crashed members"
    shown = table(
        (vote, "commit", "predicted", stuck),
        (
            (
                "sent again",
                f"{result.with_repair}/{count}",
                f"{count}/{count}",
                _list(result.stuck_with_repair),
            ),
            (
                "left out",
                f"{result.without_repair}/{count}",
                f"{model}/{count}",
                _list(result.stuck_without_repair),
            ),
        ),
        left=(vote, stuck),
    )
    title = (
        f"{result.nodes} members, {faults(result.nodes)} crashed, round-robin, commit depth {result.chain}"
    )
    return Group(title, "", shown)


def _list(stuck: tuple[tuple[int, ...], ...]) -> str:
    shown = [" ".join(map(str, placement)) for placement in stuck[:12]]
    return ", ".join([*shown, *(["..."] if len(stuck) > len(shown) else [])]) or "none"
