"""`parley fault`: let a broker of a local network lie on purpose, to see what its clients and the others do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from parley.cli import contexts, output
from parley.cli.contexts import ContextName, Directory, meant
from parley.cli.local_folder import locked
from parley.cli.output import ExitCode, fail
from parley.client.contexts import read_genesis
from parley.node.faults.settings import read_faults, switch
from parley.node.faults.switches import FAULTS, FaultError, checked
from parley.node.processes import LocalBroker, local_brokers

__all__ = ["app"]

app = typer.Typer(
    help="Let a broker of a local network lie on purpose, and see what is done about it.",
    no_args_is_help=True,
)

_KINDS = "\n\n".join(f"{name}: {what}." for name, what in FAULTS.items())


@app.command("set", help=f"Switch these faults of a broker on, and all others off.\n\n{_KINDS}")
def set_(
    *,
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    faults: Annotated[list[str], typer.Argument(metavar="FAULT...", help="One of the kinds above.")],
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    home = _home(directory, context)
    try:
        wanted = checked(faults)
    except FaultError as error:
        raise typer.BadParameter(f"{error}.", param_hint="FAULT") from None
    with locked(home):
        running = _switch(_chosen(home, broker), wanted)
    words = f"{broker} lies now" if running else f"{broker} does not run; it will lie when it is started"
    output.emit(
        {"broker": broker, "faults": wanted, "running": running},
        f"{words}: {', '.join(wanted)}. `parley fault clear` ends it.",
        as_json=json,
    )


@app.command("clear")
def clear(
    *,
    broker: Annotated[str | None, typer.Argument(metavar="BROKER", help="If not said, all.")] = None,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Switch all faults off."""
    home = _home(directory, context)
    with locked(home):
        liars = {one.name: one for one in _brokers(home) if _faults(one)}
        cleared = [_chosen(home, broker)] if broker is not None else list(liars.values())
        for one in cleared:
            _switch(one, ())
    names = [one.name for one in cleared if one.name in liars]
    words = f"{', '.join(names)} will not lie any more" if names else "nobody was lying"
    output.emit({"cleared": names}, words, as_json=json)


@app.command("list")
def list_(*, directory: Directory = None, context: ContextName = None, json: output.Json = False) -> None:
    """Show which brokers lie, and how."""
    home = _home(directory, context)
    found = {broker.name: list(_faults(broker)) for broker in _brokers(home)}
    output.emit({"brokers": found}, lambda: _table(found), as_json=json)


def _home(directory: Path | None, context: str | None) -> Path:
    home = contexts.find_directory(directory, context)
    if not read_genesis(home / "genesis.json").allow_faults:
        fail(
            f"the network in {home} was made without --allow-faults, so its brokers refuse to lie; make another one with "
            "`parley up --allow-faults --dir DIR`",
            ExitCode.WRONG_USE,
        )
    return home


def _brokers(home: Path) -> list[LocalBroker]:
    return local_brokers(home, read_genesis(home / "genesis.json"))


def _chosen(home: Path, name: str) -> LocalBroker:
    brokers = {broker.name: broker for broker in _brokers(home)}
    if name not in brokers:
        fail(f"{home} has no broker {name!r}{meant(name, list(brokers))}", ExitCode.WRONG_USE)
    return brokers[name]


def _faults(broker: LocalBroker) -> tuple[str, ...]:
    try:
        return read_faults(broker.config)
    except (FaultError, OSError) as error:
        fail(str(error), ExitCode.WRONG_USE)


def _switch(broker: LocalBroker, faults: tuple[str, ...]) -> bool:
    try:
        return switch(broker, faults)
    except (FaultError, OSError) as error:
        fail(f"{broker.config}: {error}", ExitCode.WRONG_USE)


def _table(found: dict[str, list[str]]) -> Table:
    table = Table("broker", "faults", box=None)
    for name, faults in found.items():
        table.add_row(name, ", ".join(faults) or "-")
    return table
