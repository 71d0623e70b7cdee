"""Bodies whose time is over go from every disk, what has to stay of them stays, and nothing else goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.ledger.shard import ALICE, GENESIS, Shard
from tests.pubsub.world import ADMINS, ORGANISATIONS, Signed, registration
from tests.replica.care import audit, flipped, names

from parley.ledger import layout
from parley.ledger.erasure import check_remains
from parley.model.operations import CreateTopic, Policy

RETENTION = 2_000  # ms


@pytest.fixture(autouse=True, scope="module")
def no_pause() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parley.replica.scrub.PAUSE", 0)
        yield


@pytest.fixture(scope="module")
def shard(no_pause: None) -> tuple[Shard, Signed, Signed]:
    """Two publications that are over, erased everywhere; one that stays."""
    shard = Shard()
    control, admin = shard.maker.control, ADMINS[ORGANISATIONS[0]]
    shard.order(control(admin, registration(shard.maker.chain, ALICE)))
    shard.order(control(admin, CreateTopic("brief", 1, Policy(retention=RETENTION), "", "")))
    shard.order(control(admin, CreateTopic("lasting", 1, Policy(), "", "")))
    stays = shard.publish(ALICE, "lasting", b"stays")
    over = shard.publish(ALICE, "brief", b"is over")
    shard.cluster.run_until(
        lambda: all(layout.erased(over.digest) in member.store.entries for member in shard.cluster.members)
    )
    return shard, over, stays


def test_a_body_that_is_over_goes_and_its_signature_stays(shard: tuple[Shard, Signed, Signed]) -> None:
    network, over, stays = shard
    for member in network.cluster.members:
        assert layout.batch(over.digest) not in member.store.entries
        assert layout.batch(stays.digest) in member.store.entries
        check_remains(member.store.entries[layout.erased(over.digest)], over.digest, GENESIS.chain)
        verdict = audit(member)
        assert verdict.first_fault is None
        assert not verdict.replayed
        assert not member.found


def test_an_erased_body_that_came_back_is_erased_again(shard: tuple[Shard, Signed, Signed]) -> None:
    network, over, _ = shard
    member = network.cluster.members[2]
    network.cluster.run(700)  # or readers who are a little behind may still want it
    member.store.entries[layout.batch(over.digest)] = over.body
    network.cluster.run_until(lambda: layout.batch(over.digest) not in member.store.entries)
    assert not member.found


def test_a_damaged_body_that_is_over_is_not_fetched_but_goes(shard: tuple[Shard, Signed, Signed]) -> None:
    network, over, _ = shard
    member = network.cluster.members[1]
    key = layout.batch(over.digest)
    member.store.entries[key] = flipped(over.body, len(over.body) // 2)
    network.cluster.run_until(lambda: key not in member.store.entries)
    assert names(member, mended=True) == {layout.name(key)}


def test_bodies_of_refused_batches_go_after_long(
    shard: tuple[Shard, Signed, Signed], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, _, stays = shard
    member = network.cluster.members[0]
    refused = network.publish(ALICE, "nowhere", b"refused")
    network.cluster.run(700)
    assert layout.batch(refused.digest) in member.store.entries
    monkeypatch.setattr("parley.ledger.bodies.REFUSED_KEPT", 64)
    network.cluster.run_until(lambda: layout.batch(refused.digest) not in member.store.entries)
    check_remains(member.store.entries[layout.erased(refused.digest)], refused.digest, GENESIS.chain)
    assert layout.batch(stays.digest) in member.store.entries
    assert audit(member).first_fault is None
