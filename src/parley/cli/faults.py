"""`parley fault`: let a broker of a local network lie on purpose, to see what its clients and the others do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from parley.cli import contexts, local_one, output
from parley.cli.local_folder import locked
from parley.client.contexts import read_genesis
from parley.consensus.committee import faults as tolerated
from parley.node.admin.client import AdminError, switch_faults
from parley.node.faults.settings import read_faults
from parley.node.faults.switches import FAULTS, FaultError, checked
from parley.node.processes import LocalBroker, local_brokers

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
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    home = contexts.find_directory(directory, context)
    _require_allowed(home)
    try:
        wanted = checked(faults)
    except FaultError as error:
        raise typer.BadParameter(f"{error}.", param_hint="FAULT") from None
    with locked(home):
        running = _switch(_chosen(home, broker), wanted)
        _warn(home)
    words = f"{broker} lies now" if running else f"{broker} does not run; it will lie when it is started"
    output.emit(
        {"broker": broker, "faults": wanted, "running": running},
        f"{words}: {', '.join(wanted)}. `parley fault clear{contexts.dir_option(home)}` ends it.",
        as_json=json,
    )


@app.command("clear")
def clear(
    *,
    broker: Annotated[str | None, typer.Argument(metavar="BROKER", help="If not said, all.")] = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Switch all faults off."""
    home = contexts.find_directory(directory, context)
    with locked(home):
        liars = {one.name: one for one in _brokers(home) if any(_faults(one))}
        cleared = [_chosen(home, broker)] if broker is not None else list(liars.values())
        for one in cleared:
            _switch(one, ())
    names = [one.name for one in cleared if one.name in liars]
    words = f"{', '.join(names)} will not lie any more" if names else _nobody(home)
    output.emit({"cleared": names}, words, as_json=json)


@app.command("list")
def list_(
    *, directory: contexts.Directory = None, context: contexts.ContextName = None, json: output.Json = False
) -> None:
    """Show which brokers lie, and how."""
    home = contexts.find_directory(directory, context)
    found = {broker.name: _faults(broker) for broker in _brokers(home)}
    idle = not _allowed(home) and not any(map(any, found.values()))
    output.emit(
        {
            "brokers": {name: list(faults) for name, (faults, _) in found.items()},
            "invalid": {name: problem for name, (_, problem) in found.items() if problem},
        },
        lambda: _nobody(home) if idle else _table(found),
        as_json=json,
    )


def _allowed(home: Path) -> bool:
    return read_genesis(home / "genesis.json").allow_faults


def _nobody(home: Path) -> str:
    return "nobody was lying" if _allowed(home) else "no broker of this network can lie"


def _require_allowed(home: Path) -> None:
    if not _allowed(home):
        output.fail(
            f"the network in {home} was made without --allow-faults, so its brokers refuse to lie; make another one with "
            "`parley up --allow-faults --dir DIR`",
            output.ExitCode.WRONG_USE,
        )


def _warn(home: Path) -> None:
    brokers = _brokers(home)
    liars = sum(bool(_faults(one)[0]) for one in brokers)
    if liars > tolerated(len(brokers)):
        output.note(
            f"parley: {liars} brokers of {len(brokers)} lie now; the network bears {tolerated(len(brokers))}"
        )


def _brokers(home: Path) -> list[LocalBroker]:
    return local_brokers(home, read_genesis(home / "genesis.json"))


def _chosen(home: Path, name: str) -> LocalBroker:
    return local_one.chosen(_brokers(home), [name], home)[0]


def _faults(broker: LocalBroker) -> tuple[tuple[str, ...], str]:
    """What its file says, and what is wrong with that."""
    try:
        return read_faults(broker.config), ""
    except FaultError as error:
        return (), str(error)
    except OSError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)


def _switch(broker: LocalBroker, faults: tuple[str, ...]) -> bool:
    try:
        return switch_faults(broker, faults)
    except AdminError as error:
        output.fail(str(error).rstrip("."))
    except (FaultError, OSError) as error:
        output.fail(f"{broker.config}: {error}", output.ExitCode.WRONG_USE)


def _table(found: dict[str, tuple[tuple[str, ...], str]]) -> Table:
    return output.table(
        ("broker", "faults"),
        (
            (name, f"invalid: {problem}" if problem else ", ".join(faults) or "-")
            for name, (faults, problem) in found.items()
        ),
    )
