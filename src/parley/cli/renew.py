"""`parley node renew`, and `request`, `sign` and `install` where the broker and its authority are on different machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli import contexts, output
from parley.cli.local_folder import provisioning, require_node_extra, require_own
from parley.cli.network import run
from parley.cli.recover import BrokerName, broker_config
from parley.net.tls import ContextError

if TYPE_CHECKING:  # an extra
    from parley.model.genesis import Genesis
    from parley.node.certificates import Authority
    from parley.node.config import Config
    from parley.node.shown import Shown

Days = Annotated[
    int | None,
    typer.Option(min=1, max=3_650, help="How long it is good; default 365, or up to the authority's end."),
]
NewKey = Annotated[bool, typer.Option("--new-key", help="With a new key, not the one in use.")]
Out = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="What to write; default: in this folder."),
]


def renew(
    *,
    broker: BrokerName = None,
    days: Days = None,
    new_key: NewKey = False,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Give a broker a new certificate, signed by your organisation's authority, without stopping it.

    The folder must hold the authority. If it is elsewhere: `parley node request`, `sign` and `install`.
    """
    require_node_extra("node renew")
    from parley.node import certificates, renewal  # noqa: PLC0415 - an extra

    with provisioning():
        config = _config(broker, directory, context)
        one = config.broker
        authority = _authority(config.path.resolve().parents[2], config.genesis, one.organisation)
        key = certificates.load_key(renewal.own_key(config, new=new_key)).public_key()
        made = certificates.certify(authority, one.name, one.organisation, key, now=_now(), days=days)
        shown = renewal.install(config, made, _now())
    _put_in_use(config, shown, as_json=json)


def request(
    *,
    broker: BrokerName = None,
    new_key: NewKey = False,
    out: Out = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Write a request for a new certificate, to be signed where your organisation's authority is. It holds no secret."""
    require_node_extra("node request")
    from parley.node import certificates, renewal  # noqa: PLC0415 - an extra

    with provisioning():
        config = _config(broker, directory, context)
        key = renewal.own_key(config, new=new_key)
        fingerprint = certificates.fingerprint(certificates.load_key(key).public_key())
        path = out or Path(f"{config.broker.name}.csr")
        path.write_bytes(certificates.make_request(config.broker, key))
    output.emit(
        {"broker": config.broker.name, "request": str(path), "fingerprint": fingerprint},
        f"{path}: the request of {config.broker.name}, for the key with fingerprint {fingerprint}.\n"
        f"Where the authority of {config.broker.organisation} is: parley node sign {path.name}",
        as_json=json,
    )


def sign(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `parley node request` wrote.")],
    days: Days = None,
    out: Out = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Sign a broker's request with your organisation's authority. Compare the fingerprint with the broker's operator."""
    require_node_extra("node sign")
    from parley.node import certificates, provision  # noqa: PLC0415 - an extra

    home = contexts.find_directory(directory, context)
    with provisioning():
        genesis = provision.read_genesis(home / "genesis.json")
        try:
            found = certificates.read_request(file.read_bytes(), genesis)
        except certificates.IssueError as error:
            output.fail(f"{file}: {error}", output.ExitCode.WRONG_USE)
        one = found.broker
        authority = _authority(home, genesis, one.organisation)
        made = certificates.certify(authority, one.name, one.organisation, found.key, now=_now(), days=days)
    path = out or Path(f"{one.name}.crt")
    path.write_bytes(made)
    fingerprint = certificates.fingerprint(found.key)
    output.emit(
        {"broker": one.name, "certificate": str(path), "fingerprint": fingerprint},
        f"{path}: the certificate of {one.name}, for the key with fingerprint {fingerprint}.\n"
        f"If that is not what its operator sees, delete it. Where the broker is: parley node install {path.name}",
        as_json=json,
    )


def install(
    *,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `parley node sign` wrote.")],
    broker: BrokerName = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Put a signed certificate in use, without stopping the broker. A wrong one is refused and changes nothing."""
    require_node_extra("node install")
    from parley.node import renewal  # noqa: PLC0415 - an extra

    with provisioning():
        config = _config(broker, directory, context)
        shown = renewal.install(config, file.read_bytes(), _now())
    _put_in_use(config, shown, as_json=json)


def reload(
    *,
    broker: BrokerName = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Have a broker that runs here read its certificate and its faults again. What is of no use is refused.

    `parley node renew` and `install` do this by themselves.
    """
    require_node_extra("node reload")
    from parley.node.admin import client  # noqa: PLC0415 - an extra
    from parley.node.shown import date  # noqa: PLC0415

    path = broker_config(broker, directory, context).resolve()
    try:
        done = client.reload(path.parent)
    except client.AdminError as error:
        output.fail(str(error).rstrip("."))
    words = "shows a new certificate" if done.certificate_changed else "shows the same certificate as before"
    lies = f" It lies on purpose: {', '.join(done.faults)}." if done.faults else ""
    output.emit(
        {
            "broker": path.parent.name,
            "pid": done.pid,
            "changed": done.certificate_changed,
            "ends": done.certificate_ends,
            "faults": list(done.faults),
        },
        f"{path.parent.name} {words}, good until {date(done.certificate_ends)}.{lies}",
        as_json=json,
    )


def _put_in_use(config: Config, shown: Shown, *, as_json: bool) -> None:
    from parley.node import renewal  # noqa: PLC0415 - an extra
    from parley.node.admin.client import AdminError  # noqa: PLC0415
    from parley.node.shown import date  # noqa: PLC0415

    name, until = config.broker.name, date(shown.ends)
    try:
        pid = renewal.tell(config)
        problem = "" if pid is None else run(renewal.confirm(config, shown))
    except AdminError as error:
        pid, problem = None, str(error).rstrip(".")
    if problem:
        output.fail(
            f"{name} has its new certificate on disk, but does not show it: {problem}. Its log says more: parley logs {name}. "
            f"The old files lie beside the new ones: {', '.join(map(str, renewal.old_files(config)))}"
        )
    if pid is not None:
        renewal.forget_old(config)
    words = (
        f"{name} shows its new certificate, good until {until}. Connections that are open stay."
        if pid is not None
        else f"{name} has a new certificate, good until {until}. It does not run here; it is shown from its next start on."
    )
    output.emit({"broker": name, "ends": shown.ends, "pid": pid}, words, as_json=as_json)


def _config(broker: str | None, directory: Path | None, context: str | None) -> Config:
    from parley.node import config as configuration  # noqa: PLC0415 - an extra

    path = broker_config(broker, directory, context)
    require_own(path.parent)  # or the broker could not read what is made here
    return configuration.load(path, renewing=True)


def _authority(home: Path, genesis: Genesis, organisation: str) -> Authority:
    from parley.node import provision  # noqa: PLC0415 - an extra

    folder = home / "organisations" / organisation
    if not (folder / "ca.key").exists():
        output.fail(
            f"{folder} does not hold the authority of {organisation}, which signs its brokers' certificates. Where the broker is, "
            f"run `parley node request`; where the authority is, `parley node sign`; then here `parley node install`",
            output.ExitCode.WRONG_USE,
        )
    try:
        authority = provision.read_authority(home, organisation)
    except ContextError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)
    known = genesis.organisation(organisation)
    assert known is not None, "a genesis file is consistent"
    if authority.certificate != known.tls_ca:
        output.fail(
            f"{folder / 'ca.crt'} is not the authority of {organisation} that the genesis file names; take that one from its backup",
            output.ExitCode.WRONG_USE,
        )
    return authority


def _now() -> int:
    return time.time_ns() // 1_000_000
