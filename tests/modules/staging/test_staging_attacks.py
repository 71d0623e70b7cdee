"""Attacks on staging: nobody makes others wait for what they have staged, by subscribing or by staging much (P23)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest
from tests.application.world import ADMIN, WRITER, Actor, Signed, World, actor, mount, tagged

from parley.application.state import State
from parley.application.work import Budget
from parley.applications import DATA_SHARD, data_shard
from parley.model.receipts import BatchReceipt, Done, Duplicate
from parley.model.refusals import OK, Busy
from parley.modules.publishing import budget
from parley.modules.publishing.receipts import Published, first_offset
from parley.modules.staging import checking, numbering
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.refusals import NotStaged
from parley.modules.staging.tables import (
    COMMITTED,
    COMMITTING,
    CONTENTS,
    LEAST,
    OVER,
    PENDING,
    PENDING_BATCHES,
    QUEUES,
    STAGED,
    STAGES,
    STAGING,
    TURNS,
    WAITING,
)
from parley.modules.subscriptions import matching
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicReplaced
from parley.modules.topics.tables import HEADS

ALICE, ANNA, BOB, MALLORY = actor("alice"), actor("anna"), actor("bob"), actor("mallory")
CAROL = actor("carol", "insurer")
OF_STAGES = (
    *(STAGED, STAGING, CONTENTS, COMMITTING, COMMITTED, QUEUES, TURNS, WAITING),
    *(PENDING, OVER, PENDING_BATCHES),
)


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    for who in (ALICE, ANNA, BOB, MALLORY, CAROL):
        world.client(who.name, who.organisation)
    return world


@pytest.fixture
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A block does so little that a commit of a few batches takes several; a constraint costs 3 for each message."""
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(60, 30))
    monkeypatch.setattr(checking, "READS", 1)
    monkeypatch.setattr(checking, "LOOKED_AT", 8)
    monkeypatch.setattr(matching, "HEAD", 0)
    monkeypatch.setattr(matching, "LEAST", 3)
    monkeypatch.setattr(budget, "MAX_COMPARED", 45)
    return world


def stage(
    world: World, who: Actor, batches: int, messages: int = 1, *, number: int = 0, until: int = 1_000
) -> list[Signed]:
    """Batches that are staged, a few in a block."""
    made = [
        world.staged(
            who,
            "orders",
            *[tagged(n=i, payload=bytes([at % 256, i])) for i in range(messages)],
            stage=number,
            not_after=world.height + until,
        )
        for at in range(batches)
    ]
    for one in made:
        assert world.order(one)[0].code == OK
    return made


def order(world: World, batch: Signed, *others: Signed) -> BatchReceipt:
    """The receipt of the first, in a block with the others."""
    return next(one for one in world.order(batch, *others) if one.digest == batch.digest)


def left(world: World) -> list[bytes]:
    return [key for table in OF_STAGES for key in world.entries(table.prefix())]


def numbered_at(world: World, batch: Signed, most: int) -> int:
    """In how many blocks from now on a committed batch is numbered."""
    for blocks in range(most + 1):
        receipts = [leaf for leaf in world.leaves(world.height) if isinstance(leaf, BatchReceipt)]
        if any(one.digest == batch.digest and first_offset(one) is not None for one in receipts):
            return blocks
        world.wait(1)
    raise AssertionError(f"it was not numbered within {most} blocks")


# -- whoever subscribes and leaves ---------------------------------------------------------------------------------------


def comers(world: World) -> Iterator[tuple[Signed, ...]]:
    """Somebody subscribes to something new in every block and leaves what it had."""
    number = 0
    while True:
        batches = [world.control(MALLORY, Subscribe("orders", f"z = {number}"), session=b"s" * 16)]
        if number:
            last = Unsubscribe("orders", f"z = {number - 1}")
            batches.append(world.control(MALLORY, last, session=b"u" * 16))
        yield tuple(batches)
        number += 1


def test_a_commit_of_many_rows_gets_through_while_somebody_subscribes_and_leaves_in_every_block(
    small: World,
) -> None:
    """Each new constraint makes it necessary to look at the messages: they are looked at once, over several blocks."""
    coming = comers(small)
    batches = stage(small, ALICE, 60, 8)
    small.order(*next(coming))
    commit = small.commit(ALICE, "orders", 0, *batches)
    codes: list[str] = []
    while not codes or codes[-1] == Busy.code:
        assert len(codes) < 20
        codes.append(order(small, commit, *next(coming)).code)
    assert codes[-1] == OK
    assert len(codes) > 3  # or the test shows nothing
    while left(small):
        small.order(*next(coming))
        assert small.height < 400
    head = small.record(HEADS, "orders", 0)
    assert head is not None
    assert head.next_offset == 8 * len(batches)


def test_room_is_there_again_when_those_who_subscribed_have_left(small: World) -> None:
    """What new constraints may add to staged batches follows from those that live."""
    batches = stage(small, ALICE, 1, 5)
    for number in range(50):
        assert small.do(BOB, Subscribe("orders", f"n != {number}")).code == OK
        assert small.do(BOB, Unsubscribe("orders", f"n != {number}")).code == OK
    assert small.order(small.commit(ALICE, "orders", 0, *batches))[0].outcome == Done()


def test_whoever_comes_and_goes_leaves_room_for_constraints_while_much_waits(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    assert order(small, small.commit(ALICE, "orders", 0, *stage(small, ALICE, 40, 5))).code == OK
    for number in range(12):
        assert small.order(small.control(BOB, Subscribe("orders", f"n != {number}")))[0].code == OK
        assert small.order(small.control(BOB, Unsubscribe("orders", f"n != {number}")))[0].code == OK
    assert small.record(PENDING, "orders") is not None


def test_a_topic_on_which_something_always_waits_has_room_for_constraints_when_what_waited_then_is_numbered(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    first, second = stage(small, ALICE, 3, 5), stage(small, ALICE, 7, 5, number=1)
    small.order(small.commit(ALICE, "orders", 0, *first))
    assert small.order(small.control(BOB, Subscribe("orders", "n != 1")))[0].code == OK
    more = small.control(BOB, Subscribe("orders", "n != 2"))
    receipts = small.order(small.commit(ALICE, "orders", 1, *second), more)
    assert [one.code for one in receipts] == [OK, Busy.code, OK]  # the last one is numbered
    assert order(small, more).code == OK
    assert small.record(PENDING, "orders") is not None


def test_a_constraint_waits_while_a_commit_is_looked_at_that_it_would_make_too_costly(small: World) -> None:
    batches = stage(small, ALICE, 100, 5)
    commit = small.commit(ALICE, "orders", 0, *batches)
    assert order(small, commit).code == Busy.code
    dear = small.control(BOB, Subscribe("orders", "(a != 1 or a != 2) and (a != 3 or a != 4)"))
    cheap = small.control(MALLORY, Subscribe("orders", "n != 1"))
    assert [one.code for one in small.order(dear, cheap)] == [Busy.code, OK]
    while order(small, commit).code == Busy.code:
        pass
    while small.record(PENDING_BATCHES) is not None:
        assert order(small, dear).code == Busy.code
    assert order(small, dear).code == OK


def test_a_commit_that_is_not_ordered_again_is_forgotten(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "RESERVED", 10)
    monkeypatch.setattr(checking, "LAPSED", 20)
    batches = stage(small, ALICE, 100, 5)
    commit = small.commit(ALICE, "orders", 0, *batches)
    assert order(small, commit).code == Busy.code
    dear = Subscribe("orders", "(a != 1 or a != 2) and (a != 3 or a != 4)")
    assert small.do(BOB, dear).code == Busy.code
    small.wait(10)
    assert not small.table(PENDING)
    assert order(small, commit).code == Busy.code
    assert not small.table(PENDING)  # room is not reserved again at once
    assert small.do(BOB, dear).code == OK
    small.wait(20)
    assert not small.table(COMMITTING)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_subscribed_to_no_batch_that_was_committed_costs_too_much(
    small: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    monkeypatch.setattr(numbering, "work_of", _affordable)
    monkeypatch.setattr(checking, "RESERVED", 4)
    random, wanted, stages = Random(seed), set[str](), dict[Actor, list[Signed]]()
    commits: list[Signed] = []
    for _ in range(120):
        who, text = random.choice((ALICE, ANNA, CAROL)), f"{random.choice('nz')} != {random.randrange(4)}"
        asked: list[Signed] = []
        if random.random() < 0.7:
            operation = Unsubscribe("orders", text) if text in wanted else Subscribe("orders", text)
            asked.append(small.control(BOB, operation))
        if stages.get(who) and random.random() < 0.15:
            number = small.record(STAGES, "orders", small.topic_id("orders"), who.key, WRITER)
            commits.append(small.commit(who, "orders", number.stage + 1 if number else 0, *stages.pop(who)))
        elif random.random() < 0.6:
            number = small.record(STAGES, "orders", small.topic_id("orders"), who.key, WRITER)
            sizes = [tagged(n=at % 3, payload=random.randbytes(4)) for at in range(random.randint(1, 5))]
            made = small.staged(who, "orders", *sizes, stage=number.stage + 1 if number else 0)
            asked.append(made)
            stages.setdefault(who, []).append(made)
        for receipt in small.order(*asked, *commits):
            commits = [one for one in commits if one.digest != receipt.digest or receipt.code == Busy.code]
        wanted = {record.constraint for record in small.table(SUBSCRIPTIONS).values()}
    assert small.table(HEADS)["orders", 0].next_offset > 9  # or the test shows nothing


def _affordable(compared: int) -> int:
    assert compared <= budget.MAX_COMPARED
    return budget.work_of(compared)


# -- commits over several blocks -----------------------------------------------------------------------------------------


def test_a_commit_goes_on_where_it_stopped_and_a_repeat_gives_the_first_receipt(small: World) -> None:
    batches = stage(small, ALICE, 100)
    commit = small.commit(ALICE, "orders", 0, *batches)
    checked = []
    while (receipt := order(small, commit)).code == Busy.code:
        known = small.record(COMMITTING, ALICE.key)
        assert known is not None
        assert f"{known.checked} of the 100" in (receipt.rejected.detail if receipt.rejected else "")
        checked.append(known.checked)
    assert checked == sorted(set(checked))
    assert len(checked) > 1
    assert receipt.outcome == Done()
    assert not small.table(COMMITTING)
    place = (small.height, 0)
    assert order(small, commit).outcome == Duplicate(place)
    assert order(small, small.commit(ALICE, "orders", 0, *batches)).outcome == Duplicate(place)


def test_what_expires_while_a_commit_is_looked_at_is_not_committed(small: World) -> None:
    batches = stage(small, ALICE, 1, until=110) + stage(small, ALICE, 99)
    batches = [*batches[1:], batches[0]]
    for order_of in (batches, [batches[-1], *batches[:-1]]):
        commit = small.commit(ALICE, "orders", 0, *order_of)
        while (receipt := order(small, commit)).code == Busy.code:
            small.wait(5)
        assert receipt.code == NotStaged.code
    assert not small.table(COMMITTING)
    assert not small.table(PENDING)
    assert [key for (key,) in small.table(STAGED)] == sorted(one.digest for one in batches[:-1])


def test_a_refused_commit_leaves_nothing_behind(small: World) -> None:
    batches = stage(small, ALICE, 80)
    never = small.staged(ALICE, "orders", tagged(never=1))
    commit = small.commit(ALICE, "orders", 0, *batches, never)
    while (receipt := order(small, commit)).code == Busy.code:
        pass
    assert receipt.code == NotStaged.code
    assert not small.table(COMMITTING)
    assert not small.table(PENDING)
    good = small.commit(ALICE, "orders", 0, *batches)
    while (receipt := order(small, good)).code == Busy.code:
        pass
    assert receipt.outcome == Done()


def test_a_commit_ends_when_its_topic_is_made_again_meanwhile(small: World) -> None:
    batches = stage(small, ALICE, 80)
    commit = small.commit(ALICE, "orders", 0, *batches)
    assert order(small, commit).code == Busy.code
    small.do(ADMIN, DeleteTopic("orders"))
    small.wait(1)
    assert small.do(ADMIN, CreateTopic("orders", 1, Policy(), "", "")).code == OK
    assert small.record(COMMITTING, ALICE.key) is not None
    assert order(small, commit).code == TopicReplaced.code
    assert small.record(COMMITTING, ALICE.key) is None
    assert not small.table(PENDING)


def test_a_client_has_one_large_commit_at_a_time(small: World) -> None:
    batches, others = stage(small, ALICE, 80), stage(small, ALICE, 80, number=1)
    first = small.commit(ALICE, "orders", 0, *batches)
    digests = tuple(one.digest for one in others)
    second = small.control(ALICE, CommitStage("orders", WRITER, 1, digests), session=b"2" * 16)
    assert order(small, first).code == Busy.code
    receipt = order(small, second)
    assert receipt.code == Busy.code
    assert "another large commit" in (receipt.rejected.detail if receipt.rejected else "")
    while order(small, first).code == Busy.code:
        pass
    assert not small.table(COMMITTING)


def test_a_commit_of_very_many_batches_makes_no_block_touch_many_entries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [world.staged(ALICE, "orders", tagged(n=at), not_after=world.height + 900) for at in range(600)]
    for first in range(0, len(made), 40):
        assert {one.code for one in world.order(*made[first : first + 40])} == {OK}
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(128, 64))
    touched = [0]
    for name in ("load", "put", "delete"):
        monkeypatch.setattr(State, name, _counted(getattr(State, name), touched))
    commit, counts = world.commit(ALICE, "orders", 0, *made), []
    while True:
        touched[0] = 0
        receipt = order(world, commit)
        counts.append(touched[0])
        if receipt.code != Busy.code:
            break
    assert receipt.outcome == Done()
    while world.record(PENDING_BATCHES) is not None:
        touched[0] = 0
        world.wait(1)
        counts.append(touched[0])
    assert max(counts) < 1_000  # with reads: a block may write 128 entries, and what is left
    assert len(counts) > 10


def _counted(method: Callable[..., object], touched: list[int]) -> Callable[..., object]:
    def counted(*args: object) -> object:
        touched[0] += 1
        return method(*args)

    return counted


# -- whoever stages much -------------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(world: World) -> World:
    """A block numbers two small batches."""
    world.machine, world.keeper = mount(world.genesis, data_shard(numbered_bytes=2 * LEAST))
    return world


@pytest.mark.parametrize("other", [CAROL, ANNA], ids=["organisation", "client"])
def test_a_huge_committed_stage_does_not_delay_the_single_row_of_another(narrow: World, other: Actor) -> None:
    huge = stage(narrow, ALICE, 60)
    assert order(narrow, narrow.commit(ALICE, "orders", 0, *huge)).outcome == Done()
    narrow.wait(2)
    for number in range(3):  # also when it comes again and again
        (row,) = stage(narrow, other, 1, number=number)
        assert order(narrow, narrow.commit(other, "orders", number, row)).outcome == Done()
        assert numbered_at(narrow, row, 2) <= 2
    while left(narrow):
        narrow.wait(1)
        assert narrow.height < 200


def test_a_single_row_waits_for_few_blocks_however_many_clients_of_others_wait(narrow: World) -> None:
    many = [narrow.client(f"m{number}") for number in range(12)]
    for who in many:
        assert order(narrow, narrow.commit(who, "orders", 0, *stage(narrow, who, 6))).outcome == Done()
    (row,) = stage(narrow, CAROL, 1)
    assert order(narrow, narrow.commit(CAROL, "orders", 0, row)).outcome == Done()
    assert numbered_at(narrow, row, 2) <= 2


def test_a_client_whose_batches_are_large_has_its_turn_among_many_with_small_ones(world: World) -> None:
    world.machine, world.keeper = mount(world.genesis, data_shard(numbered_bytes=20_000))
    large = [world.staged(ALICE, "orders", tagged(n=at, payload=bytes(15_000))) for at in range(6)]
    world.order(*large)
    assert order(world, world.commit(ALICE, "orders", 0, *large)).outcome == Done()
    blocks = 0
    number = 0
    while any(world.record(STAGED, one.digest) is not None for one in large):
        made = [*stage(world, ANNA, 3, number=number), *stage(world, BOB, 3, number=number)]
        world.order(
            world.commit(ANNA, "orders", number, *made[:3]), world.commit(BOB, "orders", number, *made[3:])
        )
        number, blocks = number + 1, blocks + 1
        assert blocks < 30


def test_those_who_wait_have_what_is_numbered_in_equal_parts(narrow: World) -> None:
    """By organisation, then by client: alice and anna have one half, carol the other."""
    commits = [narrow.commit(who, "orders", 0, *stage(narrow, who, 24)) for who in (ALICE, ANNA, CAROL)]
    receipts = narrow.order(*commits)
    for _ in range(12):
        receipts += narrow.order()
    titles = [one.client for one in receipts if one.given(Published) is not None]
    counts = {title: titles[:24].count(title) for title in set(titles)}
    assert counts == {"hospital-a/alice": 6, "hospital-a/anna": 6, "insurer/carol": 12}
