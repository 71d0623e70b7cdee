"""The members of one shard in one epoch, and how many of them must agree (P1, P28).

No other module makes an instance or a certificate scheme, or knows which brokers of the network are members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from parley.consensus.types import Block, Instance, genesis_block
from parley.crypto import ed25519
from parley.crypto.qc import Ed25519List, Ed25519Signer, QCScheme, Signer
from parley.model.genesis import Broker, Genesis

# What a member signs with, made from a seed. The genesis file has its public half (`Broker.key`).
MemberKey = ed25519.SecretKey


def faults(n: int) -> int:
    """The number of arbitrarily faulty replicas that `n` replicas bear."""
    return (n - 1) // 3


def quorum(n: int) -> int:
    """Q = ceil((n + f + 1) / 2): two quorums share f + 1 replicas, and the n - f honest ones make one."""
    return (n + faults(n) + 2) // 2


@dataclass(frozen=True, slots=True, eq=False)
class Committee:
    """The members of a shard in an epoch by their indices, and what checks their signatures."""

    instance: Instance
    members: tuple[Broker, ...]
    scheme: QCScheme

    @property
    def shard(self) -> int:
        return self.instance.shard

    @property
    def epoch(self) -> int:
        return self.instance.epoch

    @property
    def size(self) -> int:
        return self.instance.size

    @property
    def quorum(self) -> int:
        return quorum(self.size)

    @property
    def faults(self) -> int:
        return faults(self.size)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    def index_of(self, broker: str) -> int | None:
        """The place of a broker in the committee; None: it is no member."""
        names = self.names
        return names.index(broker) if broker in names else None

    def first_block(self, state_root: bytes, time: int) -> Block:
        """Block 0 of the shard, which has no proposer."""
        return genesis_block(self.instance, state_root, time)


@lru_cache(maxsize=16)
def committees_of(genesis: Genesis) -> tuple[Committee, ...]:
    """The committee of each shard in epoch 0, by the number of the shard."""
    brokers = {broker.name: broker for broker in genesis.brokers}
    return tuple(
        _committee(genesis, number, tuple(brokers[name] for name in shard.members))
        for number, shard in enumerate(genesis.shards)
    )


class UnknownShardError(ValueError):
    """The network has no shard of this number, or several where one has to be named."""


def committee_of(genesis: Genesis, shard: int | None) -> Committee:
    """The committee of a shard in epoch 0; None: of the only one that there is. Raises `UnknownShardError`."""
    found = committees_of(genesis)
    if shard is None and len(found) == 1:
        return found[0]
    if shard is None or not 0 <= shard < len(found):
        numbers = ", ".join(str(one.shard) for one in found)
        problem = "one of them has to be named" if shard is None else f"{shard} is none of them"
        raise UnknownShardError(f"the network {genesis.network} has these shards: {numbers}; {problem}")
    return found[shard]


def all_brokers(genesis: Genesis) -> tuple[Broker, ...]:
    """The brokers of the whole network, whatever shards they are members of."""
    return genesis.brokers


def _committee(genesis: Genesis, shard: int, members: tuple[Broker, ...]) -> Committee:
    instance = instance_of(genesis.chain, len(members), shard=shard, version=genesis.application)
    return Committee(instance, members, scheme_of([member.key for member in members]))


def instance_of(chain: bytes, size: int, *, shard: int = 0, epoch: int = 0, version: int = 1) -> Instance:
    """The identity to which all signatures of a committee of this size are bound."""
    return Instance(chain, shard, epoch, size, version)


def scheme_of(keys: Sequence[bytes]) -> QCScheme:
    """How the members with these public keys make certificates."""
    return Ed25519List(keys)


def signer_of(index: int, key: MemberKey) -> Signer:
    """What makes the signatures of the member with this index and key, as `scheme_of` checks them."""
    return Ed25519Signer(index, key)
