"""What follows from a finished genesis file in an organisation's own folder: an identity, a context, and brokers' storage."""

from __future__ import annotations

import time
from pathlib import Path

from parley.cli import contexts
from parley.cli.ceremony import Draft
from parley.cli.local_setup import CREDENTIAL_MS
from parley.cli.output import ExitCode, fail
from parley.client.contexts import read_identity
from parley.model.genesis import GenesisError, decode_genesis
from parley.node.processes import local_brokers

GENESIS = "genesis.json"
PENDING = "setup-pending"  # a file that says: the genesis file is here, not everything that follows from it


def settle(home: Path, draft: Draft, data: bytes) -> None:
    """Put the genesis file where our brokers look for it; then give them storage, and us an identity and a context.

    Storage only once: a broker whose storage is lost must not get an empty one, or it could contradict itself.
    """
    from parley.node import config, provision, storage  # noqa: PLC0415 - an extra

    _require_clear(home, draft, data)
    if not (home / GENESIS).exists():
        (home / PENDING).touch()
    write(home / GENESIS, data)
    for organisation in ours(draft, home):
        if not provision.identity_path(home, organisation, provision.ADMIN).exists():
            not_after = time.time_ns() // 1_000_000 + CREDENTIAL_MS
            key = provision.admin_key(home, organisation)
            provision.create_identity(home, organisation, provision.ADMIN, not_after=not_after, key=key)
    if not (home / contexts.FILE).exists():
        provision.write_context(home, ours(draft, home)[0], provision.ADMIN)
    if not (home / PENDING).exists():
        return
    for broker in local_brokers(home, draft.genesis):
        loaded = config.load(broker.config)
        for one in map(loaded.of_shard, loaded.shards):
            if not one.safety.exists():
                storage.provision_storage(one)
    (home / PENDING).unlink()


def ours(draft: Draft, home: Path) -> list[str]:
    """The organisations whose anchor is in this folder."""
    names = [organisation.name for organisation in draft.genesis.organisations]
    return [name for name in names if (home / "organisations" / name / "anchor.key").is_file()]


def write(path: Path, data: bytes) -> None:
    """A finished genesis file is never replaced by another one: brokers may have started from it."""
    if _is_another(path, data):
        fail(f"{path} is the genesis file of another network; move it away first", ExitCode.WRONG_USE)
    path.write_bytes(data)


def _require_clear(home: Path, draft: Draft, data: bytes) -> None:
    """End the command if the folder holds what follows from another genesis file. All of it is named at once: half of one
    network and half of another is no network.
    """
    from parley.node import storage  # noqa: PLC0415 - an extra

    chain = draft.genesis.chain
    found = [home / GENESIS] if _is_another(home / GENESIS, data) else []
    identities = sorted((home / "identities").glob("*.json"))
    found += [path for path in identities if read_identity(path).credential.chain != chain]
    for broker in local_brokers(home, draft.genesis):
        if storage.served_another(broker.folder / storage.MARK, chain):
            kept = (broker.folder / "data", broker.folder / "safety.record")
            found += [path for path in kept if storage.holds_something(path)]
    if found:
        names = "".join(f"\n  {path}" for path in found)
        fail(
            f"{home} holds files of another network than {draft.genesis.network}, fingerprint {chain.hex()}. If that other one was "
            f"made by mistake, stop its brokers, move these away, and run this again:{names}",
            ExitCode.WRONG_USE,
        )


def _is_another(path: Path, data: bytes) -> bool:
    """Whether a finished genesis file is there, and not this one."""
    if not path.exists() or (there := path.read_bytes()) == data:
        return False
    try:
        decode_genesis(there)
    except GenesisError:
        return False  # an older draft, for example
    return True
