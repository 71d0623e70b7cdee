"""What is refused before order, and that applying does not depend on what was opened before."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, World, actor, make_genesis, mount, tagged

from parley.application import admission
from parley.application.admission import Admission
from parley.application.application import Application
from parley.application.operations import Operation
from parley.applications import DATA_SHARD, MODULES
from parley.crypto.ed25519 import SecretKey
from parley.model.batches import MAX_BATCH_BYTES, Message, MessageHeader, encode
from parley.model.genesis import Limits
from parley.model.refusals import BadSignature, Malformed, Oversized, Refused, WrongChain
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, Policy

ALICE = actor("alice")


def refused(world: World, body: bytes) -> Refused:
    with pytest.raises(Refused) as raised:
        world.machine.admit(body)
    return raised.value


def test_an_admitted_batch_has_its_digest_and_its_publisher() -> None:
    world = World()
    batch = world.publication(ALICE, "orders")
    admitted = world.machine.admit(batch.body)
    assert (admitted.digest, admitted.author, admitted.body) == (batch.digest, ALICE.key, batch.body)
    assert admitted.batch.header.topic == "orders"


def test_garbage_is_malformed() -> None:
    world = World()
    body = world.publication(ALICE, "orders").body
    for data in (b"", b"garbage", body[:-1], body + b"\0"):
        assert refused(world, data).code == Malformed.code


def test_a_batch_has_a_limit() -> None:
    world = World()
    large = world.publication(ALICE, "orders", tagged(payload=bytes(MAX_BATCH_BYTES)))
    assert refused(world, large.body).code == Oversized.code


def test_a_batch_of_another_network_is_refused() -> None:
    other, _ = mount(make_genesis(Limits(topics=7)))
    with pytest.raises(Refused) as raised:
        other.admit(World().publication(ALICE, "orders").body)
    assert raised.value.code == WrongChain.code


def test_the_publisher_must_have_signed() -> None:
    world = World()
    body = world.publication(ALICE, "orders").body
    forged = body[:-64] + SecretKey.from_seed(bytes(32)).sign(b"something else")
    assert refused(world, forged).code == BadSignature.code


def test_operations_must_be_known_and_canonical() -> None:
    world = World()
    for payload in (b"", b"\x93\xa1", b"\x92\x63\xa1a"):
        message = Message(bytes(16), encode(MessageHeader()), "", payload)
        body = world.batch(ADMIN, [message], kind=1).body
        assert refused(world, body).code == Malformed.code


def test_batches_of_a_kind_that_no_module_applies_are_not_ordered() -> None:
    """Or every replica would fail at the block that holds one."""
    modules = tuple(module for module in MODULES if module.name != "staging")
    machine, keeper = mount(make_genesis(), Application("without stages", DATA_SHARD.version, modules))
    world = World()
    assert machine.admit(world.publication(ALICE, "orders").body).operation is None
    staged = world.staged(ALICE, "orders")
    with pytest.raises(Malformed, match="no batches of kind 2"):
        machine.admit(staged.body)
    machine.vouch(staged.body, staged.digest)  # workers do not know the modules
    assert not keeper.is_body(staged.body, staged.digest)


@pytest.mark.parametrize(
    "operation",
    [
        CreateTopic("orders", 1, Policy(), "role = ", ""),
        CreateTopic("orders", 1, Policy(), "", "role = "),
        AlterTopic("orders", None, None, "role = ", None),
        AlterTopic("orders", None, None, None, "role = "),
        Subscribe("orders", "role = "),
        Unsubscribe("orders", "role = "),
        Subscribe("orders", "role < 2"),
    ],
)
def test_rules_and_constraints_are_read_before_order_and_the_fault_is_shown(operation: Operation) -> None:
    world = World()
    refusal = refused(world, world.control(ADMIN, operation).body)
    assert refusal.code == Malformed.code
    assert "at character" in refusal.detail


def test_the_node_learns_the_code_that_the_client_is_told() -> None:
    with pytest.raises(Refused) as raised:
        World().machine.admit(b"garbage")
    assert raised.value.data.code == Malformed.code
    assert raised.value.data.error().detail == raised.value.detail


def test_a_restarted_broker_applies_what_it_admitted_before() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    batches = [world.publication(ALICE, "orders", tagged(a=i)) for i in range(3)]
    world.apply_admitted(*batches, world.control(ALICE, Subscribe("orders", "a = 1")))
    assert {receipt.code for receipt in world.outcomes[-1].receipts} == {"Ok"}


def test_opened_batches_are_kept_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    kept = Admission((world.chain, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
    batches = [world.publication(ALICE, "orders", tagged(payload=bytes(1_000))) for _ in range(6)]
    monkeypatch.setattr(admission, "MAX_KEPT", 4)
    for batch in batches:
        kept.admit(batch.body)
    assert list(kept._kept) == [batch.digest for batch in batches[2:]]
    monkeypatch.setattr(admission, "MAX_KEPT_BYTES", 3_000)
    kept.admit(batches[0].body)
    assert list(kept._kept) == [batches[5].digest, batches[0].digest]
    assert kept._cost == sum(opened.cost for opened in kept._kept.values())
    kept.admit(batches[0].body)  # once is enough
    assert len(kept._kept) == 2
    kept.forget([batches[0].digest, batches[5].digest, batches[1].digest])
    assert kept._cost == 0


def test_settled_batches_are_not_kept_and_the_others_are() -> None:
    world = World()
    world.topic("orders")
    world.client("alice")
    later = world.publication(ALICE, "orders", sequence=1)
    world.order(later, world.publication(ALICE, "orders", partition=1))
    assert list(world.machine._admission._kept) == [later.digest]


def test_looking_after_what_is_stored_takes_no_memory_from_what_waits() -> None:
    world = World()
    batch, other = (world.publication(ALICE, "orders") for _ in range(2))
    assert world.keeper.is_body(batch.body, batch.digest)
    assert not world.keeper.is_body(batch.body, other.digest)
    assert not world.keeper.is_body(batch.body[:-1], batch.digest)
    assert not world.machine._admission._kept


def test_an_admitted_batch_is_not_opened_again_when_it_is_applied() -> None:
    world = World()
    kept = Admission((world.chain, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
    batch, other = (world.publication(ALICE, "orders") for _ in range(2))
    opened = kept.admit(batch.body)
    assert kept.recall(batch.digest, b"") is opened
    assert list(kept._kept) == [batch.digest]
    kept.forget([batch.digest])
    again = kept.recall(batch.digest, batch.body)
    assert again is not opened
    assert again == opened
    assert kept.admit(other.body) != opened
    with pytest.raises(Refused):
        kept.admit(batch.body[:-1])
