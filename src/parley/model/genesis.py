"""The genesis file: the trust root of a network, which all organisations signed and everybody else starts from (P26).

It is JSON in one canonical form. The chain's name is the hash of its unsigned part, so a file that differs in one byte
belongs to another network or to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from parley.crypto import ed25519
from parley.crypto.encoding import enc
from parley.crypto.hashing import digest
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Key, Name, Signature

FORMAT = 2
MAX_BROKERS = 32
MAX_SHARDS = 256
MAX_GENESIS = 1024 * 1024
MAX_BLOCK_BYTES = 8 * 1024 * 1024  # a block takes at least one batch of full size

Count = Annotated[int, Meta(ge=1, lt=2**31)]
Milliseconds = Annotated[int, Meta(ge=1, lt=2**31)]


class GenesisError(ValueError):
    """The file is not a genesis file that one may start from."""


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True):
    """In ms. Those of consensus must be equal at all brokers; the rest are what clients may rely on."""

    view: Milliseconds = 2_000
    longest_view: Milliseconds = 20_000
    heartbeat: Milliseconds = 1_000
    ack: Milliseconds = 3_000
    freshness: Milliseconds = 5_000
    lease: Milliseconds = 600_000


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of each kind the replicated state may hold, and what one block may."""

    clients: Count = 100_000
    topics: Count = 10_000
    subscriptions_per_client: Count = 1_000
    block_bytes: Annotated[int, Meta(ge=1024 * 1024, le=MAX_BLOCK_BYTES)] = MAX_BLOCK_BYTES


class Organisation(Struct, frozen=True, forbid_unknown_fields=True):
    """The unit of trust: its anchor certifies clients, its CA certifies brokers, its admins change the registry."""

    name: Name
    anchor: Key
    tls_ca: Annotated[bytes, Meta(min_length=1, max_length=8192)]  # DER
    admins: Annotated[tuple[Key, ...], Meta(min_length=1, max_length=64)]
    rights: tuple[Literal["auditor"], ...] = ()


class Broker(Struct, frozen=True, forbid_unknown_fields=True):
    """A node of the network; the shards name those of which it is a member."""

    name: Name
    organisation: Name
    key: Key
    address: Annotated[
        str, Meta(min_length=3, max_length=256)
    ]  # host:port, unless configuration says otherwise


class Shard(Struct, frozen=True, forbid_unknown_fields=True):
    """A ledger of its own, ordered by its members. Their places in this list are their indices in its committee."""

    members: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MAX_BROKERS)]


class Genesis(Struct, frozen=True, forbid_unknown_fields=True):
    """What the organisations of a network agreed on. The place of a shard in its list is the number of the shard."""

    format: Annotated[int, Meta(ge=FORMAT, le=FORMAT)]
    application: Annotated[int, Meta(ge=1, lt=2**16)]
    network: Name
    start_time: Annotated[int, Meta(ge=0, lt=2**62)]  # ms
    depth: Literal[2, 3]
    leaders: Literal["round-robin", "cwa", "cwa+"]
    allow_faults: bool
    timeouts: Timeouts
    limits: Limits
    organisations: Annotated[tuple[Organisation, ...], Meta(min_length=1, max_length=MAX_BROKERS)]
    brokers: Annotated[tuple[Broker, ...], Meta(min_length=1, max_length=MAX_BROKERS)]
    shards: Annotated[tuple[Shard, ...], Meta(min_length=1, max_length=MAX_SHARDS)]

    @property
    def chain(self) -> bytes:
        return digest("genesis", msgspec.json.encode(self))

    def organisation(self, name: str) -> Organisation | None:
        return next((organisation for organisation in self.organisations if organisation.name == name), None)


def one_shard(brokers: Sequence[Broker]) -> tuple[Shard, ...]:
    """The shards of a network whose brokers are all members of the same one."""
    return (Shard(tuple(broker.name for broker in brokers)),)


class GenesisFile(Struct, frozen=True, forbid_unknown_fields=True):
    """What is on disk: the genesis and a signature of every anchor, in the order of the organisations."""

    genesis: Genesis
    signatures: Annotated[tuple[Signature, ...], Meta(max_length=MAX_BROKERS)]


def sign_genesis(genesis: Genesis, anchor: ed25519.SecretKey) -> bytes:
    return anchor.sign(_signed(genesis))


def encode_genesis(genesis: Genesis, signatures: tuple[bytes, ...]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(GenesisFile(genesis, signatures)), indent=2) + b"\n"


def decode_genesis(data: bytes) -> Genesis:
    """The genesis in a complete and signed file. Raises `GenesisError` with what is wrong."""
    if len(data) > MAX_GENESIS:
        raise GenesisError(f"it has {len(data)} bytes; {MAX_GENESIS} are allowed")
    try:
        file = _files.decode(data)
    except DECODE_ERRORS as error:
        raise GenesisError(str(error)) from None
    if encode_genesis(file.genesis, file.signatures) != data:
        raise GenesisError("it was edited or reformatted; use the file as the organisations signed it")
    _require_consistent(file.genesis)
    _require_signed(file)
    return file.genesis


def _require_consistent(genesis: Genesis) -> None:
    organisations = [organisation.name for organisation in genesis.organisations]
    for what, values in (
        ("organisation", organisations),
        ("anchor", [organisation.anchor for organisation in genesis.organisations]),
        ("broker", [broker.name for broker in genesis.brokers]),
        ("broker key", [broker.key for broker in genesis.brokers]),
        ("admin key", [key for organisation in genesis.organisations for key in organisation.admins]),
    ):
        if len(set(values)) != len(values):
            raise GenesisError(f"two entries have the same {what}")
    for broker in genesis.brokers:
        if broker.organisation not in organisations:
            raise GenesisError(
                f"broker {broker.name} belongs to {broker.organisation}, which is not in the file"
            )
    _require_members(genesis)
    if genesis.timeouts.heartbeat >= genesis.timeouts.view:
        raise GenesisError("timeouts.heartbeat must be below timeouts.view, or idle views would fail")


def _require_members(genesis: Genesis) -> None:
    """Every shard lists brokers of the file in the order of the file, and every broker has something to do."""
    places = {broker.name: place for place, broker in enumerate(genesis.brokers)}
    for number, shard in enumerate(genesis.shards):
        for name in shard.members:
            if name not in places:
                raise GenesisError(f"shard {number} has the member {name}, which is not in the file")
        if not all(places[one] < places[other] for one, other in pairwise(shard.members)):
            raise GenesisError(
                f"shard {number} does not list its members once each, in the order of the brokers"
            )
    idle = places.keys() - {name for shard in genesis.shards for name in shard.members}
    if idle:
        raise GenesisError(f"broker {min(idle)} is a member of no shard")


def _require_signed(file: GenesisFile) -> None:
    organisations = file.genesis.organisations
    if len(file.signatures) != len(organisations):
        raise GenesisError(f"{len(file.signatures)} of {len(organisations)} organisations have signed it")
    message = _signed(file.genesis)
    for organisation, signature in zip(organisations, file.signatures, strict=True):
        if not ed25519.verify(organisation.anchor, message, signature):
            raise GenesisError(f"the signature of {organisation.name} does not verify")


def _signed(genesis: Genesis) -> bytes:
    return enc(b"PSB1/sig/genesis", genesis.chain)


_files = msgspec.json.Decoder(GenesisFile)
