"""Where a client finds its network and itself: context files, the genesis file and identity files."""

from __future__ import annotations

import os
import shlex
import stat
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.client.errors import ContextError, IdentityError
from parley.consensus.committee import all_brokers
from parley.model.credentials import CredentialError, Identity, check_credential
from parley.model.genesis import MAX_GENESIS, Genesis, GenesisError, decode_genesis
from parley.net.tls import Address, AddressError

MAX_CONTEXT = 64 * 1024  # bytes of a context file
MAX_IDENTITY = 64 * 1024
CONTEXT_FILE = "context.toml"
KEYS = ("genesis", "identity", "admin", "brokers", "shard")


@dataclass(frozen=True, slots=True)
class Context:
    """A network and who one is in it. `brokers` are the ones to use; if they were `chosen`, in that order.

    `file`: where the identity was read from, and is read again for every connection, because it may have been renewed.
    `shard` is needed where the network has several.
    """

    genesis: Genesis
    identity: Identity
    brokers: Mapping[str, Address]
    chosen: bool = False
    file: Path | None = None
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A context as it is written, its paths made absolute."""

    path: Path
    genesis: Path
    identity: Path
    admin: Path | None
    brokers: Mapping[str, str]
    shard: int | None = None


def resolve(
    context: str | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    genesis: Genesis | str | os.PathLike[str] | None = None,
    identity: Identity | str | os.PathLike[str] | None = None,
    brokers: Mapping[str, str] | Sequence[str] | None = None,
    shard: int | None = None,
) -> Context:
    """What `connect` was given, read and checked; what is given explicitly wins over what a context file says."""
    overrides: Mapping[str, str] = {}
    if genesis is None or identity is None:
        written = _file(context, directory, incomplete=genesis is not None)
        genesis = written.genesis if genesis is None else genesis
        identity = written.identity if identity is None else identity
        overrides, shard = written.brokers, written.shard if shard is None else shard
    network = genesis if isinstance(genesis, Genesis) else read_genesis(Path(genesis))
    source = None if isinstance(identity, Identity) else Path(identity)
    holder = identity if isinstance(identity, Identity) else read_identity(Path(identity))
    try:
        check_credential(holder.credential, network, time.time_ns() // 1_000_000)
    except CredentialError as error:
        where = "" if source is None else f" in {source}"
        raise IdentityError(f"The credential{where} cannot be used: {error}.") from error
    return Context(
        network,
        holder,
        _addresses(network, overrides, brokers),
        chosen=brokers is not None and not isinstance(brokers, Mapping),
        file=None if source is None else source.absolute(),
        shard=shard,
    )


def find_genesis(
    context: str | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    genesis: str | os.PathLike[str] | None = None,
) -> Genesis:
    """The genesis file that `resolve` would read, without an identity."""
    found = _file(context, directory, incomplete=False).genesis if genesis is None else genesis
    return read_genesis(Path(found))


def config_home() -> Path:
    """Where contexts are saved: $XDG_CONFIG_HOME/parley, by default ~/.config/parley.

    A path that is not absolute is ignored, as its specification says: it would lead into the working folder.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".config"
    if not base.is_absolute():
        raise ContextError(f"The home folder {str(Path.home())!r} is not an absolute path; set HOME.")
    return base / "parley"


def context_path(name: str) -> Path:
    if not name or "/" in name or name.startswith("."):
        raise ContextError(f"{name!r} cannot be the name of a context: give a plain word, or a directory.")
    return config_home() / "contexts" / f"{name}.toml"


def context_names() -> list[str]:
    return sorted(path.stem for path in (config_home() / "contexts").glob("*.toml"))


def current_context() -> str | None:
    """The name of the context that is in use when none is given."""
    try:
        return (config_home() / "current").read_text().strip() or None
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ContextError(f"{config_home() / 'current'} is not the name of a context: {error}.") from error


def read_context(path: Path) -> ContextFile:
    try:
        table = tomllib.loads(_read(path, MAX_CONTEXT).decode())
    except (ValueError, RecursionError) as error:
        raise ContextError(f"{path} is not TOML: {error}.") from error
    for key in table:
        if key not in KEYS:
            raise ContextError(f"{path}: there is no key {key!r}; allowed are {', '.join(KEYS)}.")
    genesis, identity, admin = (_path(path, table, key) for key in KEYS[:3])
    if genesis is None or identity is None:
        missing = "genesis" if genesis is None else "identity"
        raise ContextError(f"{path}: {missing} is missing; give the path of the {missing} file.")
    brokers = table.get("brokers", {})
    if not isinstance(brokers, dict) or not all(isinstance(value, str) for value in brokers.values()):
        raise ContextError(f'{path}: brokers must be a table of name = "host:port".')
    shard = table.get("shard")
    if shard is not None and (type(shard) is not int or shard < 0):
        raise ContextError(f"{path}: shard must be the number of a shard, such as 0.")
    return ContextFile(path, genesis, identity, admin, brokers, shard)


def read_genesis(path: Path) -> Genesis:
    try:
        return decode_genesis(_read(path, MAX_GENESIS))
    except GenesisError as error:
        raise ContextError(f"{path} is not a genesis file: {error}.") from error


def read_identity(path: Path) -> Identity:
    """An identity file. It holds a secret, so only its owner may be able to read it."""
    try:
        data = _read(path, MAX_IDENTITY, private=True)
    except ContextError as error:
        raise IdentityError(f"The identity {error}") from error.__cause__
    try:
        identity = msgspec.json.decode(data, type=Identity)
        secret = identity.key()
    except (ValueError, RecursionError) as error:
        raise IdentityError(f"{path} is not an identity file: {error}.") from error
    if secret.public != identity.credential.key:
        raise IdentityError(
            f"{path}: the secret does not belong to the credential; use the file as it was issued."
        )
    return identity


def renewed(identity: Identity, file: Path | None) -> Identity:
    """The identity as its file has it now, with a credential that lasts longer; if there is no such thing, as it was."""
    if file is None:
        return identity
    try:
        found = read_identity(file)
    except ContextError:  # it may be on its way; the old credential is good until a broker says otherwise
        return identity
    old, new = identity.credential, found.credential
    same = new == replace(old, not_after=new.not_after, signature=new.signature)
    return found if same and new.not_after > old.not_after else identity


def _file(context: str | None, directory: str | os.PathLike[str] | None, *, incomplete: bool) -> ContextFile:
    if directory is not None:
        path = Path(directory) / CONTEXT_FILE
        if not path.exists():
            raise ContextError(
                f"{path} cannot be read: No such file or directory. {Path(directory).absolute()} is no folder of `parley up`."
            )
        return read_context(path)
    name = context or current_context()
    if name is None:
        what = "An identity is needed beside the genesis file" if incomplete else "No network is named"
        raise ContextError(
            f"{what}: give a context, the directory of a network, or the genesis and identity files. "
            f"Saved contexts are looked for in {config_home() / 'contexts'}."
        )
    path = context_path(name)
    if not path.exists():
        known = ", ".join(context_names()) or "none"
        raise ContextError(f"There is no context {name!r}: {path} does not exist. Saved contexts: {known}.")
    return read_context(path)


def _addresses(
    genesis: Genesis, overrides: Mapping[str, str], given: Mapping[str, str] | Sequence[str] | None
) -> dict[str, Address]:
    """A mapping changes addresses; a sequence of names says which brokers to use, in that order."""
    texts = {broker.name: broker.address for broker in all_brokers(genesis)}
    chosen = list(texts)
    changes: dict[str, str] = dict(overrides)
    if isinstance(given, Mapping):
        changes.update(given)
    elif given is not None:
        chosen = [given] if isinstance(given, str) else list(given)
    for name in (*changes, *chosen):
        if name not in texts:
            raise ContextError(f"There is no broker {name!r} in this network; there are {', '.join(texts)}.")
    texts.update(changes)
    try:
        return {name: Address.parse(texts[name]) for name in chosen}
    except AddressError as error:
        raise ContextError(f"The address of a broker is wrong: {error}.") from error


def _path(path: Path, table: dict[str, Any], key: str) -> Path | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise ContextError(f"{path}: {key} must be the path of a file, as text; found {value!r}.")
    return path.parent / value


def _read(path: Path, limit: int, *, private: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if private and os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ContextError(
                    f"{path} holds a secret and is open to other users; run: chmod 600 {shlex.quote(str(path))}"
                )
            data = file.read(limit + 1)
    except OSError as error:
        raise ContextError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > limit:
        raise ContextError(f"{path} is larger than {limit} bytes, so it is not the file that it should be.")
    return data
