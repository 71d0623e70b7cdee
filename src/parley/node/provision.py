"""The files of a new network: keys, certificates, the genesis file, and a configuration for each broker.

Every function writes the part of one party, so that organisations can do it on machines of their own; the last one
plays all parties for a local network. Nothing that exists is ever overwritten.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from parley.applications import chosen_application
from parley.consensus.committee import MemberKey
from parley.crypto import ed25519
from parley.model.credentials import Identity, issue_credential
from parley.model.genesis import (
    FORMAT,
    MAX_BROKERS,
    Broker,
    Genesis,
    GenesisError,
    Limits,
    Organisation,
    Shard,
    Timeouts,
    decode_genesis,
    encode_genesis,
    one_shard,
    sign_genesis,
)
from parley.model.names import is_name
from parley.net.tls import load_certificate
from parley.node.certificates import Authority, create_authority, issue
from parley.node.config import load
from parley.node.keys import read_key, write_key
from parley.node.secrets import read_secret, write_secret
from parley.node.storage import provision_storage

ADMIN = "admin"
FIRST_PORT = 7101
CREDENTIAL_DAYS = 365
DAY = 86_400_000  # ms
TIMEOUTS, LIMITS = Timeouts(), Limits()


class ProvisionError(Exception):
    """A file of the network cannot be made."""


def create_organisation(
    directory: Path, name: str, *, now: int, rights: tuple[Literal["auditor"], ...] = ()
) -> Organisation:
    """An anchor, a certificate authority and an administrator's key; the answer is what the genesis file says of it."""
    folder = _private(_organisation(directory, _named(name, "organisation")))
    anchor, admin = ed25519.SecretKey.generate(), ed25519.SecretKey.generate()
    authority = create_authority(name, now=now)
    write_key(folder / "anchor.key", anchor)
    write_key(folder / "admin.key", admin)
    write_secret(folder / "ca.key", authority.key)
    _write(folder / "ca.crt", ssl.DER_cert_to_PEM_cert(authority.certificate).encode())
    return Organisation(name, anchor.public, authority.certificate, (admin.public,), rights)


def create_broker(
    directory: Path, organisation: str, name: str, address: str, *, now: int, listen: str | None = None
) -> Broker:
    """A consensus key, a certificate and a configuration; `listen` differs from `address` behind a translated address."""
    folder = _private(broker_directory(directory, _named(name, "broker")))
    issued = issue(read_authority(directory, organisation), name, organisation, now=now)
    key = MemberKey.generate()
    write_key(folder / "consensus.key", key)
    write_secret(folder / "tls.key", issued.key)
    _write(folder / "tls.crt", issued.certificate)
    settings = _toml(
        genesis="../../genesis.json",
        broker=name,
        listen=listen or address,
        consensus_key="consensus.key",
        certificate="tls.crt",
        certificate_key="tls.key",
        data="data",
        safety="safety.record",
    )
    _write(folder / "broker.toml", f'{settings}\n[log]\nfile = "log.jsonl"\n'.encode())
    return Broker(name, organisation, key.public, address)


def read_authority(directory: Path, organisation: str) -> Authority:
    """What `create_organisation` made. Raises `SecretError` where its secret is not kept."""
    home = _organisation(directory, organisation)
    return Authority(load_certificate(home / "ca.crt"), read_secret(home / "ca.key"))


def write_genesis(directory: Path, genesis: Genesis) -> None:
    """Sign with the anchors of all organisations, which must lie in this directory, and write the file."""
    anchors = [read_key(_organisation(directory, one.name) / "anchor.key") for one in genesis.organisations]
    data = encode_genesis(genesis, tuple(sign_genesis(genesis, anchor) for anchor in anchors))
    decode_genesis(data)  # what cannot be read back is not written
    _write(directory / "genesis.json", data)


def read_genesis(path: Path) -> Genesis:
    try:
        return decode_genesis(path.read_bytes())
    except OSError as error:
        raise ProvisionError(f"{path} cannot be read: {error.strerror}.") from error
    except GenesisError as error:
        raise ProvisionError(f"{path} is not a genesis file: {error}.") from error


def create_identity(
    directory: Path, organisation: str, name: str, *, not_after: int, key: ed25519.SecretKey | None = None
) -> Identity:
    """A client's file, admitted by its organisation's anchor; the registry decides what it may do."""
    chain = read_genesis(directory / "genesis.json").chain
    anchor = read_key(_organisation(directory, organisation) / "anchor.key")
    key = key or ed25519.SecretKey.generate()
    identity = Identity(
        issue_credential(
            chain, organisation, _named(name, "client"), key.public, not_after=not_after, anchor=anchor
        ),
        key.seed(),
    )
    path = identity_path(directory, organisation, name)
    _private(path.parent)
    write_secret(path, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")
    return identity


def admin_key(directory: Path, organisation: str) -> ed25519.SecretKey:
    """The administrator's key that `create_organisation` made."""
    return read_key(_organisation(directory, organisation) / "admin.key")


def write_context(directory: Path, organisation: str, client: str) -> None:
    """Who speaks when a command is run in this directory."""
    text = _toml(
        genesis="genesis.json",
        identity=f"identities/{organisation}-{client}.json",
        admin=f"identities/{organisation}-{ADMIN}.json",
    )
    _write(directory / "context.toml", text.encode())


def provision_network(
    directory: Path,
    *,
    organisations: Sequence[str],
    network: str,
    start_time: int,
    timeouts: Timeouts = TIMEOUTS,
    brokers_per_org: int = 1,
    clients: Sequence[str] = ("alice",),
    addresses: Sequence[str] | None = None,
    limits: Limits = LIMITS,
    depth: Literal[2, 3] = 2,
    leaders: Literal["round-robin", "cwa", "cwa+"] = "cwa+",
    allow_faults: bool = False,
    auditors: Sequence[str] = (),
    shards: Sequence[Sequence[str]] | None = None,
) -> Genesis:
    """All of it, for a network whose organisations trust the one who runs this: local use and tests.

    `clients` get an identity at each organisation; `addresses` are those of the brokers, organisation by organisation;
    `auditors` are organisations whose administrators may read raw blocks and let their clients read them. `shards` are the
    names of the members of each; None: one of all brokers.
    """
    if unknown := sorted(set(auditors).difference(organisations)):
        raise ProvisionError(
            f"{unknown[0]} cannot be an auditor: it is not one of {', '.join(organisations)}."
        )
    names = [(org, f"{org}-{number}") for org in organisations for number in range(1, brokers_per_org + 1)]
    addresses = addresses or [f"127.0.0.1:{FIRST_PORT + place}" for place in range(len(names))]
    if not 0 < len(names) == len(addresses) <= MAX_BROKERS:
        raise ProvisionError(
            f"A network has 1 to {MAX_BROKERS} brokers and an address for each, not {len(names)} brokers and "
            f"{len(addresses)} addresses."
        )
    _private(directory)
    parties = tuple(
        create_organisation(directory, name, now=start_time, rights=("auditor",) if name in auditors else ())
        for name in organisations
    )
    brokers = tuple(
        create_broker(directory, organisation, name, address, now=start_time)
        for (organisation, name), address in zip(names, addresses, strict=True)
    )
    genesis = Genesis(
        FORMAT,
        chosen_application(allow_faults=allow_faults).version,
        network,
        start_time,
        depth,
        leaders,
        allow_faults,
        timeouts,
        limits,
        parties,
        brokers,
        one_shard(brokers) if shards is None else tuple(Shard(tuple(members)) for members in shards),
    )
    write_genesis(directory, genesis)
    not_after = start_time + CREDENTIAL_DAYS * DAY
    for organisation in organisations:
        create_identity(
            directory, organisation, ADMIN, not_after=not_after, key=admin_key(directory, organisation)
        )
        for client in clients:
            create_identity(directory, organisation, client, not_after=not_after)
    for _, name in names:
        config = load(broker_directory(directory, name) / "broker.toml")
        for one in map(config.of_shard, config.shards):
            provision_storage(one)
    write_context(directory, organisations[0], clients[0] if clients else ADMIN)
    return genesis


def broker_directory(directory: Path, broker: str) -> Path:
    return directory / "brokers" / broker


def identity_path(directory: Path, organisation: str, name: str) -> Path:
    return directory / "identities" / f"{organisation}-{name}.json"


def _organisation(directory: Path, name: str) -> Path:
    return directory / "organisations" / name


def _toml(**values: str) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _named(name: str, what: str) -> str:
    if not is_name(name):
        raise ProvisionError(
            f"{name!r} cannot be the name of a {what}: use 1 to 32 of a-z, 0-9 and -, not - at either end."
        )
    return name


def _private(folder: Path) -> Path:
    """Make the folder for its owner alone, unless it is there."""
    try:
        for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
            missing.mkdir(mode=0o700)
    except OSError as error:
        raise ProvisionError(f"{folder} cannot be made: {error.strerror}.") from error
    return folder


def _write(path: Path, data: bytes) -> None:
    try:
        # Not for others to change, whatever the umask: a broker refuses a configuration that is.
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o644)) as file:
            file.write(data)
    except FileExistsError:
        raise ProvisionError(f"{path} exists already; move it away first.") from None
    except OSError as error:
        raise ProvisionError(f"{path} cannot be written: {error.strerror}.") from error
