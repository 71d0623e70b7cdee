"""`parley sim`: the deterministic simulator."""

import multiprocessing
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from parley.cli import sim_leaders
from parley.cli.output import Json, emit, progress, table
from parley.cli.sim_twins import twins
from parley.consensus.committee import faults
from parley.sim.byzantine import ACTORS
from parley.sim.report import Report, Summary, describe, listed, summarise
from parley.sim.scenario import MAX_NODES
from parley.sim.scenario import run as play

app = typer.Typer(help="Run networks inside a deterministic simulator.", no_args_is_help=True)
for _command in (twins, sim_leaders.leaders, sim_leaders.placements):
    app.command()(_command)


class Crypto(StrEnum):
    """Which signatures the simulated replicas use."""

    SIMULATED = "simulated"
    REAL = "real"


class Application(StrEnum):
    """What the simulated replicas execute."""

    COUNTER = "counter"
    PUBSUB = "pubsub"


class Leaders(StrEnum):
    """How leaders are chosen."""

    ROUND_ROBIN = "round-robin"
    CWA = "cwa"
    CWA_PLUS = "cwa+"


@app.command()
def run(
    *,
    nodes: Annotated[int, typer.Option(min=1, max=MAX_NODES, help="Replicas in the network.")] = 7,
    byzantine: Annotated[
        int | None,
        typer.Option(min=0, help="How many of them lie. If not said, two, or as many as the network bears."),
    ] = None,
    application: Annotated[
        Application, typer.Option(help="What they execute: a counter, or the brokers' pub/sub.")
    ] = Application.COUNTER,
    seed: Annotated[int, typer.Option(min=0, help="Chooses everything that happens.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="Run this many seeds, from --seed upwards.")] = 1,
    crypto: Annotated[Crypto, typer.Option(help="Signatures: fast stand-ins or Ed25519.")] = Crypto.SIMULATED,
    chain: Annotated[int, typer.Option(min=2, max=3, help="Commit depth.")] = 2,
    leaders: Annotated[Leaders, typer.Option(help="How leaders are chosen.")] = Leaders.ROUND_ROBIN,
    actor: Annotated[
        list[str] | None, typer.Option(help="Force a liar by name, repeatable. `sim actors` lists them.")
    ] = None,
    beyond_f: Annotated[
        bool, typer.Option("--beyond-f", help="Allow more liars than the network can bear.")
    ] = False,
    expensive: Annotated[
        bool,
        typer.Option(
            "--expensive", help="With pub/sub: one organisation asks for all that is expensive to execute."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, max=16, help="Processes that share the seeds.")] = 1,
    json: Json = False,
) -> None:
    """Run simulated networks from seeds and check their properties.

    Faults come first: liars, crashes in the middle of writes, loss up to 30 %, partitions; with pub/sub also long
    absences and, where f leaves room beside the liars, lost and damaged disks. Then all must heal.
    """
    if expensive and application is not Application.PUBSUB:
        raise typer.BadParameter(
            "only pub/sub has clients that can be expensive; add --application pubsub.",
            param_hint="--expensive",
        )
    forced = actor or []
    if byzantine is None:
        byzantine = max(min(2, faults(nodes)), len(forced))
    _check(nodes, byzantine, forced, beyond_f=beyond_f)
    one = partial(
        play,
        nodes,
        byzantine,
        application=application.value,
        crypto=crypto.value,
        depth=chain,
        actors=forced,
        leaders=leaders.value,
        expensive=expensive,
    )
    with progress("simulating", seeds) as advance:
        reports = _play_all(one, range(seed, seed + seeds), jobs, advance)
    holds = not any(report.violations for report in reports)
    if seeds == 1:
        emit(reports[0], lambda: describe(reports[0]), as_json=json, holds=holds)
    else:
        emit(summary := summarise(reports), lambda: _summary(summary), as_json=json, holds=holds)


@app.command()
def actors(json: Json = False) -> None:
    """List the liars that `parley sim run --actor` can force."""
    stories = {name: actor.story for name, actor in ACTORS.items()}
    emit({"actors": stories}, lambda: table(("actor", "what it does"), stories.items()), as_json=json)


def _play_all(
    one: Callable[[int], Report], seeds: range, jobs: int, advance: Callable[[], None]
) -> list[Report]:
    """The reports by seed; they do not depend on `jobs`."""
    if jobs == 1:
        return _advancing(map(one, seeds), advance)
    # Processes of their own, not copies of this one: the progress bar has threads.
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return _advancing(pool.imap(one, seeds), advance)


def _advancing(reports: Iterable[Report], advance: Callable[[], None]) -> list[Report]:
    done = []
    for report in reports:
        done.append(report)
        advance()
    return done


def _check(nodes: int, byzantine: int, forced: list[str], *, beyond_f: bool) -> None:
    for name in forced:
        if name not in ACTORS:
            raise typer.BadParameter(
                f"there is no actor {name!r}; choose from {', '.join(ACTORS)}.", param_hint="--actor"
            )
    if len(forced) > byzantine:
        raise typer.BadParameter(
            f"{len(forced)} actors are named, but --byzantine is {byzantine}.", param_hint="--actor"
        )
    if byzantine >= nodes:
        raise typer.BadParameter("at least one replica must be correct.", param_hint="--byzantine")
    if byzantine > faults(nodes) and not beyond_f:
        raise typer.BadParameter(
            f"{nodes} replicas bear {faults(nodes)}, not {byzantine}: beyond that nothing is promised. Say "
            f"--byzantine {faults(nodes)}, or add --beyond-f to see what happens.",
            param_hint="--byzantine",
        )


def _summary(summary: Summary) -> str:
    last = summary.seed + summary.seeds - 1
    broken = [run for run in summary.runs if run.violations]
    numbers = ", ".join(str(run.seed) for run in broken)
    verdict = f"BROKEN at {numbers}; replay one with --seed" if broken else "every property holds"
    lines = [
        *(describe(run) for run in broken),
        f"seeds {summary.seed} to {last}: {verdict}",
        f"  network    {summary.nodes} replicas of the {summary.application} application, commit depth {summary.depth}, {summary.crypto} signatures, {summary.leaders} leaders",
        f"  liars      {', '.join(f'{count} {name}' for name, count in summary.actors.items()) or 'none'}",
        f"  committed  at least {summary.committed} blocks in each run; {summary.acknowledged} batches in all",
        f"  faults     {summary.crashes} crashes",
        f"  happened   {listed(summary.happened)}",
        f"  execution  of a block took {summary.longest_execution_ms:.1f} ms at most",
        f"  trace      {summary.trace_hash}",
    ]
    return "\n".join(lines)
