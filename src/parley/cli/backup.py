"""`parley node backup` and `parley node restore`: a copy of a running broker's ledger, and the way back from it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import output
from parley.cli.contexts import ContextName, Directory, ShardNumber
from parley.cli.local_folder import provisioning, require_node_extra
from parley.cli.recover import BrokerName, broker_config
from parley.consensus.errors import SafetyRecordError
from parley.store.errors import StoreError

if TYPE_CHECKING:  # an extra
    from parley.node.backup import Restored
    from parley.node.backup_file import Manifest
    from parley.node.config import Config


def backup(
    *,
    broker: BrokerName = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="The backup to write, a tar file.")] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Check a backup instead: is it whole?"
        ),
    ] = None,
    shard: ShardNumber = None,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Copy a broker's ledger into one file, whether the broker runs or not: no keys, and no safety record.

    It holds all that was published, readable by you alone. Keys are kept elsewhere: see docs/operate.md.
    """
    require_node_extra("node backup")
    from parley.node import config as configuration  # noqa: PLC0415 - an extra
    from parley.node.backup import make_backup  # noqa: PLC0415
    from parley.node.backup_file import verify_backup  # noqa: PLC0415

    if (to is None) == (verify is None):
        raise typer.BadParameter("say --to FILE to make a backup, or --verify FILE.", param_hint="--to")
    with _stopping_with_a_sentence():
        if verify is not None:
            with output.reaching("Checking the backup") as reached:
                manifest = verify_backup(verify, reached)
            output.emit(
                _result(verify, manifest), f"{_told(verify, manifest)}\nEvery file is whole.", as_json=json
            )
        elif to is not None:
            _require_new(to)
            config = configuration.load(broker_config(broker, directory, context)).chosen(shard)
            with output.reaching("Writing the backup") as reached:
                manifest = make_backup(config, to, reached)
            output.emit(_result(to, manifest), _told(to, manifest), as_json=json)


def restore(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A backup of this broker.")
    ],
    broker: BrokerName = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    shard: ShardNumber = None,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Put a backup into the empty data folder of a stopped broker; the others bring it what happened since.

    A safety record never comes from a backup. If it is lost, the broker gets one that abstains, as from `node recover`.
    """
    require_node_extra("node restore")
    from parley.node import backup as backups  # noqa: PLC0415 - an extra
    from parley.node import config as configuration  # noqa: PLC0415

    with _stopping_with_a_sentence():
        config = configuration.load(broker_config(broker, directory, context)).chosen(shard)
        manifest, record_lost = backups.check_restorable(config, file)
        output.note(_explained(config, manifest, record_lost=record_lost))
        if not yes:
            output.ask("Go on?", as_json=json)
        with output.reaching("Restoring") as reached:
            done = backups.restore_backup(config, file, reached)
    result = {
        **_result(file, manifest),
        "record": "new" if done.recovered.record else "kept",
        "data": str(config.data),
    }
    output.emit(result, lambda: _restored(config, done), as_json=json)


def _require_new(path: Path) -> None:
    if path.exists():
        problem = f"{path} exists already and is not overwritten; choose another name."
    elif not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        problem = f"{path.absolute().parent} is no folder that you can write to."
    else:
        return
    raise typer.BadParameter(problem, param_hint="--to")


@contextmanager
def _stopping_with_a_sentence() -> Iterator[None]:
    from parley.node.copies import BackupError  # noqa: PLC0415

    try:
        with provisioning(SafetyRecordError, StoreError):
            yield
    except BackupError as error:
        output.fail(str(error).rstrip("."))


def _result(path: Path, manifest: Manifest) -> dict[str, object]:
    return {
        "file": str(path),
        "network": manifest.network,
        "chain": manifest.chain,
        "broker": manifest.broker,
        "height": manifest.height,
        "block": manifest.block,
        "time": manifest.time,
        "bytes": manifest.bytes,
        "files": len(manifest.files),
    }


def _told(path: Path, manifest: Manifest) -> str:
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.time // 1_000))
    return (
        f"{path}: the ledger of {manifest.broker} of network {manifest.network} up to height {manifest.height}, "
        f"{manifest.bytes} bytes, {made}.\n"
        f"Block {manifest.block}"
    )


def _explained(config: Config, manifest: Manifest, *, record_lost: bool) -> str:
    name = config.broker.name
    if record_lost:
        record = (
            f"The safety record {config.safety} is lost. {name} gets a new one, with which it signs nothing until the others "
            f"have gone on past all that it may have signed. Until then it counts among the faulty."
        )
    else:
        record = (
            f"The safety record {config.safety} stays. It must be the newest one: if it comes from a backup or an old snapshot "
            f"of the machine, restore nothing and run `parley node recover --stale-record`."
        )
    return (
        f"{config.data} gets the ledger of {name} up to height {manifest.height}; the rest comes from the others.\n"
        f"{record}\n"
        "Make sure that this broker runs nowhere else."
    )


def _restored(config: Config, done: Restored) -> str:
    lines = [
        f"{config.data} holds the ledger up to height {done.manifest.height}.",
        f"{config.broker.name} can be started: parley node {config.path}",
    ]
    if done.recovered.record:
        lines.append("Until it votes again `parley status` calls it recovering.")
    return "\n".join(lines)
