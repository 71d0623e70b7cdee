"""What `parley up` gives a new local network: organisations, brokers, a client each, and a topic to play with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from parley.cli.local_folder import made_whole
from parley.cli.output import ExitCode, fail
from parley.client.client import connect
from parley.client.contexts import read_context, read_identity
from parley.client.errors import ClientExists, TopicExists
from parley.model.genesis import Genesis
from parley.model.names import Value
from parley.node.processes import free_addresses

NETWORK = "local"
TOPIC = "demo"
PENDING = "setup-pending"  # a file that says: not everything is on the ledger yet
CREDENTIAL_MS = 365 * 86_400_000

_ALPHABET = (
    "alpha bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec romeo "
    "sierra tango uniform victor whiskey xray yankee zulu"
)
_PEOPLE = (
    "alice bob carol dave erin frank grace heidi ivan judy kevin laura mona nina olaf peggy quinn rupert sybil trent "
    "uma vera wendy xavier yara zoe"
)
# One of each for every place in the largest committee.
ORGANISATIONS = [*_ALPHABET.split(), *(f"org-{number}" for number in range(27, 33))]
CLIENTS = [*_PEOPLE.split(), *(f"client-{number}" for number in range(27, 33))]


def provision(directory: Path, count: int, *, allow_faults: bool = False) -> bool:
    """Make the folder of a new network, unless there is one; whether it was made."""
    if (directory / "genesis.json").is_file():
        return False
    if directory.is_dir() and any(directory.iterdir()):
        fail(f"{directory} holds other files, and no network; choose another --dir", ExitCode.WRONG_USE)
    addresses = free_addresses(count, directory)
    if len(addresses) < count:
        fail(f"there are not {count} free ports for brokers on this machine", ExitCode.WRONG_USE)
    return made_whole(directory, lambda folder: _fill(folder, addresses, allow_faults=allow_faults))


def _fill(folder: Path, addresses: list[str], *, allow_faults: bool) -> None:
    from parley.node import provision as parties  # noqa: PLC0415 - an extra

    now = time.time_ns() // 1_000_000
    names = ORGANISATIONS[: len(addresses)]
    parties.provision_network(
        folder,
        organisations=names,
        network=NETWORK,
        start_time=now,
        clients=(),
        addresses=addresses,
        allow_faults=allow_faults,
        auditors=names[:1],
    )
    for organisation, client in zip(names, CLIENTS, strict=False):
        parties.create_identity(folder, organisation, client, not_after=now + CREDENTIAL_MS)
    (folder / "context.toml").unlink()  # it names the administrator, as there were no clients yet
    parties.write_context(folder, names[0], CLIENTS[0])
    (folder / PENDING).touch()


def made(directory: Path, genesis: Genesis) -> bool:
    """Whether the folder is from here, with clients and a topic, and not from a ceremony."""
    first = f"{genesis.organisations[0].name}-{CLIENTS[0]}.json"
    return read_context(directory / "context.toml").identity.name == first


async def register(directory: Path, genesis: Genesis) -> None:
    """Put the clients and the topic of a new network on its ledger, once; an attempt that was cut short is finished."""
    if not (directory / PENDING).exists():
        return
    pairs = zip((party.name for party in genesis.organisations), CLIENTS, strict=False)
    await asyncio.gather(
        *(
            enrol(directory, organisation, client, {}, topic=TOPIC if client == CLIENTS[0] else None)
            for organisation, client in pairs
        )
    )
    (directory / PENDING).unlink()


async def enrol(
    directory: Path,
    organisation: str,
    client: str,
    attributes: Mapping[str, Value],
    *,
    topic: str | None = None,
    publish: str = "",
) -> None:
    """Let an organisation's administrator register a client, and make a topic if one is named; what is there stays."""
    identities = directory / "identities"
    identity = read_identity(identities / f"{organisation}-{client}.json")
    admin = identities / f"{organisation}-admin.json"
    async with connect(genesis=directory / "genesis.json", identity=admin) as connection:
        with suppress(ClientExists):
            key, proof = identity.credential.key, identity.proof()
            await connection.register_client(client, key, attributes, proof=proof)
        if topic is not None:
            with suppress(TopicExists):
                await connection.create_topic(topic, publish=publish)
