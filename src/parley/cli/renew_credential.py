"""`parley client renew` and `parley client install`: a credential that lasts longer, for the key that the client has.

The ledger knows the client's key and not its credential, so nothing is registered anew. A client that runs takes the new
credential from its identity file when it next connects.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from parley.cli import output
from parley.cli.contexts import As, ContextName, Directory, find, require_named
from parley.cli.local_folder import provisioning, require_node_extra
from parley.cli.network import DAY, call
from parley.client.contexts import read_genesis, read_identity
from parley.model.credentials import (
    Credential,
    CredentialError,
    Identity,
    check_credential,
    issue_credential,
)
from parley.node.secrets import SecretError, write_secret

DAYS = 365
MAX_CREDENTIAL = 64 * 1024  # bytes of a file


def renew(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The client, without its organisation.")],
    days: Annotated[int, typer.Option(min=1, max=3_650, help="How long it is good, from now on.")] = DAYS,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Issue a new credential for the key of a client of your organisation. Nothing that it does is interrupted.

    The folder must hold your organisation's anchor. If the client's identity is in it too, it is renewed there; the
    credential alone, which is no secret, is for a client that keeps its identity elsewhere.
    """
    require_node_extra("client renew")
    from parley.node import keys, provision  # noqa: PLC0415 - an extra

    chosen = find(directory, context)
    home = chosen.directory
    organisation = read_identity(chosen.speaker(who, admin=True)).credential.organisation
    path = provision.identity_path(home, organisation, name)
    held = require_named(read_identity(path), path, organisation, name) if path.exists() else None
    if held is not None:
        key = held.credential.key
    else:  # as the ledger has it: the client keeps its identity elsewhere
        key = call(chosen, who, lambda client: client.client_record(name), admin=True).key
    anchor = require_anchor(home, organisation)
    chain, until = read_genesis(chosen.file.genesis).chain, _now() + days * DAY
    with provisioning():
        issued = issue_credential(
            chain, organisation, name, key, not_after=until, anchor=keys.read_key(anchor)
        )
        # Not under the name of the identity, which it must not overwrite where it is carried to.
        file = home / "credentials" / f"{path.stem}.credential.json"
        file.parent.mkdir(exist_ok=True)
        write_secret(file, encoded(issued), replace=True)
        if held is not None:
            write_secret(path, encoded(Identity(issued, held.seed)), replace=True)
    where = f"It is in {file}; who keeps the identity elsewhere installs it with: parley client install FILE"
    output.emit(
        {
            "client": f"{organisation}/{name}",
            "ends": until,
            "credential": str(file),
            "identity": None if held is None else str(path),
        },
        f"{organisation}/{name} has a new credential, good until {_date(until)}. {where}",
        as_json=json,
    )


def install(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `parley client renew` wrote.")],
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Put a renewed credential into your own identity file. What runs with it takes it when it next connects."""
    chosen = find(directory, context)
    path = chosen.speaker(who)
    identity, credential = read_identity(path), _read(file)
    own = identity.credential
    if (credential.organisation, credential.name) != (own.organisation, own.name):
        output.fail(
            f"{file} is for {credential.organisation}/{credential.name}, and {path} is {own.organisation}/{own.name}",
            output.ExitCode.WRONG_USE,
        )
    if credential.key != own.key:
        output.fail(
            f"{file} is for another key than the one in {path}; ask for one for that",
            output.ExitCode.WRONG_USE,
        )
    try:
        check_credential(credential, read_genesis(chosen.file.genesis), _now())
        write_secret(path, encoded(Identity(credential, identity.seed)), replace=True)
    except CredentialError as error:
        output.fail(f"{file} cannot be used: {error}", output.ExitCode.WRONG_USE)
    except SecretError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)
    output.emit(
        {
            "client": f"{own.organisation}/{own.name}",
            "ends": credential.not_after,
            "identity": str(path),
        },
        f"{path} has its new credential, good until {_date(credential.not_after)}",
        as_json=json,
    )


def require_anchor(home: Path, organisation: str) -> Path:
    """The file of the key that vouches for the clients of an organisation."""
    anchor = home / "organisations" / organisation / "anchor.key"
    if not anchor.is_file():
        output.fail(
            f"{home} does not hold the anchor of {organisation}, which vouches for its clients; run this where "
            f"`parley init` was run",
            output.ExitCode.WRONG_USE,
        )
    return anchor


def _read(path: Path) -> Credential:
    with path.open("rb") as file:
        data = file.read(MAX_CREDENTIAL)
    try:
        return msgspec.json.decode(data, type=Credential)
    except (ValueError, RecursionError) as error:
        return output.fail(f"{path} is not a credential: {error}", output.ExitCode.WRONG_USE)


def encoded(value: Credential | Identity) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _date(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment // 1_000, UTC):%Y-%m-%d %H:%M} UTC"


def _now() -> int:
    return time.time_ns() // 1_000_000
