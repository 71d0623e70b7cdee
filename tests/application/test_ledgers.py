"""A batch is for one ledger: elsewhere it is refused before order, and uses up nothing there or at home (P3)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Signed, World, actor, registration, tagged

from parley.application.sequences import SEQUENCES, sequence_id
from parley.model.batches import CONTROL, FORMAT, PUBLISH, BatchHeader, open_batch
from parley.model.refusals import OK, WrongLedger
from parley.modules.topics.operations import CreateTopic, Policy

ALICE = actor("alice")


def ledger(shard: int) -> World:
    world = World(shard=shard)
    world.client("alice")
    world.topic("orders")
    return world


@pytest.fixture
def home() -> World:
    return ledger(0)


@pytest.fixture
def elsewhere() -> World:
    return ledger(1)


def made(home: World, kind: int) -> Signed:
    if kind == PUBLISH:
        return home.publication(ALICE, "orders", tagged(a=1))
    return home.control(ADMIN, CreateTopic("news", 1, Policy(), "", ""))


@pytest.mark.parametrize("kind", [PUBLISH, CONTROL])
def test_a_batch_of_another_ledger_is_refused_before_order_and_uses_up_nothing(
    home: World, elsewhere: World, kind: int
) -> None:
    batch, before = made(home, kind), dict(elsewhere.table(SEQUENCES))
    with pytest.raises(WrongLedger) as refused:
        elsewhere.machine.admit(batch.body)
    assert refused.value.fields == {"shard": 0, "own": 1}
    assert not elsewhere.machine.is_body(batch.body, batch.digest)
    elsewhere.wait(1)
    assert elsewhere.table(SEQUENCES) == before
    assert elsewhere.order_one(made(elsewhere, kind)).code == OK  # under the same sequence
    assert home.order_one(batch).code == OK


@pytest.mark.parametrize("kind", [PUBLISH, CONTROL])
def test_a_worker_that_found_a_batch_valid_does_not_make_it_one_of_this_ledger(
    home: World, elsewhere: World, kind: int
) -> None:
    batch = made(home, kind)
    assert open_batch(batch.body, home.chain, None)[0] == batch.digest
    elsewhere.machine.vouch(batch.body, batch.digest)
    with pytest.raises(WrongLedger):
        elsewhere.machine.admit(batch.body)


def test_the_same_batch_made_for_another_ledger_is_another_batch(home: World, elsewhere: World) -> None:
    operation = registration(home.chain, actor("bob"))
    assert home.control(ADMIN, operation).digest != elsewhere.control(ADMIN, operation).digest


def test_a_sequence_is_that_of_one_ledger_and_one_topic() -> None:
    header = BatchHeader(FORMAT, bytes(32), 0, PUBLISH, "t", (3, 1), 0, ALICE.key, bytes(16), 0, 1, 9)
    others = (
        replace(header, shard=1),
        replace(header, topic_id=(3, 2)),
        replace(header, topic_id=(4, 1)),
        replace(header, topic="u"),
        replace(header, partition=1),
        replace(header, kind=CONTROL),
        replace(header, session=b"1" * 16),
        replace(header, publisher=ADMIN.key),
    )
    assert len({sequence_id(one) for one in (header, *others)}) == 1 + len(others)
    assert sequence_id(replace(header, sequence=8, count=2, not_after=99)) == sequence_id(header)
