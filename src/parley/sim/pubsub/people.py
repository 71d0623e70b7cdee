"""Who takes part in a simulated pub/sub network: organisations with one broker each, and their clients, all from the seed."""

from __future__ import annotations

from dataclasses import dataclass

from parley.applications import VERSION
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.model.credentials import prove_registration
from parley.model.genesis import FORMAT, Broker, Genesis, Limits, Organisation, Timeouts, one_shard
from parley.model.names import Pairs
from parley.modules.registry.operations import RegisterClient
from parley.sim.chance import broker_keys

LEASE = 5_000  # ms of block time; short, so that leases end in a run


@dataclass(frozen=True, slots=True)
class Person:
    """A client or an administrator, with its key."""

    name: str
    organisation: str
    secret: SecretKey

    @property
    def key(self) -> bytes:
        return self.secret.public


class People:
    """`genesis` has an organisation for each broker; block time is the virtual clock, so it starts at 0."""

    def __init__(self, seed: int, nodes: int) -> None:
        self._seed = seed
        self.organisations = tuple(f"org-{index}" for index in range(nodes))
        self.administrators = tuple(self.person("admin", name) for name in self.organisations)
        brokers = tuple(
            Broker(f"broker-{index}", self.organisations[index], secret.public, f"127.0.0.1:{1 + index}")
            for index, secret in enumerate(broker_keys(seed, nodes))
        )
        self.genesis = Genesis(
            format=FORMAT,
            application=VERSION,
            network="simulated",
            start_time=0,
            depth=2,
            leaders="round-robin",
            allow_faults=False,
            timeouts=Timeouts(lease=LEASE),
            limits=Limits(),
            organisations=tuple(
                Organisation(
                    admin.organisation, self.person("anchor", admin.organisation).key, b"ca", (admin.key,)
                )
                for admin in self.administrators
            ),
            brokers=brokers,
            shards=one_shard(brokers),
        )
        self.chain = self.genesis.chain

    def person(self, name: str, organisation: str, life: int = 0) -> Person:
        """`life` tells keys apart that have had the same name."""
        parts = (str(self._seed), organisation, name, str(life))
        return Person(
            name, organisation, SecretKey.from_seed(digest("sim/person", *(part.encode() for part in parts)))
        )

    def member(self, name: str, number: int) -> Person:
        """A client of one organisation or another."""
        return self.person(name, self.organisations[number % len(self.organisations)])

    def registration(self, person: Person, attributes: Pairs) -> RegisterClient:
        proof = prove_registration(person.secret, self.chain, person.organisation, person.name)
        return RegisterClient(person.name, person.key, attributes, proof)
