"""`parley sim twins`: Twins campaigns, their negative controls, and the replay of what they found."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from parley.cli import plots
from parley.cli.output import ExitCode, Json, emit, fail, progress, table
from parley.consensus.committee import faults
from parley.sim.twins.campaign import Campaign, Failure, regressions
from parley.sim.twins.campaign import run as play
from parley.sim.twins.executor import Outcome, Verdict, execute, recovery_views
from parley.sim.twins.generator import Shape
from parley.sim.twins.mutants import MUTANTS
from parley.sim.twins.scenario import MAX_NODES, MAX_SEATS, MIN_NODES, ScenarioError, load, save
from parley.sim.twins.shrink import shrink

SHOWN = 3  # failures that are shrunk, saved and told; the others are counted
MAX_VIEWS = 24
EXHAUSTIVE_VIEWS = 3  # four are a million scenarios: for shards


class Found(Struct):
    """A failing scenario, as small as it gets."""

    scenario: str
    verdict: str
    detail: str
    trace: tuple[str, ...]
    file: str | None = None


class Result(Struct):
    """What a campaign prints."""

    scenarios: int
    safety_failures: int
    liveness_failures: int
    seconds: float
    nodes: int
    twins: int
    views: int
    chain: int
    seed: int | None
    shard: str
    regressions: dict[str, str]
    recovery_views: dict[int, int]
    failures: list[Found]


class Caught(Struct):
    """What became of a mutant."""

    mutant: str
    story: str
    caught: bool
    by: list[str]
    scenarios: int
    seconds: float
    smallest: Found | None


def twins(
    *,
    nodes: Annotated[int, typer.Option(min=MIN_NODES, max=MAX_NODES, help="Members of the committee.")] = 4,
    twins: Annotated[
        int | None,
        typer.Option(min=0, help="How many run twice. If not said, as many as the committee bears."),
    ] = None,
    views: Annotated[
        int | None, typer.Option(min=1, max=MAX_VIEWS, help="Longest script; 8, or 3 if exhaustive.")
    ] = None,
    chain: Annotated[int, typer.Option(min=2, max=3, help="Commit depth.")] = 2,
    scenarios: Annotated[int, typer.Option(min=1, help="How many to draw.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Chooses the scenarios.")] = 0,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Every scenario up to renaming, instead of a sample.")
    ] = False,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only every N-th scenario, from the I-th: 0/4, 1/4, 2/4, 3/4.")
    ] = "0/1",
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    mutant: Annotated[
        str | None, typer.Option(help="Break a rule on purpose and see that it is caught.")
    ] = None,
    mutants: Annotated[bool, typer.Option("--mutants", help="List the rules that can be broken.")] = False,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Play one saved scenario and tell what happens.")
    ] = None,
    save_to: Annotated[
        Path, typer.Option("--save", metavar="DIR", help="Where failing scenarios go.")
    ] = Path("twins-failures"),
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw how soon the network recovered, as PNG.")
    ] = None,
    json: Json = False,
) -> None:
    """Run two copies of some members under scripted partitions, and check safety and recovery.

    Each scenario says view by view who leads and who can talk to whom; then all links work again. Nothing
    conflicting may ever be committed, and everybody must soon commit something new.
    """
    plots.check(plot)
    if mutants:
        stories = {name: mutant.story for name, mutant in MUTANTS.items()}
        emit(
            {"mutants": list(stories), "stories": stories},
            lambda: table(("mutant", "what is broken"), stories.items()),
            as_json=json,
        )
        return
    if mutant is not None and mutant not in MUTANTS:
        raise typer.BadParameter(
            f"there is no mutant {mutant!r}; choose from {', '.join(MUTANTS)}.", param_hint="--mutant"
        )
    if replay is not None:
        _replay(replay, mutant, as_json=json)
        return
    _check_folder(save_to)
    jobs = jobs or os.cpu_count() or 1
    if mutant is not None:
        shape = replace(MUTANTS[mutant].shape, depth=chain)
        _hunt(Campaign(shape, seed, scenarios, mutant=mutant), jobs, as_json=json)
        return
    copies = faults(nodes) if twins is None else twins
    if copies >= nodes or nodes + copies > MAX_SEATS:
        most = min(nodes - 1, MAX_SEATS - nodes)
        raise typer.BadParameter(
            f"of {nodes} members at most {most} can run twice here.", param_hint="--twins"
        )
    shape = Shape(nodes, copies, views or (EXHAUSTIVE_VIEWS if exhaustive else 8), chain)
    campaign = Campaign(shape, seed, None if exhaustive else scenarios, _shard(shard))
    result = _campaign(campaign, jobs, save_to)
    if plot is not None:
        _draw(result, plot)
    holds = not result.failures and not set(result.regressions.values()) - {Verdict.HOLDS.value}
    emit(result, lambda: _tell(result), as_json=json, holds=holds)


def _check_folder(folder: Path) -> None:
    """Before minutes of work, not after them: failing scenarios must find their place."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise typer.BadParameter(
            f"{folder} cannot be written: {there} is no folder that you may write.", param_hint="--save"
        )


def _shard(text: str) -> tuple[int, int]:
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and int(first) < int(step)):
        raise typer.BadParameter("say I/N with I from 0 to N-1, for example 0/4.", param_hint="--shard")
    return int(first), int(step)


# -- campaigns ------------------------------------------------------------------------------------------------------


def _campaign(campaign: Campaign, jobs: int, folder: Path) -> Result:
    start = time.monotonic()
    kept = {
        name: execute(scenario).verdict.value
        for name, (scenario, _, _) in regressions().items()
        # With more liars than the committee bears, it is kept for a negative control only.
        if scenario.twins <= faults(scenario.nodes)
    }
    total = len(range(campaign.shard[0], campaign.size(), campaign.shard[1]))
    with progress("twins", total) as advance:
        tally = play(campaign, jobs=jobs, advance=advance)
    seconds = time.monotonic() - start
    shape = campaign.shape
    return Result(
        scenarios=tally.scenarios,
        safety_failures=tally.verdicts[Verdict.SAFETY],
        liveness_failures=tally.verdicts[Verdict.LIVENESS],
        seconds=round(seconds, 2),
        nodes=shape.nodes,
        twins=shape.twins,
        views=shape.views,
        chain=shape.depth,
        seed=None if campaign.scenarios is None else campaign.seed,
        shard=f"{campaign.shard[0]}/{campaign.shard[1]}",
        regressions=kept,
        recovery_views=dict(sorted(tally.recovery.items())),
        failures=[_explain(campaign, failure, folder) for failure in tally.failures[:SHOWN]],
    )


def _explain(campaign: Campaign, failure: Failure, folder: Path | None) -> Found:
    """Shrink, save and retell a failure. The mutant, if there is one, must be in force."""
    smallest = shrink(campaign.scenario(failure.number))
    outcome = execute(smallest, trace=True)
    label = f"seed-{campaign.seed}-number" if campaign.scenarios is not None else "exhaustive"
    found = _found(f"{label}-{failure.number}", outcome)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{found.scenario}-n{campaign.shape.nodes}-chain{campaign.shape.depth}.json"
        save(path, smallest, story=outcome.detail, mutant=campaign.mutant)
        found.file = str(path)
    return found


def _hunt(campaign: Campaign, jobs: int, *, as_json: bool) -> None:
    """Run a broken rule until it is caught, and against the kept scenarios that were kept for it."""
    assert campaign.mutant is not None
    name, start = campaign.mutant, time.monotonic()
    with progress(f"hunting {name}", campaign.size()) as advance:
        tally = play(campaign, jobs=jobs, advance=advance, until=lambda tally: bool(tally.failures))
    caught: dict[str, Found] = {}
    with MUTANTS[name].applied():
        for failure in tally.failures[:1]:
            by = f"sampled scenario {failure.number} of seed {campaign.seed}"
            caught[by] = _explain(campaign, failure, None)
        for kept, (scenario, _, mutant) in regressions().items():
            if mutant == name and (outcome := execute(scenario, trace=True)).verdict is not Verdict.HOLDS:
                caught[f"kept scenario {kept}"] = _found(kept, outcome)
    seconds = round(time.monotonic() - start, 2)
    smallest = next(iter(caught.values()), None)
    result = Caught(name, MUTANTS[name].story, bool(caught), list(caught), tally.scenarios, seconds, smallest)
    emit(result, lambda: _tell_caught(result), as_json=as_json, holds=result.caught)


def _found(scenario: str, outcome: Outcome) -> Found:
    return Found(scenario, outcome.verdict.value, outcome.detail, outcome.trace)


def _replay(path: Path, mutant: str | None, *, as_json: bool) -> None:
    try:
        scenario, story, saved_for = load(path)
    except ScenarioError as error:
        fail(str(error), ExitCode.WRONG_USE)
    with nullcontext() if mutant is None else MUTANTS[mutant].applied():
        outcome = execute(scenario, trace=True)
    found = _found(path.stem, outcome)
    hint = f"It was saved for --mutant {saved_for}." if saved_for and saved_for != mutant else ""
    emit(
        found,
        lambda: "\n".join(filter(None, [story, *_lines(found), hint])),
        as_json=as_json,
        holds=outcome.verdict is Verdict.HOLDS,
    )


# -- words ----------------------------------------------------------------------------------------------------------


def _title(result: Result) -> str:
    drawn = "all" if result.seed is None else f"seed {result.seed},"
    return (
        f"{drawn} {result.scenarios} scenarios: {result.nodes} members, {result.twins} with a twin, "
        f"up to {result.views} views, commit depth {result.chain}"
    )


def _draw(result: Result, path: Path) -> None:
    """How many scenarios needed how many views, up to the bound: the empty columns are the margin."""
    allowed = recovery_views(result.nodes, result.chain)
    columns = range(max(allowed, *result.recovery_views) + 1)
    figure, (verdicts, recovery) = plots.new_figure(_title(result), 2)
    failures = {"safety": result.safety_failures, "liveness": result.liveness_failures}
    plots.bars(
        verdicts, "scenarios", {"hold": result.scenarios - sum(failures.values()), **failures}, "{:.0f}"
    )
    counts = {str(views): float(result.recovery_views.get(views, 0)) for views in columns}
    plots.bars(recovery, f"views until recovery ({allowed} allowed)", counts, "{:.0f}")
    plots.save(figure, path)


def _tell(result: Result) -> str:
    broken = [name for name, verdict in result.regressions.items() if verdict != Verdict.HOLDS]
    slowest = max(result.recovery_views, default=0)
    allowed = recovery_views(result.nodes, result.chain)
    lines = [
        *(line for found in result.failures for line in [*_lines(found), ""]),
        _title(result),
        f"  safety     {result.safety_failures or 'no'} failures",
        f"  liveness   {result.liveness_failures or 'no'} failures",
        f"  recovery   the slowest took {slowest} views of {allowed} allowed",
        f"  kept       {len(result.regressions) - len(broken)} of {len(result.regressions)} kept scenarios hold"
        + (f"; broken: {', '.join(broken)}" if broken else ""),
        f"  time       {result.seconds} s",
    ]
    if len(result.failures) < result.safety_failures + result.liveness_failures:
        lines.append(f"  told       the first {len(result.failures)} failures, above")
    return "\n".join(lines)


def _tell_caught(result: Caught) -> str:
    verdict = f"caught by {' and by '.join(result.by)}" if result.caught else "NOT CAUGHT"
    lines = [f"{result.mutant}: {verdict}", f"  {result.story}"]
    if result.smallest is not None:
        lines += ["", *_lines(result.smallest)]
    return "\n".join(lines)


def _lines(found: Found) -> list[str]:
    verdict = "holds" if found.verdict == Verdict.HOLDS else f"{found.verdict} FAILS: {found.detail}"
    saved = (
        [] if found.file is None else [f"replay with: ./parley sim twins --replay {shlex.quote(found.file)}"]
    )
    return [f"scenario {found.scenario}: {verdict}", *(f"  {line}" for line in found.trace), *saved]
