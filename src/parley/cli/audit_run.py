"""`parley audit run`: a whole ledger verified on Spark, from the network or from a copy of a broker's store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import output
from parley.cli.contexts import As, Chosen, ContextName, Directory, ShardNumber, find, shard_of
from parley.cli.local_folder import require_node_extra
from parley.cli.on_spark import ending, network_of, require_spark
from parley.client.contexts import read_genesis
from parley.ledger.audit_blocks import Check
from parley.model.genesis import Genesis
from parley.spark import session
from parley.spark.auditing import Ledger
from parley.spark.findings import SUFFIXES, Report, unreadable, write
from parley.spark.options import Network
from parley.store.errors import StoreError, StoreFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2]"
SHOWN = 20  # findings that a person sees; the table has all


def run(
    *,
    spark: Annotated[
        str,
        typer.Option(metavar="URL", help="Where Spark runs: local[2], spark://HOST:PORT, sc://HOST:PORT."),
    ] = LOCAL,
    store: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A copy of a broker's data; without it the network is asked."),
    ] = None,
    genesis: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The genesis file to trust, with --store.")
    ] = None,
    shard: ShardNumber = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Let one task execute every block again.")
    ] = False,
    findings: Annotated[
        Path, typer.Option(metavar="FILE", help="The table of findings: a .parquet or a .json file.")
    ] = Path("findings.parquet"),
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Verify a whole ledger with many tasks at once, and write down everything that is wrong with it.

    Hash chain, certificates, roots, receipts, client signatures and bodies; of a store also its state and indices. From
    the network it needs an identity with the right auditor. Blocks are not executed again unless --replay says so. Ends
    with 0 if all is right, with 1 if it is not, with 3 if too few brokers answer.
    """
    require_spark()
    _require_writable(findings)
    chosen = find(directory, context) if store is None else None
    work, source = _chosen(store, genesis, chosen, who, shard=shard, replay=replay)
    report = _done(spark, work)
    write(report, findings)
    count = len(report.findings) + report.unlisted
    result = {
        "valid": report.valid,  # the first five are those of `audit verify`
        "heights": report.heights,
        "publications": report.publications,
        "first_fault": report.first_fault,
        "replayed": report.replayed,
        "findings": count,
        "by_check": Counter(Check(finding.check).name.lower() for finding in report.findings),
        "erased": report.erased,
        "tasks": report.tasks,
        "seconds": round(report.seconds, 3),
        "source": source,
        "table": str(findings),
    }
    output.emit(result, lambda: _told(report, count, source, findings), as_json=json, holds=report.valid)


def _chosen(
    store: Path | None,
    genesis: Path | None,
    chosen: Chosen | None,
    who: str | None,
    *,
    shard: int | None,
    replay: bool,
) -> tuple[Callable[[SparkSession], Report], str]:
    """The audit that is meant, and what it is of."""
    if (store is None) != (genesis is None):
        raise typer.BadParameter("say --store and --genesis together.", param_hint="--store")
    from parley.spark.audit import audit_network  # noqa: PLC0415 - an extra

    if store is not None and genesis is not None:
        require_node_extra("audit run --store")  # for the database
        if who is not None:
            raise typer.BadParameter("a store is read as nobody; leave --as out.", param_hint="--as")
        if not store.is_dir():
            raise typer.BadParameter(f"there is no folder {store}.", param_hint="--store")
        path, trusted = store.absolute(), read_genesis(genesis)
        number = shard_of(trusted, shard)
        return lambda spark: _of_store(spark, path, trusted, number, replay=replay), str(store)
    assert chosen is not None
    where = network_of(chosen)
    identity = str(chosen.speaker(who).absolute())
    number = shard_of(read_genesis(chosen.file.genesis), chosen.file.shard if shard is None else shard)
    network = Network(where.get("context"), where.get("directory"), identity=identity, shard=number)
    with ending(chosen=chosen):
        Ledger(network).block(1)  # who may not read the ledger hears of it before Spark starts
    return lambda spark: audit_network(spark, network, replay=replay), chosen.source


def _of_store(spark: SparkSession, path: Path, genesis: Genesis, shard: int, *, replay: bool) -> Report:
    from parley.spark.audit import audit_store  # noqa: PLC0415

    try:
        return audit_store(spark, path, genesis, shard=shard, replay=replay)
    except StoreFailed as error:  # the disk itself: nothing can be said of what it does not give back
        return unreadable(str(error))
    except StoreError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)


def _require_writable(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(f"the name ends with {' or '.join(SUFFIXES)}.", param_hint="--findings")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}.", param_hint="--findings")


def _done(master: str, work: Callable[[SparkSession], Report]) -> Report:
    with ending():
        spark = session.spark_session("parley audit run", master)
        try:
            return work(spark)
        finally:
            spark.stop()


def _told(report: Report, count: int, source: str, table: Path) -> str:
    how = "every block was executed again" if report.replayed else "no block was executed again"
    lines = [
        f"{'Valid' if report.valid else 'NOT VALID'}: {report.heights} blocks with {report.publications} publications; {how}.",
        *(f"  {finding.text}" for finding in report.findings[:SHOWN]),
    ]
    if count > SHOWN:
        lines.append(f"  and {count - SHOWN} more")
    if report.erased:
        lines.append(f"{report.erased} bodies are erased; their receipts and headers were checked.")
    lines.append(f"{report.tasks} tasks, {report.seconds:.1f} s. Source {source}. Findings {table}")
    return "\n".join(lines)
