"""`parley pipeline`: from what devices published to tables and charts, on Spark."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from parley.cli import output
from parley.cli.contexts import Chosen, ContextName, Directory, dir_option, find
from parley.cli.examples import identity_of, who
from parley.cli.network import INTERRUPTED, connected, run
from parley.cli.on_spark import code_of, network_of, require_spark
from parley.client.contexts import read_genesis
from parley.client.errors import UnknownTopic
from parley.spark.errors import ParleySparkError
from parley.spark.pipeline.folder import Busy, Folder, OtherNetwork
from parley.spark.pipeline.report import Run
from parley.spark.pipeline.run import FLOWS, Feed, PipelineFailed, run_pipeline
from parley.spark.pipeline.tenants import TENANTS, Tenant
from parley.spark.session import CONNECT, prepare

LOCAL = "local[2]"
FOLDER = "pipeline"

app = typer.Typer(help="Tables and charts of what was published, made on Spark.", no_args_is_help=True)


@app.command("run")
def run_command(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where tables and charts go; default: pipeline, in the network's folder."
        ),
    ] = None,
    spark: Annotated[
        str,
        typer.Option(metavar="URL", help="Where Spark runs: local[2], or a cluster as spark://HOST:PORT."),
    ] = LOCAL,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Read what `parley examples sensors` published, verify it, and bring tables and charts up to date.

    Bronze tables hold verified messages, silver tables typed readings, and what is no reading is set aside with the
    reason. Gold tables have vital signs per ward and indoor air per building. A second run reads only what is new. The
    exit code is 1 if an expectation of the data does not hold.
    """
    chosen = find(directory, context)
    done = _work(chosen, Folder((out or chosen.directory / FOLDER).absolute()), spark)
    output.emit(done, lambda: told(done), as_json=json, holds=done.holds)


def _work(chosen: Chosen, folder: Folder, master: str) -> Run:
    """One run to its end, or the end of the command with a sentence."""
    require_spark()
    if master.startswith(CONNECT):
        output.fail(
            "the pipeline starts a Spark of its own; say local[2], or spark://HOST:PORT",
            output.ExitCode.WRONG_USE,
        )
    read = feed(chosen)
    try:
        prepare(master)
        run(_check(chosen))
        chain = read_genesis(chosen.file.genesis).chain.hex()
        with folder.held(chain), output.progress("pipeline", FLOWS) as advance:
            return run_pipeline(folder, read, master, completed=lambda _: advance())
    except (Busy, OtherNetwork) as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)
    except (ParleySparkError, PipelineFailed) as error:
        output.fail(str(error), code_of(error.condition))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def feed(chosen: Chosen) -> Feed:
    """The same network for Spark: names and paths, which every node has to have. Each tenant reads as itself."""
    identities = {tenant.topic: identity_of(chosen, tenant, tenant.reader) for tenant in TENANTS}
    for identity in identities.values():
        if not identity.is_file():
            output.fail(f"there is no {identity}; {_remedy(chosen)}", output.ExitCode.WRONG_USE)
    return Feed(network_of(chosen), identities)


async def _check(chosen: Chosen) -> None:
    """A network that cannot be reached, or has no such topic, is noticed before Spark starts."""

    async def look(tenant: Tenant) -> None:
        async with connected(chosen, who(chosen, tenant, tenant.reader)) as client:
            try:
                await client.topic(tenant.topic)
            except UnknownTopic as error:
                error.add_note(_remedy(chosen))
                raise

    await asyncio.gather(*(look(tenant) for tenant in TENANTS))


def _remedy(chosen: Chosen) -> str:
    return f"make it with `parley examples sensors{dir_option(chosen.directory)}`"


# -- what is shown ---------------------------------------------------------------------------------------------------


def told(done: Run) -> Group:
    tables = ((name, f"{rows.rows:,}", f"{rows.new:+,}") for name, rows in done.tables.items())
    dead = Counter[str]()
    for found in done.dead_letters.values():
        dead.update(found)
    aside = ", ".join(f"{count} {reason}" for reason, count in sorted(dead.items()))
    return Group(
        output.table(("table", "rows", "new"), tables, left=("table",)),
        Text(f"\nset aside: {aside or 'nothing'}\n"),
        _expectations(done),
        *gold_tables(done),
        f"\n{done.seconds:.0f} seconds. Everything is in {done.output}",
    )


def _expectations(done: Run) -> Table:
    """Those that fail stand first."""
    return output.table(
        ("expectation", "of", "rows", "fail", ""),
        (
            (
                one.expectation if one.least == 1 else f"{one.expectation} (at least {one.least:.0%})",
                one.table,
                f"{one.rows:,}",
                f"{one.failing:,}",
                Text("holds", style="dim") if one.holds else Text("DOES NOT HOLD", style="bold red"),
            )
            for one in done.expectations
        ),
        left=("expectation", "of", ""),
    )


def gold_tables(done: Run) -> list[Table | Text]:
    """The newest rows of each, and where its chart is."""
    shown: list[Table | Text] = []
    for gold in done.gold:
        columns = list(gold.newest[0]) if gold.newest else []
        table = output.table(columns, ([_cell(row[name]) for name in columns] for row in gold.newest))
        shown += [Text(f"\n{gold.table}: {gold.rows} rows, the newest", style="bold"), table]
        shown.append(Text(f"chart: {gold.chart}"))
    return shown


def _cell(value: object) -> str:
    match value:
        case float():
            return f"{value:g}"
        case str() if value.endswith("Z") and "T" in value:
            return value[:16].replace("T", " ")
        case _:
            return str(value)
