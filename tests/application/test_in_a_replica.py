"""A replica runs the application as it stands: batches in, certified receipts and proofs of the state out."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, Signed, World, actor, mount, registration, tagged
from tests.ledger.shard import Shard

from parley.application import keeping
from parley.application.tables import encode_value
from parley.application.work import Budget
from parley.applications import DATA_SHARD, VERSION, data_shard
from parley.consensus.record import COPIES, recover_record
from parley.consensus.types import Instance
from parley.crypto.ed25519 import SecretKey
from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.ledger import layout, state_map
from parley.ledger.application import Receipt
from parley.ledger.erasure import check_remains
from parley.ledger.layout import StateView
from parley.model.refusals import Malformed, Refused
from parley.modules.retention import rules as retention
from parley.modules.staging import checking
from parley.modules.staging.tables import COMMITTING, LEAST, PENDING_BATCHES
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.ports import Applied, Certified, Effect, Write
from parley.replica.replica import Replica
from parley.store.memory import MemoryStore


class Node:
    """One replica that is its own committee; writes take effect at once."""

    def __init__(self, world: World) -> None:
        key = SecretKey.from_seed(bytes(32))
        config = ReplicaConfig(Instance(world.chain, 0, 0, 1, VERSION), 0)
        self.store = MemoryStore()
        world.ids_from = layout.StateView(self.store)
        self.receipts: list[Receipt] = []
        self.refused: list[str] = []
        self.state_root = b""
        self.mounted = DATA_SHARD.mount(world.genesis)
        records, first = provision(config, mount(world.genesis)[0])
        self.store.write(first.entries)
        self._replica = Replica(
            config,
            Ed25519Signer(0, key),
            Ed25519List((key.public,)),
            self.mounted,
            record=recover_record([[copy] * COPIES for copy in records], "memory"),
            store=self.store,
        )
        self._now = 0
        self._execute(self._replica.start(0))

    @property
    def executed_height(self) -> int:
        return self._replica.executed_height

    def submit(self, batch: Signed) -> None:
        self._now += 1_000
        try:
            admitted = self.mounted.machine.admit(batch.body)
        except Refused as refused:
            self.refused.append(refused.code)
        else:
            self._execute(self._replica.submit(self._now, admitted).effects)

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write():
                    self.store.write(effect.entries)
                case Applied():
                    self.receipts += effect.receipts
                case Certified():
                    self.state_root = effect.header.state_root
                case _:
                    pass


def test_what_a_replica_certifies_is_the_applications_state() -> None:
    world = World()  # makes the batches; it applies none of them
    alice = actor("alice")
    node = Node(world)
    node.submit(world.control(ADMIN, registration(world.chain, alice)))
    node.submit(world.control(ADMIN, CreateTopic("orders", 1, Policy(), "", "")))
    node.submit(world.control(alice, Subscribe("orders", "a = 1")))
    node.submit(world.publication(alice, "orders", tagged(a=1), tagged(a=2)))
    node.submit(world.publication(actor("mallory"), "orders"))
    assert [receipt.code for receipt in node.receipts] == ["Ok"] * 4 + ["UnknownClient"]
    state = StateView(node.store)
    head = encode_value(PartitionRecord(2, 0))
    assert state.get(HEADS.place("orders", 0)) == head
    proof = state_map.prove(Nodes(state), HEADS.key("orders", 0))
    assert state_map.verify(node.state_root, HEADS.key("orders", 0), head, proof)


def test_what_cannot_be_admitted_is_refused_before_order() -> None:
    world = World()
    node = Node(world)
    batch = world.control(ADMIN, Subscribe("orders", "a ="))
    node.submit(batch)
    node.submit(Signed(batch.digest, b"garbage"))
    assert node.refused == [Malformed.code] * 2
    assert not node.receipts


def test_a_replica_that_is_restarted_while_a_stage_is_numbered_has_the_same_results() -> None:
    shard = Shard(data_shard(numbered_bytes=1))
    make, alice = shard.maker, actor("alice")
    shard.order(make.control(ADMIN, registration(make.chain, alice)))
    shard.order(make.control(ADMIN, CreateTopic("orders", 1, Policy(), "", "")))
    shard.order(make.control(alice, Subscribe("orders", "a = 1")))
    staged = [make.staged(alice, "orders", tagged(a=number % 2, n=number)) for number in range(8)]
    shard.order(*staged)
    shard.cluster.submit(0, make.commit(alice, "orders", 0, *staged).body)
    restarted = 0
    for _ in range(60):
        shard.cluster.run(4)
        if shard.store.get(layout.state(PENDING_BATCHES.key())) is not None:
            shard.cluster.restart(1)
            restarted += 1
    assert restarted > 2
    lowest = min(member.replica.executed_height for member in shard.cluster.members)
    for height in range(1, lowest + 1):
        results = {member.store.get(layout.receipts(height)) for member in shard.cluster.members}
        assert len(results) == 1, height
    head = HEADS.decode(shard.store.get(layout.state(HEADS.key("orders", 0))) or b"")
    assert head.next_offset == len(staged)


def test_a_commit_that_takes_several_blocks_is_ordered_again_until_it_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "LOOKED_AT", 1)
    monkeypatch.setattr(checking, "READS", 1)
    shard, batches = Shard(data_shard(numbered_bytes=8 * LEAST, budget=Budget(16, 8))), 16
    make, alice = shard.maker, actor("alice")
    shard.order(make.control(ADMIN, registration(make.chain, alice)))
    shard.order(make.control(ADMIN, CreateTopic("orders", 1, Policy(), "", "")))
    staged = [make.staged(alice, "orders", tagged(n=number)) for number in range(batches)]
    for one in staged:
        shard.order(one)
    shard.cluster.submit(0, make.commit(alice, "orders", 0, *staged).body)
    head, state = encode_value(PartitionRecord(batches, 0)), StateView(shard.store)
    seen, began = set[int](), shard.anchor().header.height
    while state.get(HEADS.place("orders", 0)) != head:
        shard.cluster.run(1)
        if (known := COMMITTING.stored(state, alice.key)) is not None:
            seen.add(known.checked)
        assert shard.anchor().header.height < began + 200
    assert len(seen) > 2
    assert max(seen) < batches


def test_an_idle_network_does_not_wait_for_heartbeats_while_a_stage_is_numbered() -> None:
    shard, batches = Shard(data_shard(numbered_bytes=1)), 20
    make, alice = shard.maker, actor("alice")
    shard.order(make.control(ADMIN, registration(make.chain, alice)))
    shard.order(make.control(ADMIN, CreateTopic("orders", 1, Policy(), "", "")))
    staged = [make.staged(alice, "orders", tagged(n=number)) for number in range(batches)]
    shard.order(*staged)
    shard.cluster.run(100)
    before, began = shard.anchor().header, shard.cluster.now
    shard.cluster.submit(0, make.commit(alice, "orders", 0, *staged).body)
    head = encode_value(PartitionRecord(batches, 0))
    state = StateView(shard.store)
    while state.get(HEADS.place("orders", 0)) != head:
        shard.cluster.run(1)
        assert shard.cluster.now - began < batches * shard.cluster.committee.config(0).heartbeat
    numbered = shard.cluster.members[0].replica.executed_height
    while shard.anchor().header.executed_height < numbered:  # and shown to those who wait for it
        shard.cluster.run(1)
    assert shard.cluster.now - began < batches * shard.cluster.committee.config(0).heartbeat
    height, began = shard.anchor().header.height, shard.cluster.now
    assert height - before.height > batches
    shard.cluster.run(200)
    beats = (shard.cluster.now - began) // shard.cluster.committee.config(0).heartbeat
    assert shard.anchor().header.height - height <= beats + 1  # then it is as quiet as before


class Nodes:
    def __init__(self, state: StateView) -> None:
        self._state = state

    def get(self, path: bytes, /) -> bytes | None:
        return self._state.get(b"n" + path)


def test_the_log_of_a_replica_moves_on_with_block_time_and_names_the_bodies_to_erase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (keeping, retention):
        monkeypatch.setattr(module, "GRACE", 8)
    world = World()
    alice = actor("alice")
    node = Node(world)
    node.submit(world.control(ADMIN, registration(world.chain, alice)))
    node.submit(world.control(ADMIN, CreateTopic("orders", 1, Policy(retention=5_000), "", "")))
    batches = [world.publication(alice, "orders", tagged(n=number)) for number in range(20)]
    for batch in batches:  # one a second
        node.submit(batch)
    state = StateView(node.store)
    head = HEADS.stored(state, "orders", 0)
    assert head is not None
    assert head.next_offset == 20
    assert 13 <= head.log_start_offset <= 15
    erasure = node.mounted.keeper.erase(state, node.executed_height, 100)
    assert erasure.batches
    assert list(erasure.batches) == [batch.digest for batch in batches[: len(erasure.batches)]]
    assert len(erasure.batches) <= head.log_start_offset
    for name in erasure.batches:
        body = node.store.get(layout.batch(name))
        assert body is not None
        check_remains(node.mounted.keeper.remains(body), name, world.chain)
