"""`parley audit verify`: whether a stopped broker's store is what its network's genesis file and the ordered batches give."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from parley.applications import application_of
from parley.cli import output
from parley.cli.contexts import ContextName, Directory, ShardNumber, shard_of
from parley.cli.lazy import Later, later
from parley.cli.local_folder import require_node_extra
from parley.cli.recover import broker_config
from parley.client.contexts import read_genesis
from parley.ledger.audit import Verdict, verify_store
from parley.model.genesis import Genesis
from parley.store.errors import StoreError, StoreFailed

RECOVER = "parley node recover"

app = typer.Typer(
    cls=later(
        {
            "run": Later("parley.cli.audit_run", "run", "Commands"),
            "watch": Later("parley.cli.audit_watch", "watch", "Commands"),
        }
    ),
    help="Check what brokers have stored and what they and clients do.",
    no_args_is_help=True,
)


@app.command()
def verify(
    *,
    broker: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A broker of the folder; by default its only one."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A store, for example a copy of a broker's data.")
    ] = None,
    genesis: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The genesis file to trust, with --store.")
    ] = None,
    shard: ShardNumber = None,
    replay: Annotated[
        bool, typer.Option("--replay/--no-replay", help="Execute every block again, or only check hashes.")
    ] = True,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Check every record in the store of a stopped broker, from the genesis file on, and name the first that is damaged.

    Ends with 0 if all is right, with 1 if it is not.
    """
    require_node_extra("audit verify")
    data, trusted, number, way_back = _chosen(broker, store, genesis, directory, context, shard=shard)
    verdict = _verified(data, trusted, number, way_back, replay=replay)
    output.emit(
        {"valid": verdict.valid, **asdict(verdict), "store": str(data)},
        lambda: _told(verdict, data),
        as_json=json,
        holds=verdict.valid,
    )


def _chosen(
    broker: str | None,
    store: Path | None,
    genesis: Path | None,
    directory: Path | None,
    context: str | None,
    *,
    shard: int | None,
) -> tuple[Path, Genesis, int, str]:
    """The store that is meant, the genesis file to trust, the shard, and the command that recovers the broker."""
    if (store is None) != (genesis is None):
        raise typer.BadParameter("say --store and --genesis together.", param_hint="--store")
    if store is not None and genesis is not None:
        if broker is not None:
            raise typer.BadParameter("say --broker or --store, not both.", param_hint="--broker")
        trusted = read_genesis(genesis)
        return store, trusted, shard_of(trusted, shard), f"{RECOVER} BROKER"
    from parley.node import config as configuration  # noqa: PLC0415 - an extra
    from parley.node.storage import recovery_command  # noqa: PLC0415

    try:
        config = configuration.load(broker_config(broker, directory, context, hint="--broker")).chosen(shard)
    except configuration.ConfigError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)
    return config.data, config.genesis, config.shard, recovery_command(config)


def _verified(data: Path, genesis: Genesis, shard: int, way_back: str, *, replay: bool) -> Verdict:
    from parley.store.disk import open_store  # noqa: PLC0415 - an extra

    mounted = application_of(genesis).mount(genesis, shard)
    try:
        with open_store(data, create=False) as opened, output.reaching("Checking blocks") as reached:
            return verify_store(opened, genesis, mounted, reached, shard=shard, replay=replay)
    except StoreFailed as error:  # the disk itself: nothing can be said of what it does not give back
        return Verdict(0, 0, _helped(error, way_back))
    except StoreError as error:
        output.fail(_helped(error, way_back), output.ExitCode.WRONG_USE)


def _helped(error: Exception, way_back: str) -> str:
    """The store does not know whose it is."""
    return str(error).replace(f"`{RECOVER}`", f"`{way_back}`")


def _told(verdict: Verdict, store: Path) -> str:
    how = "every block was executed again" if verdict.replayed else "no block was executed again"
    checked = f"{verdict.heights} blocks with {verdict.publications} publications; {how}."
    if verdict.valid:
        return f"Valid: {checked}\nStore {store}"
    return f"NOT VALID: {verdict.first_fault}\nChecked before that: {checked}\nStore {store}"
