"""Which network a command speaks to, and as whom.

The first of these counts: --dir, --context, $PARLEY_CONTEXT, ./.parley, the current context.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from parley.cli.local_folder import require_own
from parley.cli.output import ExitCode, fail
from parley.client.contexts import (
    ContextFile,
    config_home,
    context_names,
    context_path,
    current_context,
    read_context,
    read_identity,
)
from parley.consensus.committee import UnknownShardError, committee_of
from parley.model.credentials import Identity
from parley.model.genesis import Genesis
from parley.model.names import is_name

DEFAULT_DIRECTORY = Path(".parley")
FILE = "context.toml"
VARIABLE = "PARLEY_CONTEXT"
MAX_LISTED = 12  # names in a sentence

Directory = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="The folder of the network; default .parley")
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A saved context; see `parley context list`.",
        autocompletion=context_names,
    ),
]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="ORG/NAME", help="Another identity in the folder of the network."),
]


@dataclass(frozen=True)
class Chosen:
    """A context, and how it came to be chosen."""

    source: str
    file: ContextFile

    @property
    def directory(self) -> Path:
        """Where the network's other files are."""
        return self.file.genesis.parent

    def speaker(self, who: str | None, *, admin: bool = False) -> Path:
        """The identity file to speak with: the one asked for, else the administrator's or the client's own."""
        if who is None:
            return self.file.admin if admin and self.file.admin is not None else self.file.identity
        organisation, slash, name = who.partition("/")
        if not (slash and is_name(organisation) and is_name(name)):
            raise typer.BadParameter("say ORG/NAME, for example alpha/admin.", param_hint="--as")
        path = self.directory / "identities" / f"{organisation}-{name}.json"
        if not path.is_file():
            known = [other.stem.replace("-", "/", 1) for other in sorted(path.parent.glob("*.json"))]
            raise typer.BadParameter(
                f"there is no identity of {who} in {path.parent}{meant(who, known)}", param_hint="--as"
            )
        require_named(read_identity(path), path, organisation, name)
        return path


def find(directory: Path | None, name: str | None) -> Chosen:
    """The context of a command, or the end of it with a sentence on how to make one."""
    if directory is not None and name is not None:
        raise typer.BadParameter("say --dir or --context, not both.", param_hint="--context")
    if directory is not None:
        if not (directory / FILE).is_file():
            fail(_without(directory), ExitCode.WRONG_USE)
        return Chosen(f"--dir {directory}", read_context(directory / FILE))
    if name is not None:
        return _saved(name, f"--context {name}")
    if not os.environ.get(VARIABLE) and (DEFAULT_DIRECTORY / FILE).is_file():
        require_own(DEFAULT_DIRECTORY)
        return Chosen(f"./{DEFAULT_DIRECTORY}", read_context(DEFAULT_DIRECTORY / FILE))
    if (before := _chosen_before()) is not None:
        return before
    names = ", ".join(context_names()[:MAX_LISTED])
    saved = f"choose a saved one with `parley context use NAME` ({names}), or " if names else ""
    return fail(
        f"no network is chosen: {saved}start one here with `parley up`, or name one with --dir DIR or --context NAME, or "
        "save one with `parley context add NAME --genesis FILE --identity FILE`",
        ExitCode.WRONG_USE,
    )


def _chosen_before() -> Chosen | None:
    """The context that the user chose for all commands, by a variable or by `parley context use`."""
    if chosen := os.environ.get(VARIABLE):
        return _saved(chosen, f"{VARIABLE}={chosen}")
    current = current_context()
    return None if current is None else _saved(current, f"the current context, {current}")


def _without(directory: Path) -> str:
    """What is said of a folder that no command can speak from."""
    quoted = shlex.quote(str(directory))
    if not directory.exists():
        return f"{directory} holds no network yet; make one: parley up --dir {quoted}"
    if not any(directory.glob("*.part.json")):
        return f"{directory} holds no network"
    return (
        f"{directory} holds an organisation's part of a network that is not complete yet; when you have the parts, or the "
        f"drafts, of all: parley genesis combine FILE... --dir {quoted}"
    )


def find_directory(directory: Path | None, name: str | None) -> Path:
    """The folder of a network on this machine, which may not have a context yet."""
    if name is None and (directory is not None or VARIABLE not in os.environ):
        home = directory or DEFAULT_DIRECTORY
        if home.is_dir():
            return home if directory is not None else require_own(home)
    return find(directory, name).directory


def dir_option(home: Path) -> str:
    """What a command that is to be copied needs after its words to mean this folder."""
    return "" if home == DEFAULT_DIRECTORY else f" --dir {shlex.quote(str(home))}"


def find_trust_root(directory: Path | None, name: str | None) -> tuple[Path, str]:
    """The genesis file to check proofs against, and who named it. `./.parley` is never taken by itself (P28)."""
    if directory is not None and name is None and (directory / "genesis.json").is_file():
        return directory / "genesis.json", f"--dir {directory}"  # a folder needs no identity for that
    if directory is not None and name is None and not directory.exists():
        fail(
            f"{directory} does not exist, so it holds no genesis file to trust; name the folder of the network, or say "
            "--genesis FILE",
            ExitCode.WRONG_USE,
        )
    chosen = find(directory, name) if directory is not None or name is not None else _chosen_before()
    if chosen is None:
        there = (
            " (./.parley is not taken unless it is named: --dir .parley)"
            if DEFAULT_DIRECTORY.exists()
            else ""
        )
        fail(
            f"no trust root is named{there}: say --genesis FILE, --dir DIR or --context NAME, set {VARIABLE}, or choose a "
            "context with `parley context use NAME`",
            ExitCode.WRONG_USE,
        )
    return chosen.file.genesis, chosen.source


def require_named(identity: Identity, path: Path, organisation: str, name: str) -> Identity:
    """End the command if the file is another client's: acme-eu/bob and acme/eu-bob have one file name."""
    found = identity.credential
    if (found.organisation, found.name) != (organisation, name):
        fail(
            f"{path} is the identity of {found.organisation}/{found.name}, not of {organisation}/{name}; choose another name",
            ExitCode.WRONG_USE,
        )
    return identity


def meant(word: str, known: list[str]) -> str:
    """The end of a sentence about a word that nobody knows: what was probably meant, or what there is."""
    near = nearest(word, known)
    if not known or near != ".":
        return near
    more = f" and {len(known) - MAX_LISTED} more" if len(known) > MAX_LISTED else ""
    return f"; there {'are' if len(known) > 1 else 'is'} {', '.join(known[:MAX_LISTED])}{more}."


def nearest(word: str, known: list[str]) -> str:
    """The end of a sentence that has named what there is."""
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else "."


# -- the user's contexts --------------------------------------------------------------------------------------------


ShardNumber = Annotated[
    int | None, typer.Option("--shard", metavar="N", min=0, help="The shard, where there are several.")
]


def shard_of(genesis: Genesis, shard: int | None) -> int:
    """The number of the shard that is meant; ends the command if it has to be named, or does not exist."""
    try:
        return committee_of(genesis, shard).shard
    except UnknownShardError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--shard") from None


def saved_path(name: str) -> Path:
    """Where a context of this name is kept. Names of ours are plain: they are typed."""
    if not is_name(name):
        raise typer.BadParameter(
            f"{name!r} cannot be the name of a context: use 1 to 32 of a-z, 0-9 and -, not - at either end.",
            param_hint="NAME",
        )
    return context_path(name)


def save(
    name: str,
    genesis: Path,
    identity: Path,
    admin: Path | None,
    *,
    brokers: Mapping[str, str] | None = None,
    shard: int | None = None,
) -> Path:
    """Write the user's context, whole or not at all; its paths become absolute."""
    path = saved_path(name)
    files = {"genesis": genesis, "identity": identity, **({} if admin is None else {"admin": admin})}
    lines = [f"{key} = {_quoted(str(file.absolute()))}" for key, file in files.items()]
    if shard is not None:
        lines.append(f"shard = {shard}")
    if brokers:
        lines += ["", "[brokers]", *(f"{broker} = {_quoted(address)}" for broker, address in brokers.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)
    return path


def set_current(name: str) -> None:
    (config_home() / "current").write_text(f"{name}\n")


def remove(name: str) -> None:
    saved_path(name).unlink()
    if current_context() == name:
        (config_home() / "current").unlink()


def _saved(name: str, source: str) -> Chosen:
    path = context_path(name)
    if not path.is_file():
        known = context_names()
        how = (
            meant(name, known)
            if known
            else "; none is saved: `parley up` saves one, as does `parley context add`"
        )
        fail(f"there is no context {name!r}{how}", ExitCode.WRONG_USE)
    return Chosen(source, read_context(path))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
