"""Bodies whose time is over go from every disk, what has to stay of them stays, and nothing else goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import ADMINS, ORGANISATIONS, Signed, registration
from tests.ledger.shard import ALICE, GENESIS, Shard
from tests.replica.care import audit, flipped, names
from tests.replica.driver import Member, MemoryStore

from parley.application.keeping import TO_ERASE
from parley.consensus.types import Block
from parley.crypto import merkle
from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.ledger.erasure import check_remains
from parley.ledger.layout import StoredBlock
from parley.modules.topics.operations import CreateTopic, Policy
from parley.replica.chain import Chain, Mark
from parley.replica.eraser import Eraser
from parley.replica.memory import Overlay
from parley.replica.scrub_blocks import Outdated

RETENTION = 2_000  # ms


@pytest.fixture(autouse=True, scope="module")
def no_pause() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parley.replica.scrub.PAUSE", 0)
        yield


@pytest.fixture(scope="module")
def shard(no_pause: None) -> tuple[Shard, Signed, Signed]:
    return retained()


def retained() -> tuple[Shard, Signed, Signed]:
    """A publication that is over, erased everywhere, and one that stays."""
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


def naming(member: Member, name: bytes) -> tuple[bytes, bytes]:
    """An uncommitted block that names a batch, as it is stored."""
    newest = member.blocks()[-1].header
    header = replace(
        newest, height=newest.height + 9, view=newest.view + 9, batches_root=merkle.root((name,))
    )
    block = Block(header, (name,))
    return layout.uncommitted(block.id), msgspec.msgpack.encode(StoredBlock.of(block))


def executed_with(member: Member, name: bytes) -> tuple[bytes, bytes]:
    """The last executed block, with one batch more."""
    block = member.blocks()[-1]
    stored = StoredBlock(block.header, (*block.batches, name))
    return layout.committed(block.height), msgspec.msgpack.encode(stored)


NEEDED: dict[str, Callable[[Member, bytes], tuple[bytes, bytes]]] = {
    "a block may still be executed": naming,
    "it waits for order": lambda _, name: (layout.waiting(name), msgspec.msgpack.encode(Mark(2, 0, b""))),
    "a block was executed just now": executed_with,
}


@pytest.mark.parametrize("because", NEEDED)
def test_an_erased_body_that_came_back_stays_if(because: str, shard: tuple[Shard, Signed, Signed]) -> None:
    network, over, _ = shard
    member = network.cluster.members[3]
    key, listed = layout.batch(over.digest), layout.APPLICATION + TO_ERASE.place(over.digest)
    reason, value = NEEDED[because](member, over.digest)
    store = MemoryStore({**member.store.entries, key: over.body, listed: u64(0), reason: value}.items())

    def eraser() -> Eraser:
        return Eraser(Overlay(store), member.application.keeper, member.replica._caretaker._memory)

    def erased() -> dict[bytes, bytes | None]:
        return {key: value for entries, _ in islice(eraser().steps(), 99) for key, value in entries}

    assert key not in erased()
    assert not eraser().meet(Outdated(over.digest), network.cluster.now, filling=False)
    store.write(((reason, member.store.get(reason)),))
    assert erased()[key] is None
    assert not eraser().meet(Outdated(over.digest), network.cluster.now, filling=True)
    (gone,) = eraser().meet(Outdated(over.digest), network.cluster.now, filling=False)
    assert dict(gone.entries)[key] is None


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


def test_a_liar_that_has_an_erased_batch_ordered_again_and_then_is_silent_does_not_stop_the_chain() -> None:
    """All others vote for its block, so they have the body; then the network is down for long, and the liar for ever."""
    network, over, _ = retained()
    cluster, liar, key = network.cluster, 0, layout.batch(over.digest)
    cluster.run(700)  # until nobody who is a little behind could still want it
    entries = cluster.members[liar].store.entries
    entries[key] = over.body
    entries[layout.waiting(over.digest)] = msgspec.msgpack.encode(Mark(liar, 10**6, b""))
    cluster.restart(liar)
    honest = [member for member in cluster.members if member.index != liar]

    def voted() -> bool:
        return all(key in member.store.entries and votes_for(member, over.digest) for member in honest)

    cluster.run_until(voted)
    cluster.outbox.carries = lambda _sender, _to, _data: False
    cluster.outbox.messages.clear()
    cluster.run(700)
    assert all(key in member.store.entries for member in honest)
    cluster.absent = {liar}
    cluster.outbox.carries = lambda _sender, _to, _data: True
    height = max(cluster.heights())
    cluster.run_until(lambda: min(member.replica.executed_height for member in honest) > height + 4)
    cluster.absent = set()
    cluster.run_until(lambda: not any(key in member.store.entries for member in honest))


def votes_for(member: Member, name: bytes) -> bool:
    """Whether its last vote is for a block with this batch that is not executed."""
    vote = member.record()[1].last_vote
    block = None if vote is None else Chain(member.store).uncommitted_block(vote.block)
    return block is not None and name in block.batches


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_member_that_is_behind_needs_is_not_erased_before_it_has_it(restarted: bool) -> None:
    """The others may need its votes to go on at all, and without blocks there is no snapshot for it (P2)."""
    network, _, _ = retained()
    cluster, back, gone = network.cluster, 3, 0
    cluster.absent = {back}
    over = network.publish(ALICE, "brief", b"is over while a member is away")
    cluster.run(1_500)
    if restarted:
        for index in range(back):
            cluster.restart(index)
        cluster.run(400)
    cluster.absent = {gone}
    height = max(cluster.heights())
    cluster.run_until(lambda: min(cluster.heights()[1:]) > height + 10)
    cluster.absent = set()
    cluster.run_until(
        lambda: not any(layout.batch(over.digest) in member.store.entries for member in cluster.members)
    )


def test_a_member_that_is_away_for_long_does_not_keep_bodies_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.replica.progress.AWAY", 70)
    network, _, _ = retained()
    cluster = network.cluster
    cluster.absent = {3}
    over = network.publish(ALICE, "brief", b"is over while a member is away")
    cluster.run_until(
        lambda: not any(layout.batch(over.digest) in member.store.entries for member in cluster.members[:3]),
        rounds=6_000,
    )
