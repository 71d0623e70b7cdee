"""Chapter 4 of the demo: two tenants feed one network, and Spark makes tables and charts of what it has verified itself."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from rich.console import Group
from rich.text import Text

from parley.cli import contexts, local_setup
from parley.cli.demo_stage import Say, all_ready, listed, running
from parley.cli.examples import Sent, intrude, publish, set_up, yesterday
from parley.cli.output import ExitCode, fail
from parley.cli.pipeline import feed, gold_tables
from parley.client.contexts import read_genesis
from parley.node.processes import local_brokers
from parley.spark.pipeline.folder import Folder
from parley.spark.pipeline.report import Run
from parley.spark.pipeline.run import BRIEF, FLOWS, run_pipeline
from parley.spark.pipeline.sensors import Pace, readings
from parley.spark.session import LOCAL

ORGANISATIONS = 4
READINGS = 6_900  # a day
MARK = "demo"  # a file that says whose the folder is: what has it may be deleted
SEED = 1
PATIENCE = 90.0  # seconds for everything before the pipeline
STEPS = 3 + FLOWS  # that `say` hears of


class Outcome(Struct):
    """Scripts read it with `--json`."""

    published: dict[str, int]
    malformed: int
    refusal: str  # what the network told a tenant that meddled with the other's topic
    run: Run
    seconds: float

    @property
    def holds(self) -> bool:
        tables = self.run.tables
        complete = all(tables[f"{topic}_bronze"].rows == count for topic, count in self.published.items())
        aside = sum(count for found in self.run.dead_letters.values() for count in found.values())
        return complete and aside == self.malformed and bool(self.refusal) and self.run.holds


def play(out: Path, say: Say) -> Outcome:
    """Run the story on brokers of its own; tables and charts stay in `out`, and `say` hears of each step."""
    begin = time.monotonic()
    say("starting four brokers")
    folder = _emptied(out)
    with staged() as chosen:
        outcome = perform(chosen, folder, say)
    outcome.seconds = round(time.monotonic() - begin, 1)
    return outcome


def _emptied(out: Path) -> Folder:
    """What an earlier demo left is of another network. What is not of a demo is left alone."""
    folder = Folder(out.absolute())
    if (folder.path / MARK).is_file():
        shutil.rmtree(folder.path)
    elif folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        fail(f"{out} holds other things; choose another --out", ExitCode.WRONG_USE)
    return folder


@contextmanager
def staged() -> Iterator[contexts.Chosen]:
    """A network as `parley up` makes it, for as long as it is needed."""
    with TemporaryDirectory(prefix="parley-demo-") as folder:
        home = Path(folder) / "network"
        local_setup.provision(home, ORGANISATIONS)
        with running(local_brokers(home, read_genesis(home / "genesis.json"))):
            yield contexts.find(home, None)


def perform(chosen: contexts.Chosen, folder: Folder, say: Say, master: str = LOCAL) -> Outcome:
    sent, refusal = asyncio.run(_publish(chosen, say))
    say("starting Spark")
    with folder.held(read_genesis(chosen.file.genesis).chain.hex()):
        (folder.path / MARK).touch()
        run = run_pipeline(folder, feed(chosen), master, java=BRIEF, completed=say)
    return Outcome(dict(sent.messages), sent.malformed.total(), refusal, run, run.seconds)


async def _publish(chosen: contexts.Chosen, say: Say) -> tuple[Sent, str]:
    async with asyncio.timeout(PATIENCE):
        await all_ready(chosen.directory)
        say("publishing a day of readings")
        await set_up(chosen)
        sent = await publish(chosen, islice(readings(SEED, Pace(yesterday())), READINGS))
        return sent, await intrude(chosen)


def tell(outcome: Outcome) -> Group:
    run = outcome.run
    failing = [one for one in run.expectations if not one.holds]
    vitals, air = (outcome.published[topic] for topic in ("vitals", "air"))
    verdict = "all of them hold" if not failing else f"{len(failing)} DO NOT HOLD"
    reasons = sorted({reason for found in run.dead_letters.values() for reason in found})
    sentences = [
        f"{vitals} readings of patients and {air} of rooms were published in one day of simulated time",
        f"The provider tried to publish junk as the hospital's. The network refused: {outcome.refusal.rstrip('.')}",
        "Spark's own tasks checked every message against the signatures of the organisations; each tenant was read as itself",
        f"{outcome.malformed} readings were damaged on purpose, and so many were set aside, with reasons: {', '.join(reasons)}",
        f"{len(run.expectations)} expectations of the data were counted: {verdict}",
        *(
            f"NOT AS EXPECTED: {one.table}: {one.expectation} ({one.failing} of {one.rows})"
            for one in failing
        ),
    ]
    return Group(
        Text("\nChapter 4: two tenants, one network, and Spark\n", style="bold"),
        "A hospital measures pulse and blood pressure on four wards; a provider of home devices measures the air in three "
        "buildings. They share the brokers, and neither trusts the other. A pipeline on Spark turns what they publish into "
        "tables: bronze as it came, silver typed, gold by the hour. This is what happened:\n",
        listed(("*", f"{sentence}.") for sentence in sentences),
        *gold_tables(run),
        Text(
            f"\n{outcome.seconds:.0f} seconds; the tables are in {run.output}. To try it yourself: "
            "./parley up --detach, ./parley examples sensors, ./parley pipeline run",
            style="dim",
        ),
    )
