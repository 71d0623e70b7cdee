"""`parley context`: the networks that a user has saved by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from parley.cli import contexts, output
from parley.client.contexts import ContextFile, context_names, current_context, read_context, read_genesis
from parley.consensus.committee import all_brokers

app = typer.Typer(help="Choose the network that commands speak to, and as whom.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the context.", autocompletion=context_names)]


@app.command("list")
def list_contexts(json: output.Json = False) -> None:
    """List the saved contexts; the current one has a star."""
    current = current_context()
    found = [
        {
            "name": name,
            "current": name == current,
            **_described(read_context(contexts.saved_path(name))),
        }
        for name in context_names()
    ]
    output.emit({"contexts": found, "current": current}, lambda: _table(found), as_json=json)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="If not said, the one in force.", autocompletion=context_names),
    ] = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Show a context: by name, or the one in force here and why."""
    found = contexts.find(directory, name or context)
    described = {"source": found.source, **_described(found.file)}
    output.emit(
        described,
        lambda: "\n".join(f"{key:9} {value}" for key, value in described.items() if value),
        as_json=json,
    )


@app.command()
def use(name: Name, json: output.Json = False) -> None:
    """Make a context the current one."""
    contexts.find(None, name)
    contexts.set_current(name)
    output.emit({"current": name}, f"{name} is now the current context", as_json=json)


@app.command()
def add(
    *,
    name: Name,
    genesis: Annotated[Path | None, typer.Option(metavar="FILE", help="The genesis file.")] = None,
    identity: Annotated[Path | None, typer.Option(metavar="FILE", help="Who speaks.")] = None,
    admin: Annotated[Path | None, typer.Option(metavar="FILE", help="Who administers.")] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=HOST:PORT", help="Another address of a broker; repeatable."),
    ] = None,
    shard: contexts.ShardNumber = None,
    directory: contexts.Directory = None,
    json: output.Json = False,
) -> None:
    """Save a context under a name: from a network's folder, or from a genesis file and an identity."""
    path = contexts.saved_path(name)
    if path.exists():
        raise typer.BadParameter(
            f"{name} exists; remove it first with `parley context remove {name}`.", param_hint="NAME"
        )
    if directory is not None:
        base = contexts.find(directory, None).file
        genesis, identity, admin = genesis or base.genesis, identity or base.identity, admin or base.admin
        shard = base.shard if shard is None else shard
    if genesis is None or identity is None:
        raise typer.BadParameter("say --dir DIR, or both --genesis FILE and --identity FILE.")
    for file in filter(None, (identity, admin)):
        if not file.is_file():
            raise typer.BadParameter(f"there is no file {file}.")
    network = read_genesis(genesis)
    if shard is not None:
        contexts.shard_of(network, shard)
    changed = _addresses(broker or [], [one.name for one in all_brokers(network)])
    contexts.save(name, genesis, identity, admin, brokers=changed, shard=shard)
    if current_context() is None:
        contexts.set_current(name)
        told = "it is the current one now, also for `parley verify`"
    else:
        told = f"`parley context use {name}` makes it the current one"
    output.emit(
        {"name": name, "file": str(path)},
        f"saved as {path}; {told}",
        as_json=json,
    )


@app.command()
def remove(name: Name, json: output.Json = False) -> None:
    """Forget a context; the files it names stay."""
    contexts.find(None, name)
    contexts.remove(name)
    output.emit({"removed": name}, f"{name} is forgotten", as_json=json)


def _addresses(texts: list[str], known: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, _, address = text.partition("=")
        if name not in known:
            raise typer.BadParameter(
                f"the genesis file names no broker {name!r}{contexts.meant(name, known)}",
                param_hint="--broker",
            )
        found[name] = address
    return found


def _described(context: ContextFile) -> dict[str, str | None]:
    return {
        "file": str(context.path),
        "genesis": str(context.genesis),
        "identity": str(context.identity),
        "admin": None if context.admin is None else str(context.admin),
    }


def _table(found: list[dict[str, str | bool | None]]) -> Table | str:
    if not found:
        return "no context is saved; `parley up` saves one (in another folder than .parley only with --context), as does `parley context add`"
    return output.table(
        ("", "name", "identity", "genesis"),
        (
            ("*" if one["current"] else "", str(one["name"]), str(one["identity"]), str(one["genesis"]))
            for one in found
        ),
    )
