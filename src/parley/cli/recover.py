"""`parley node recover`: the way back of a broker that lost its disk, its store or its safety record (P10)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import contexts, output
from parley.cli.local_folder import provisioning, require_node_extra
from parley.consensus.committee import faults
from parley.consensus.errors import SafetyRecordError
from parley.store.errors import StoreError

if TYPE_CHECKING:  # an extra
    from parley.node.config import Config
    from parley.node.recovery import Loss, Recovered

BrokerName = Annotated[
    str | None,
    typer.Argument(
        metavar="BROKER",
        help="Its name in the folder, or its broker.toml; by default the folder's only one.",
    ),
]


def recover(
    *,
    broker: BrokerName = None,
    stale_record: Annotated[
        bool,
        typer.Option(
            "--stale-record", help="The safety record can be read but is old, from a backup for example."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    shard: contexts.ShardNumber = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Put the disk of a stopped broker in order after a loss, so that it can start and come back.

    What is still good stays; what is damaged is moved aside, never deleted. At most f brokers may need this at a time.
    """
    require_node_extra("node recover")
    from parley.node import config as configuration  # noqa: PLC0415
    from parley.node import recovery  # noqa: PLC0415

    with provisioning(SafetyRecordError, StoreError):
        config = configuration.load(broker_config(broker, directory, context)).chosen(shard)
        loss = recovery.examine(config, stale_record=stale_record)
        if loss:
            output.note(_explained(config, loss))
            if not yes:
                output.ask("Go on?", as_json=json)
        done = recovery.recover_storage(config, stale_record=stale_record)
    result = {
        "broker": config.broker.name,
        "recovered": done.record or done.store,
        "record": "new" if done.record else "kept",
        "store": "new" if done.store else "kept",
        "abstains": done.record or loss.abstains,
        "moved": [str(path) for path in done.moved],
    }
    output.emit(result, lambda: _told(config, loss, done), as_json=json)


def broker_config(
    broker: str | None, directory: Path | None, context: str | None, *, hint: str = "BROKER"
) -> Path:
    """The configuration of a broker that is named, with the argument or option `hint`, or of the only one there is."""
    if broker is not None and Path(broker).is_file():
        return Path(broker)
    home = contexts.find_directory(directory, context)
    found = sorted(home.glob("brokers/*/broker.toml"))
    chosen = [path for path in found if broker in (None, path.parent.name)]
    if len(chosen) != 1:
        names = ", ".join(path.parent.name for path in found) or "none"
        raise typer.BadParameter(
            f"{home} has {len(found)} brokers, so say which one is meant: {names}."
            if broker is None
            else f"there is no file {broker} and no such broker in {home}, which has: {names}.",
            param_hint=hint,
        )
    return chosen[0]


def _explained(config: Config, loss: Loss) -> str:
    from parley.node.storage import holds_something  # noqa: PLC0415 - an extra

    size = config.committee.size
    lines = []
    if loss.record:
        lines.append(
            f"The safety record {config.safety} {loss.record}. {config.broker.name} gets a new one, with which it signs "
            f"nothing until the others have gone on past all that it may have signed.\n"
            f"Until then it counts among the faulty: of {size} brokers, {faults(size)} may be faulty or in this state at a "
            f"time. With more the network stands still."
        )
    if loss.store:
        lines.append(
            f"The store {config.data} {loss.store}. It is made anew and filled from the other brokers."
        )
    if (loss.record and holds_something(config.safety)) or (loss.store and holds_something(config.data)):
        lines.append("What is there now is moved aside, not deleted.")
    lines.append(
        "Make sure that this broker runs nowhere else, and that nothing is missing only "
        "because a disk is not mounted: an old record that comes back later must never be used again."
    )
    return "\n".join(lines)


def _told(config: Config, loss: Loss, done: Recovered) -> str:
    name = config.broker.name
    if not loss:
        waits = ", which waits to take part again" if loss.abstains else ""
        return (
            f"{name} has its store and its safety record{waits}: there is nothing to recover. Just start it."
        )
    lines = [
        *(f"moved aside: {path}" for path in done.moved),
        f"{name} can be started: parley node {config.path}",
    ]
    if done.record:
        lines.append(
            "It does not vote until a quorum of the others has answered it and gone on. Until then `parley status` calls it "
            "recovering."
        )
    return "\n".join(lines)
