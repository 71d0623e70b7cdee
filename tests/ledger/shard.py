"""Four replicas with real signatures and the pub/sub application, in lock-step: a real ledger without processes."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace
from tests.application.world import (
    ADMINS,
    ORGANISATIONS,
    Actor,
    Signed,
    World,
    actor,
    make_genesis,
    registration,
    tagged,
)
from tests.replica.driver import Cluster, Committee, MemoryStore

from parley.application.application import Application
from parley.applications import DATA_SHARD
from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.ledger.layout import StateView
from parley.ledger.proofs import Anchor
from parley.model.genesis import Genesis
from parley.model.names import sorted_pairs
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, Policy

GENESIS: Genesis = replace(make_genesis(), start_time=0)
ALICE = actor("alice")
KEYS = [actor("broker", organisation).secret for organisation in ORGANISATIONS]


class Authority:
    def signer(self, index: int) -> Ed25519Signer:
        return Ed25519Signer(index, KEYS[index])

    def scheme(self) -> Ed25519List:
        return Ed25519List([key.public for key in KEYS])


class RealCommittee(Committee):
    """The brokers of a genesis file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.authority = Authority()  # type: ignore[assignment]


def network(application: Application = DATA_SHARD) -> Cluster:
    """The brokers of the genesis file, with empty disks."""
    committee = RealCommittee(chain=GENESIS.chain, version=GENESIS.application)
    return Cluster(committee, {index: application.mount(GENESIS) for index in range(4)})


class Shard:
    """Batches go in at any broker and come out ordered at all of them."""

    def __init__(self, application: Application = DATA_SHARD) -> None:
        self.maker = World()  # signs batches and keeps their sequences
        self.maker.chain = GENESIS.chain
        self.cluster = network(application).start()
        self.maker.ids_from = StateView(self.store)

    @property
    def store(self) -> MemoryStore:
        return self.cluster.members[0].store

    def anchor(self) -> Anchor:
        newest = self.cluster.members[0].certified[-1]
        return Anchor(newest.header, newest.qc)

    def order(self, *batches: Signed) -> None:
        for at, batch in enumerate(batches):
            self.cluster.submit(at % 4, batch.body)
        self.cluster.run(12)

    def publish(self, author: Actor, topic: str, *payloads: bytes) -> Signed:
        batch = self.maker.publication(
            author, topic, *[tagged(payload=payload, n=len(payload)) for payload in payloads]
        )
        self.order(batch)
        return batch


@cache
def staged() -> Shard:
    """A shard in which stages were committed, one of them larger than its block, and one was not; not to be changed."""
    shard = Shard()
    admin, make = ADMINS[ORGANISATIONS[0]], shard.maker
    shard.order(make.control(admin, registration(make.chain, ALICE, sorted_pairs({"role": "nurse"}))))
    shard.order(make.control(admin, CreateTopic("wards", 1, Policy(), "", "")))
    shard.order(make.control(ALICE, Subscribe("wards", "n == 3")))
    small = [make.staged(ALICE, "wards", tagged(n=3, payload=b"%d" % i), tagged()) for i in range(3)]
    large = [make.staged(ALICE, "wards", tagged(n=i, payload=bytes(900_000)), stage=1) for i in range(6)]
    lost = make.staged(ALICE, "wards", tagged(payload=b"lost"), stage=2)
    shard.order(*small, lost, *large)
    shard.order(make.commit(ALICE, "wards", 0, *small))
    shard.publish(ALICE, "wards", b"one")
    shard.order(make.commit(ALICE, "wards", 1, *large))
    shard.cluster.run(40)
    return shard


@cache
def told() -> Shard:
    """A shard with a topic, a client, a subscription and some publications; not to be changed."""
    shard = Shard()
    admin = ADMINS[ORGANISATIONS[0]]
    control = shard.maker.control
    shard.order(control(admin, registration(shard.maker.chain, ALICE, sorted_pairs({"role": "nurse"}))))
    shard.order(control(admin, CreateTopic("wards", 1, Policy(), "", "")))
    shard.order(control(ALICE, Subscribe("wards", "n == 3")))
    for number in range(5):
        shard.publish(ALICE, "wards", b"one", b"three", b"%d" % number)
    shard.cluster.run(20)
    return shard
