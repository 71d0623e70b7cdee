"""`parley client`: who may connect for your organisation, and the attributes that rules look at."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.table import Table

from parley.cli import output
from parley.cli.contexts import FILE, As, Chosen, ContextName, Directory, find, require_named
from parley.cli.local_folder import provisioning, require_node_extra
from parley.cli.network import DAY, call
from parley.cli.pubsub_values import choice, parse_tags
from parley.cli.renew_credential import DAYS, encoded, install, renew, require_anchor
from parley.client.administration import ClientInfo
from parley.client.client import Client
from parley.client.contexts import read_genesis, read_identity
from parley.client.errors import ClientExists, Refused
from parley.model.credentials import issue_credential, registration
from parley.model.names import is_name, is_pair_name
from parley.model.principals import Right

app = typer.Typer(
    help="Create, list, alter and revoke the clients of your organisation.", no_args_is_help=True
)


def _parse_name(text: str) -> str:
    if not is_name(text):
        raise typer.BadParameter(
            "use 1 to 32 of a-z, 0-9 and -, not - at either end, and no organisation: it is your own."
        )
    return text


Name = Annotated[
    str, typer.Argument(metavar="NAME", parser=_parse_name, help="The client, without its organisation.")
]
RightName = Annotated[
    str,
    typer.Argument(
        metavar="RIGHT", parser=choice(*get_args(Right)), help="auditor: to read whole blocks of the ledger."
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", metavar="NAME=VALUE", help="What rules look at; repeatable."),
]


@app.command()
def create(
    *,
    name: Name,
    attribute: Attributes = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="The client's public key, if it keeps its secret to itself."),
    ] = None,
    proof: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="With --key: the key's signature that it agrees to the name."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3_650, help="How long its credential is good.")] = DAYS,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Make a client's key and credential, and register it on the ledger.

    The folder must hold your organisation's anchor. With --key only the credential is made: the client has the secret.
    """
    require_node_extra("client create")
    attributes = parse_tags(attribute or [], "--attribute")
    chosen = find(directory, context)
    organisation = read_identity(chosen.speaker(who, admin=True)).credential.organisation
    until = time.time_ns() // 1_000_000 + days * DAY
    with provisioning():
        path, public, agreed, is_new = _credential(chosen, organisation, name, until, key=key, proof=proof)
    try:
        call(
            chosen,
            who,
            lambda client: client.register_client(name, public, attributes, proof=agreed),
            admin=True,
        )
    except Refused as refusal:
        if is_new:
            path.unlink()  # after any other failure it may have been registered, and its key must not be lost
        elif isinstance(refusal, ClientExists):
            refusal.add_note(
                f"{path} holds its key; if {name} was revoked, move that file away and create it anew"
            )
        raise
    if key is None:
        _speak_as(chosen, path)
    output.emit(
        {
            "client": f"{organisation}/{name}",
            "key": public.hex(),
            "attributes": attributes,
            "file": str(path),
        },
        f"{organisation}/{name} is registered; its {'identity' if key is None else 'credential'} is in {path}",
        as_json=json,
    )


@app.command("list")
def list_clients(
    directory: Directory = None, context: ContextName = None, who: As = None, json: output.Json = False
) -> None:
    """List the registered clients of your organisation."""
    infos = call(find(directory, context), who, Client.clients, admin=True)
    output.emit({"clients": [_fields(info) for info in infos]}, lambda: _table(infos), as_json=json)


@app.command()
def alter(
    *,
    name: Name,
    attribute: Attributes = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", "-r", metavar="NAME", help="An attribute to remove; repeatable."),
    ] = None,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Set or remove attributes of a client."""
    attributes, removed = parse_tags(attribute or [], "--attribute"), tuple(remove or ())
    if wrong := next((one for one in removed if not is_pair_name(one)), None):
        raise typer.BadParameter(f"{wrong!r} cannot be the name of an attribute.", param_hint="--remove")
    if not attributes and not removed:
        raise typer.BadParameter("say what to change: --attribute NAME=VALUE or --remove NAME.")

    async def work(client: Client) -> ClientInfo:
        await client.alter_client(name, set=attributes, remove=removed)
        return await client.client_record(name)

    info = call(find(directory, context), who, work, admin=True)
    output.emit(_fields(info), lambda: f"{name}: {_pairs(info)}", as_json=json)


@app.command()
def revoke(
    *,
    name: Name,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Revoke a client, for ever: its key never becomes valid again."""
    call(find(directory, context), who, lambda client: client.revoke_client(name), admin=True)
    output.emit({"revoked": name}, f"{name} is revoked", as_json=json)


@app.command()
def grant(
    *,
    name: Name,
    right: RightName,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Give a client a right that the genesis file gives your organisation.

    An auditor reads whole blocks: every publication of everybody, whatever its topic's rules and its own say.
    """
    _change_rights(Client.grant_right, find(directory, context), who, name, right, as_json=json)


@app.command()
def ungrant(
    *,
    name: Name,
    right: RightName,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Take a right from a client."""
    _change_rights(Client.revoke_right, find(directory, context), who, name, right, as_json=json)


app.command()(renew)
app.command()(install)


def _change_rights(
    change: Callable[[Client, str, Right], Awaitable[int]],
    chosen: Chosen,
    who: str | None,
    name: str,
    right: str,
    *,
    as_json: bool,
) -> None:
    async def work(client: Client) -> ClientInfo:
        await change(client, name, cast("Right", right))
        return await client.client_record(name)

    info = call(chosen, who, work, admin=True)
    output.emit(
        _fields(info), lambda: f"{info.name}: {', '.join(info.rights) or 'no rights'}", as_json=as_json
    )


def _credential(
    chosen: Chosen, organisation: str, name: str, until: int, *, key: str | None, proof: str | None
) -> tuple[Path, bytes, bytes, bool]:
    """The file, the public key, that it agrees, and whether they are new: an identity, or for somebody else's key a
    credential.

    An identity that exists is used: an earlier attempt may have ended before the ledger answered.
    """
    from parley.node import keys, provision  # noqa: PLC0415 - an extra

    home = chosen.directory
    path = provision.identity_path(home, organisation, name)
    if key is None and path.exists():
        identity = require_named(read_identity(path), path, organisation, name)
        return path, identity.credential.key, identity.proof(), False
    anchor = require_anchor(home, organisation)
    if key is None:
        identity = provision.create_identity(home, organisation, name, not_after=until)
        return path, identity.credential.key, identity.proof(), True
    chain = read_genesis(chosen.file.genesis).chain
    public, agreed = _public(key), _agreed(proof, registration(chain, organisation, name))
    credential = issue_credential(
        chain, organisation, name, public, not_after=until, anchor=keys.read_key(anchor)
    )
    path = home / "credentials" / path.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encoded(credential))
    return path, public, agreed, True


def _public(text: str) -> bytes:
    return _from_hex(text, 32, "an Ed25519 public key has 64 hexadecimal characters.", "--key")


def _agreed(text: str | None, signed: bytes) -> bytes:
    problem = (
        "--key needs the 128 hexadecimal characters of the key's signature, which shows that its holder agrees. "
        f"The holder signs these bytes (hexadecimal): {signed.hex()}"
    )
    return _from_hex(text or "", 64, problem, "--proof")


def _from_hex(text: str, size: int, problem: str, option: str) -> bytes:
    with suppress(ValueError):
        if len(found := bytes.fromhex(text)) == size:
            return found
    raise typer.BadParameter(problem, param_hint=option)


def _speak_as(chosen: Chosen, identity: Path) -> None:
    """A folder whose only identity was the administrator's speaks as its first client from now on."""
    file = chosen.file
    if file.path == chosen.directory / FILE and file.identity == file.admin:
        text = file.path.read_text()
        before, after = (
            f'identity = "identities/{file.identity.name}"',
            f'identity = "identities/{identity.name}"',
        )
        temporary = file.path.with_suffix(".new")
        temporary.write_text(text.replace(before, after))
        temporary.replace(file.path)


def _fields(info: ClientInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "organisation": info.organisation,
        "key": info.key.hex(),
        "attributes": dict(info.attributes),
        "rights": list(info.rights),
        "revoked": info.revoked,
        "changed": info.changed,
    }


def _pairs(info: ClientInfo) -> str:
    return ", ".join(f"{name}={value}" for name, value in info.attributes.items()) or "no attributes"


def _table(infos: list[ClientInfo]) -> Table | str:
    if not infos:
        return "no client is registered; create one with `parley client create NAME`"
    return output.table(
        ("client", "attributes", "rights", "key", ""),
        (
            (
                f"{info.organisation}/{info.name}",
                _pairs(info),
                ", ".join(info.rights),
                info.key.hex()[:16],
                "revoked" if info.revoked else "",
            )
            for info in infos
        ),
    )
