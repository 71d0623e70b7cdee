"""A batch that takes more than its share of a block gets through whatever others do, and no oftener than that share allows."""

from __future__ import annotations

import pytest
from tests.application.world import ADMINS, ORGANISATIONS, WRITER, Actor, Signed, World, actor, tagged

from parley.application.exceeding import EXCEEDED
from parley.application.state import State
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.crypto.hashing import digest
from parley.ledger import layout
from parley.model.refusals import OK, Busy
from parley.modules.publishing.budget import MESSAGES
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import LEAVING
from parley.modules.staging import checking, numbering
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.tables import PENDING_BATCHES, STAGED
from parley.modules.subscriptions.operations import Subscribe

A, B, C, D = ORGANISATIONS
ALICE, BOB, CAROL = actor("alice"), actor("bob", B), actor("carol", C)
BUDGET = Budget(128)  # for batches, so that they need not be very large
LARGE = BUDGET.batches * MESSAGES + 1  # messages whose tags alone take more than all have


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    world.topic("read")
    for who in (ALICE, BOB, CAROL):
        world.client(who.name, who.organisation)
    assert world.do(CAROL, Subscribe("read", "a == 1")).code == OK
    world.topic("wide", partitions=64)
    monkeypatch.setattr(DATA_SHARD, "budget", BUDGET)
    return world


def large(world: World, who: Actor, session: int = 0) -> Signed:
    messages = [tagged(a=2)] * LARGE
    return world.publication(who, "read", *messages, session=bytes([session]) * 16, not_after=9_000)


def filling(world: World, who: Actor, number: int) -> list[Signed]:
    """What takes all that its organisation has in a block."""
    sessions = [bytes([number % 256, at]) * 8 for at in range(BUDGET.batches // 4)]
    return [world.publication(who, "wide", partition=at % 64, session=one) for at, one in enumerate(sessions)]


def blocks_until_done(world: World, batch: Signed, others: list[list[Signed]]) -> int:
    """How many blocks with it and some others it takes."""
    for blocks, beside in enumerate(others, 1):
        codes = {receipt.digest: receipt.code for receipt in world.order(*beside, batch)}
        if codes[batch.digest] == OK:
            return blocks
        assert codes[batch.digest] == Busy.code
    raise AssertionError(f"not within {len(others)} blocks")


def test_large_batches_get_through_while_another_organisation_fills_every_block(world: World) -> None:
    beside = [filling(world, ALICE, number) for number in range(9)]
    assert blocks_until_done(world, large(world, BOB), beside[:1]) == 1
    assert blocks_until_done(world, large(world, BOB, 1), beside[1:]) == 5  # its share of as many blocks


def test_strangers_do_not_take_the_place_of_a_large_batch(world: World) -> None:
    beside = [
        [world.publication(actor(f"nobody{number}-{at}"), "read") for at in range(300)] for number in range(2)
    ]
    assert blocks_until_done(world, large(world, BOB), beside) == 1


def test_an_organisation_gets_no_more_large_batches_through_than_its_share_allows(world: World) -> None:
    """A block has 128 units, and there are four organisations: 128 and a few more are the share of five blocks."""
    done = []
    for number in range(12):
        own = [large(world, ALICE, session) for session in range(number, number + 2)]
        codes = [receipt.code for receipt in world.order(*own, world.publication(BOB, "read"))]
        assert codes.count(Busy.code) + codes.count(OK) == 3
        done.append(codes.count(OK) - 1)
    assert [at for at, count in enumerate(done) if count] == [0, 5, 10]
    assert max(done) == 1


def test_who_took_more_least_lately_comes_first_wherever_the_leader_has_put_it(world: World) -> None:
    assert world.order_one(large(world, ALICE)).code == OK
    while (world.record(EXCEEDED, A) or 0) > world.height:
        world.wait(1)
    theirs, mine = large(world, ALICE, 1), large(world, BOB)
    codes = {receipt.digest: receipt.code for receipt in world.order(theirs, mine)}
    assert (codes[theirs.digest], codes[mine.digest]) == (Busy.code, OK)


def test_what_a_large_batch_has_read_counts(world: World) -> None:
    """Once only the last thing that it took was counted, which may be next to nothing."""
    messages = [tagged(a=1), *[tagged(a=2)] * (LARGE - 1)]
    height = world.height + 1
    assert world.order_one(world.publication(ALICE, "read", *messages)).code == OK
    share = BUDGET.batches // len(ORGANISATIONS)
    assert world.record(EXCEEDED, A) == height + LARGE // MESSAGES // share + 1


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_each_organisations_jobs_go_on_however_large_the_pieces_of_others_are(world: World) -> None:
    """A piece of 64 orders is two thirds of what a block has for jobs, so two organisations once left nothing for the others."""
    leaving = [world.client(f"leaving-{at}", name) for at, name in enumerate(ORGANISATIONS)]
    for at, client in enumerate(leaving):
        for number in range(2 if client.organisation == D else 20):
            while world.do(client, Subscribe("wide", f"of{at} == {number}")).code != OK:
                assert world.height < 1_000
    revocations = [world.control(ADMINS[one.organisation], RevokeClient(one.name)) for one in leaving]
    assert {receipt.code for receipt in world.order(*revocations)} == {OK}
    world.wait(8)
    assert {name for name, _ in world.table(LEAVING)} == {A, B, C}


# -- stages ----------------------------------------------------------------------------------------------------------


def order(world: World, *batches: Signed) -> None:
    """Until all are done."""
    left = {batch.digest: batch for batch in batches}
    while left:
        codes = {receipt.digest: receipt.code for receipt in world.order(*left.values())}
        assert {codes[name] for name in left} <= {OK, Busy.code}
        left = {name: batch for name, batch in left.items() if codes[name] == Busy.code}
        assert world.height < 1_000


def commit(world: World, who: Actor, batch: Signed) -> None:
    order(world, batch)
    order(world, world.commit(who, "read", 0, batch))


def test_staged_batches_that_fit_in_no_block_do_not_hold_up_those_of_others(world: World) -> None:
    crowd = [ALICE, *(world.client(f"crowd-{number}") for number in range(5))]
    made = [world.staged(client, "read", *[tagged(a=2)] * LARGE, not_after=9_000) for client in crowd]
    order(world, *made)
    order(world, *(world.commit(client, "read", 0, one) for client, one in zip(crowd, made, strict=True)))
    assert world.record(PENDING_BATCHES)
    mine = world.staged(BOB, "read", tagged(a=1))
    commit(world, BOB, mine)
    world.wait(4)
    assert world.record(STAGED, mine.digest) is None
    while world.record(PENDING_BATCHES):
        world.wait(1)
        assert world.height < 2_000


def test_staged_batches_that_turn_out_too_large_do_not_hold_up_others(world: World) -> None:
    """They fit as far as is known without looking at them; once each block looked at all of them in vain."""
    texts = [f"a == 2 and b != {number}" for number in range(20)]
    for text in texts:
        while world.do(CAROL, Subscribe("read", text)).code != OK:
            assert world.height < 1_000
    crowd = [world.client(f"crowd-{number}") for number in range(12)]
    for client in crowd:
        commit(world, client, world.staged(client, "read", *[tagged(a=2)] * 200, not_after=9_000))
    mine = world.staged(BOB, "read", tagged(a=3))
    commit(world, BOB, mine)
    world.wait(6)
    assert world.record(STAGED, mine.digest) is None


def test_a_commit_of_very_many_batches_ends_while_others_fill_every_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 0)
    first = world.staged(BOB, "read", tagged(a=1), not_after=90_000)
    assert world.order_one(first).code == OK
    record = world.record(STAGED, first.digest)
    assert record is not None
    state = State(world.store)
    others = [digest("another", number.to_bytes(8, "big")) for number in range(4_095)]
    for one in others:  # what so many staged batches leave
        STAGED.put(state, one, record=record)
    world.store.write([(layout.ENTRIES + key, value) for key, value in state.changes()])
    named = (first.digest, *others)
    ending = world.control(BOB, CommitStage("read", WRITER, 0, named), not_after=world.height + 900)
    attempts = 0
    while True:
        attempts += 1
        receipts = world.order(*filling(world, ALICE, attempts), *filling(world, CAROL, attempts), ending)
        if next(one.code for one in receipts if one.digest == ending.digest) == OK:
            break
        assert attempts <= 5 * len(others) // checking.LOOKED_AT  # its share is a part of each
    assert attempts > 2


@pytest.mark.parametrize("others", [(A,), (A, C, D)])
def test_batches_that_are_mostly_read_are_numbered_as_fast_as_those_that_mostly_match(
    others: tuple[str, ...],
) -> None:
    """Once what was read in vain was paid for again in every block, and who paid fell behind the others for ever."""
    world = World()
    who = {name: world.client(f"writer-{name}", name) for name in ORGANISATIONS}
    world.topic("read", organisation=B)
    world.topic("matched")
    order(world, world.control(who[B], Subscribe("read", "a == 1")))
    for number in range(80):
        order(world, world.control(who[A], Subscribe("matched", f"a == 1 and z != {number}")))
    each = 30
    mine = [
        world.staged(who[B], "read", *[tagged(a=2)] * 1_250, tagged(k=n), not_after=9_000)
        for n in range(each)
    ]
    theirs = {
        name: [world.staged(who[name], "matched", tagged(a=1, k=n), not_after=9_000) for n in range(each)]
        for name in others
    }
    order(world, *mine, *(batch for batches in theirs.values() for batch in batches))
    commits = [world.commit(who[name], "matched", 0, *batches) for name, batches in theirs.items()]
    order(world, *commits, world.commit(who[B], "read", 0, *mine))
    left = [each]
    while left[-1]:
        world.order(*(world.publication(who[A], "matched", tagged(a=1)) for _ in range(3)))
        left.append(sum(world.record(STAGED, batch.digest) is not None for batch in mine))
        waiting = [batch for batches in theirs.values() for batch in batches]
        behind = sum(world.record(STAGED, batch.digest) is not None for batch in waiting) / len(others)
        assert left[-1] - behind <= 8
        assert len(left) < 400
