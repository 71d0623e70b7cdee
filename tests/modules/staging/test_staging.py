"""Staged batches: invisible until their writer commits the stage, then numbered whole, once and in order (P23)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from tests.application.world import ADMIN, WRITER, Signed, World, actor, matches, mount, tagged

from parley.application.expiry import BEHIND, EXPIRY
from parley.application.quotas import COUNTS, HELD
from parley.application.work import Budget
from parley.applications import DATA_SHARD, data_shard
from parley.model.receipts import BatchReceipt, Done, Duplicate, Rejected
from parley.model.refusals import (
    DUPLICATE,
    OK,
    Busy,
    Expired,
    Invalid,
    LimitExceeded,
    PermissionDenied,
    Revoked,
    UnknownClient,
)
from parley.modules.publishing import budget
from parley.modules.publishing.receipts import Published, first_offset
from parley.modules.registry.operations import RevokeClient
from parley.modules.staging import numbering, staged
from parley.modules.staging import rules as staging
from parley.modules.staging.operations import CommitStage, Source, digests_hash
from parley.modules.staging.receipts import Staged, is_staged
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.staging.tables import (
    COMMITTED,
    COMMITTING,
    CONTENTS,
    LEAST,
    MAX_PART,
    OVER,
    PENDING,
    PENDING_BATCHES,
    QUEUES,
    STAGED,
    STAGES,
    STAGING,
    TURNS,
    WAITING,
    StageRecord,
)
from parley.modules.subscriptions import matching
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.tables import ORDER_HEADS
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import TopicReplaced, UnknownPartition, UnknownTopic
from parley.modules.topics.tables import HEADS

ALICE, BOB = actor("alice"), actor("bob")
OTHER = b"o" * 16
OF_STAGES = (
    *(STAGED, STAGING, CONTENTS, COMMITTING, COMMITTED, QUEUES, TURNS, WAITING),
    *(PENDING, OVER, PENDING_BATCHES),
)


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    world.client("bob")
    return world


def refused(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    return receipt.rejected


def outcomes(receipts: list[BatchReceipt]) -> list[object]:
    return [receipt.outcome for receipt in receipts]


def ends(world: World, topic: str = "orders") -> list[int]:
    heads = [world.record(HEADS, topic, partition) for partition in (0, 1)]
    return [head.next_offset for head in heads if head is not None]


def writer(world: World, by: bytes = WRITER) -> StageRecord | None:
    return world.record(STAGES, "orders", world.topic_id("orders"), ALICE.key, by)


def left(world: World) -> list[bytes]:
    """What the state holds of stages, besides what their writers have committed last."""
    return [key for table in OF_STAGES for key in world.entries(table.prefix())]


def staged_bytes(world: World) -> dict[bytes, bytes]:
    """What is counted of them."""
    return {**world.entries(COUNTS.prefix("staged")), **world.entries(HELD.prefix("staged"))}


def stage(world: World, *sizes: int, number: int = 0, partition: int = 0, **more: object) -> list[Signed]:
    """Batches of so many messages, staged in a block."""
    batches = [
        world.staged(
            ALICE,
            "orders",
            *[tagged(n=i, payload=bytes([number, at, i % 256])) for i in range(size)],
            stage=number,
            partition=partition,
            **more,  # type: ignore[arg-type]
        )
        for at, size in enumerate(sizes)
    ]
    until = world.height + 1_000
    assert outcomes(world.order(*batches)) == [Staged(until)] * len(batches)
    return batches


# -- what staging and committing do --------------------------------------------------------------------------------------


def test_staged_batches_are_invisible_until_their_stage_is_committed(world: World) -> None:
    world.do(BOB, Subscribe("orders", ""))
    before = world.table(HEADS), world.table(ORDER_HEADS)
    batches = stage(world, 2, 3)
    world.wait(3)
    assert (world.table(HEADS), world.table(ORDER_HEADS)) == before
    assert writer(world) is None
    leaves = world.apply(world.commit(ALICE, "orders", 0, *reversed(batches)))
    assert [leaf.outcome for leaf in leaves[:3] if isinstance(leaf, BatchReceipt)] == [
        Done(),
        Published(0),
        Published(3),
    ]
    numbered = [leaf for leaf in leaves[1:3] if isinstance(leaf, BatchReceipt)]
    assert [(one.digest, one.publisher, one.client, one.count) for one in numbered] == [
        (batches[1].digest, ALICE.key, "hospital-a/alice", 3),
        (batches[0].digest, ALICE.key, "hospital-a/alice", 2),
    ]
    (match,) = matches(leaves)
    assert [offset for offset, _ in match.items] == [0, 1, 2, 3, 4]
    assert ends(world) == [5, 0]
    world.wait(1)
    assert not left(world)
    assert not [key for _, key in world.table(EXPIRY) if key.startswith(STAGED.prefix())]


def test_a_match_holds_the_leaves_that_were_staged(world: World) -> None:
    world.do(BOB, Subscribe("orders", "a = 1"))
    messages = [tagged(a=i % 3, payload=bytes([i])) for i in range(9)]
    batch = world.staged(ALICE, "orders", *messages)
    world.order(batch)
    (match,) = matches(world.apply(world.commit(ALICE, "orders", 0, batch)))
    assert match.items == tuple((i, messages[i].leaf()) for i in (1, 4, 7))


def test_tags_that_python_holds_equal_stay_apart(world: World) -> None:
    world.do(BOB, Subscribe("orders", "a = 1"))
    batch = world.staged(
        ALICE, "orders", tagged(a=True), tagged(a=1), tagged(a=True), tagged(a="1"), tagged(a=1)
    )
    world.order(batch)
    (match,) = matches(world.apply(world.commit(ALICE, "orders", 0, batch)))
    assert [offset for offset, _ in match.items] == [1, 4]


def test_the_parts_of_a_large_batch_give_its_messages_in_order(world: World) -> None:
    world.do(BOB, Subscribe("orders", "k = 7"))
    messages = [tagged(k=i % 9, text="x" * 200, payload=i.to_bytes(2)) for i in range(2_000)]
    batch = world.staged(ALICE, "orders", *messages)
    world.order(batch)
    parts = world.entries(CONTENTS.prefix())
    assert len(parts) > 10
    assert max(map(len, parts.values())) < 2 * MAX_PART
    (match,) = matches(world.apply(world.commit(ALICE, "orders", 0, batch)))
    assert match.items == tuple((i, messages[i].leaf()) for i in range(7, 2_000, 9))


def test_subscriptions_that_begin_between_staging_and_commit_get_everything(world: World) -> None:
    batches = stage(world, 2)
    world.do(BOB, Subscribe("orders", "n = 1"))
    (match,) = matches(world.apply(world.commit(ALICE, "orders", 0, *batches)))
    assert [offset for offset, _ in match.items] == [1]


def test_the_record_of_a_writer_says_what_was_committed_last(world: World) -> None:
    first, second = stage(world, 1), stage(world, 1, number=5)
    world.apply(world.commit(ALICE, "orders", 0, *first))
    world.apply(world.commit(ALICE, "orders", 5, *second))
    named = digests_hash([batch.digest for batch in second])
    assert writer(world) == StageRecord(5, (world.height, 0), named, 0)


def test_an_empty_stage_can_be_committed(world: World) -> None:
    assert outcomes(world.order(world.commit(ALICE, "orders", 3))) == [Done()]
    assert writer(world) == StageRecord(3, (world.height, 0), digests_hash([]), 0)
    world.wait(1)
    assert not left(world)


def test_a_stage_can_be_staged_and_committed_in_one_block(world: World) -> None:
    batch = world.staged(ALICE, "orders")
    receipts = world.order(batch, world.commit(ALICE, "orders", 0, batch))
    assert outcomes(receipts) == [Staged(world.height - 1 + 1_000), Done(), Published(0)]


def test_stages_of_writers_topics_and_clients_have_nothing_to_do_with_each_other(world: World) -> None:
    world.topic("other")
    mine, of_writer = stage(world, 1), stage(world, 1, writer=OTHER)
    of_bob = world.staged(BOB, "orders", tagged(payload=b"bob"))
    elsewhere = world.staged(ALICE, "other")
    later = world.staged(ALICE, "orders", stage=1)
    world.order(of_bob, elsewhere, later)
    for foreign in (*of_writer, of_bob, elsewhere, later):
        receipt = world.order_one(world.commit(ALICE, "orders", 0, *mine, foreign))
        assert receipt.code == NotStaged.code
        assert foreign.digest.hex() in refused(receipt).detail
    assert ends(world) == [0, 0]
    assert outcomes(world.order(world.commit(ALICE, "orders", 0, *mine))) == [Done(), Published(0)]
    assert outcomes(world.order(world.commit(BOB, "orders", 0, of_bob))) == [Done(), Published(1)]


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_a_commit_is_all_or_none(world: World) -> None:
    batches = stage(world, 1, 1)
    never = world.staged(ALICE, "orders", tagged(payload=b"never ordered"))
    before = world.table(STAGED), world.table(STAGING), world.table(HEADS)
    receipt = world.order_one(world.commit(ALICE, "orders", 0, *batches, never))
    assert receipt.code == NotStaged.code
    assert never.digest.hex() in refused(receipt).detail
    twice = world.order_one(world.commit(ALICE, "orders", 0, *batches, batches[0]))
    assert twice.code == Invalid.code
    assert (world.table(STAGED), world.table(STAGING), world.table(HEADS)) == before
    assert writer(world) is None


def test_a_stage_is_committed_once(world: World) -> None:
    batches = stage(world, 1, number=4)
    unused = stage(world, 1, number=7)
    world.order(world.commit(ALICE, "orders", 4, *batches))
    first = (world.height, 0)
    repeat = world.commit(ALICE, "orders", 4, *batches)
    assert outcomes(world.order(repeat)) == [Duplicate(first)]
    assert outcomes(world.order(world.commit(ALICE, "orders", 4))) != [Duplicate(first)]
    for number in (4, 3, 0):
        receipt = world.order_one(world.commit(ALICE, "orders", number))
        assert receipt.code == StageOver.code
        assert "committed stage 4" in refused(receipt).detail
    assert ends(world) == [1, 0]
    assert outcomes(world.order(world.commit(ALICE, "orders", 7, *unused))) == [Done(), Published(1)]


A, B = b"a" * 32, b"b" * 32
REPETITIONS = [
    # what the first commit was made of, what the second one, and whether it is the same stage
    (Source(A, A), Source(A, A), True),
    (Source(A, A), Source(A, B), True),  # other rows of the same plan: the upstream gives others each time
    # The same rows of another plan: what else it holds may have gone elsewhere.
    (Source(A, A), Source(B, A), False),
    (Source(A, A), Source(B, B), False),
    (Source(None, A), Source(None, A), True),
    (Source(None, A), Source(None, B), False),
    (Source(A, A), Source(None, A), True),  # the plan could be read only once
    (Source(None, A), Source(A, A), True),
    (Source(A, A), Source(None, B), False),
    (Source(None, A), Source(A, B), False),
    (Source(A, None), Source(None, A), False),  # a hash of one kind is none of another
    (Source(None, A), Source(A, None), False),
    (Source(A, A), Source(), False),
    (Source(), Source(A, A), False),
]


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("first", "second", "same"), REPETITIONS)
def test_a_stage_that_is_committed_again_is_the_first_one_only_if_it_was_made_of_the_same(
    world: World, first: Source, second: Source, *, same: bool, number: int
) -> None:
    """Else a checkpoint that is one batch old would lose rows without a word."""
    batches, others = stage(world, 1, 1), stage(world, *[2] * number)
    world.order(world.commit(ALICE, "orders", 0, *batches, source=first))
    place, record = (world.height, 0), writer(world)
    receipt = world.order_one(world.commit(ALICE, "orders", 0, *others, source=second))
    if same:
        assert receipt.outcome == Duplicate(place)
    else:
        assert receipt.code == StageOver.code
        assert f"committed stage 0 at height {place[0]}" in refused(receipt).detail
        assert "what was committed first stands" in refused(receipt).detail
    assert writer(world) == record
    assert ends(world) == [2, 0]


def test_without_a_source_a_commit_is_known_by_the_batches_that_it_names(world: World) -> None:
    batches = stage(world, 1, 1)
    world.order(world.commit(ALICE, "orders", 0, *batches))
    place = (world.height, 0)
    assert world.order_one(world.commit(ALICE, "orders", 0, *batches)).outcome == Duplicate(place)
    assert world.order_one(world.commit(ALICE, "orders", 0, *reversed(batches))).code == StageOver.code


def test_a_stage_below_the_last_one_is_over_whatever_it_was_made_of(world: World) -> None:
    source = Source(A, A)
    for number in (0, 1):
        world.order(world.commit(ALICE, "orders", number, *stage(world, 1, number=number), source=source))
    assert world.order_one(world.commit(ALICE, "orders", 0, source=source)).code == StageOver.code
    assert world.order_one(world.commit(ALICE, "orders", 1, source=source)).code == DUPLICATE


def test_a_replay_of_a_commit_says_where_it_was(world: World) -> None:
    batches = stage(world, 1)
    commit = world.commit(ALICE, "orders", 0, *batches)
    world.order(commit)
    place = (world.height, 0)
    assert outcomes(world.order(commit)) == [Duplicate(place)]
    assert ends(world) == [1, 0]


def test_a_refused_commit_stays_refused_and_a_new_one_may_succeed(world: World) -> None:
    late = world.staged(ALICE, "orders")
    commit = world.commit(ALICE, "orders", 0, late)
    assert world.order_one(commit).code == NotStaged.code
    place = (world.height, 0)
    world.order(late)
    assert outcomes(world.order(commit)) == [Duplicate(place)]  # nobody can replay it after a repair
    assert ends(world) == [0, 0]
    assert outcomes(world.order(world.commit(ALICE, "orders", 0, late))) == [Done(), Published(0)]


def test_a_staged_batch_that_comes_again_is_a_duplicate_then_over_then_expired(world: World) -> None:
    (batch,) = stage(world, 1)
    place = (world.height, 0)
    assert outcomes(world.order(batch)) == [Duplicate(place)]
    world.order(world.commit(ALICE, "orders", 0, batch))
    receipt = world.order_one(batch)
    assert receipt.code == StageOver.code
    world.wait(1_000)
    assert world.order_one(batch).code == Expired.code
    assert ends(world) == [1, 0]


def test_what_may_not_be_published_may_not_be_staged_or_committed(world: World) -> None:
    world.topic("wards", publish='client == "bob"')
    assert world.order_one(world.staged(ALICE, "wards")).code == PermissionDenied.code
    assert world.order_one(world.staged(ALICE, "nothing")).code == UnknownTopic.code
    assert world.order_one(world.staged(ALICE, "orders", partition=2)).code == UnknownPartition.code
    assert world.order_one(world.staged(actor("eve"), "orders")).code == UnknownClient.code
    assert world.order_one(world.commit(ALICE, "wards", 0)).code == PermissionDenied.code
    batch = world.staged(BOB, "wards")
    assert is_staged(world.order_one(batch))
    world.do(ADMIN, AlterTopic("wards", None, None, 'client == "alice"', None))
    assert world.order_one(world.commit(BOB, "wards", 0, batch)).code == PermissionDenied.code
    world.do(ADMIN, RevokeClient("bob"))
    assert world.order_one(world.staged(BOB, "orders")).code == Revoked.code


def test_refusals_of_staged_batches_leave_nothing_in_the_state(world: World) -> None:
    root = world.root
    world.order(world.staged(actor("eve"), "orders"), world.staged(ALICE, "nothing"))
    assert world.root == root


def test_a_refused_staged_batch_may_be_staged_later(world: World) -> None:
    batch = world.staged(ALICE, "late", topic_id=(world.height + 2, 0))
    assert world.order_one(batch).code == UnknownTopic.code
    world.topic("late")
    assert is_staged(world.order_one(batch))


# -- expiry and leftovers ------------------------------------------------------------------------------------------------


def test_what_is_not_committed_in_time_expires(world: World) -> None:
    last = world.height + 5
    batch = world.staged(ALICE, "orders", not_after=last)
    world.order(batch)
    world.wait(last - world.height)
    assert left(world)
    receipt = world.order_one(world.commit(ALICE, "orders", 0, batch))
    assert receipt.code == NotStaged.code
    assert not left(world)
    assert not staged_bytes(world)


def test_the_last_height_of_a_staged_batch_is_in_time(world: World) -> None:
    last = world.height + 5
    batch = world.staged(ALICE, "orders", not_after=last)
    world.order(batch)
    world.wait(last - world.height - 1)
    assert outcomes(world.order(world.commit(ALICE, "orders", 0, batch))) == [Done(), Published(0)]


def test_expiry_does_not_touch_what_is_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    last = world.height + 4
    batches = [world.staged(ALICE, "orders", tagged(n=i), not_after=last) for i in range(8)]
    world.order(*batches)
    world.order(world.commit(ALICE, "orders", 0, *batches))
    world.wait(7)
    assert ends(world) == [8, 0]
    world.wait(1)
    assert not left(world)


def test_a_commit_drops_what_its_writer_staged_besides(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=15))
    old, leftovers = stage(world, *[1] * 4, number=1), stage(world, *[1] * 3, number=2)
    later, foreign = stage(world, 1, number=3), stage(world, 1, number=1, writer=OTHER)
    world.order(world.commit(ALICE, "orders", 2, leftovers[0]))
    world.wait(1)
    assert 2 < len(world.table(STAGED)) < 8
    world.wait(3)
    assert {digest for (digest,) in world.table(STAGED)} == {later[0].digest, foreign[0].digest}
    assert not world.table(OVER)
    assert world.order_one(world.commit(ALICE, "orders", 1, *old)).code == StageOver.code
    assert outcomes(world.order(world.commit(ALICE, "orders", 3, *later))) == [Done(), Published(1)]


def test_a_block_drops_so_many_bytes_of_what_is_over_and_at_least_one_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers hold for a while what a block deletes, to show how the state was."""
    monkeypatch.setattr(staged, "DROPPED_BYTES", 4 * LEAST)
    last = world.height + 10
    expiring = [world.staged(ALICE, "orders", tagged(n=n), writer=OTHER, not_after=last) for n in range(9)]
    world.order(*expiring)
    chosen, *_ = stage(world, *[1] * 10)
    world.order(world.commit(ALICE, "orders", 0, chosen))
    held = []
    while left(world) and world.height < last + 10:
        world.wait(1)
        held.append(len(world.table(STAGED)))
    drops = [before - after for before, after in pairwise([18, *held])]
    assert sum(drops) == 18
    assert 1 <= max(drops) <= 4
    world.wait(1)
    assert not world.table(OVER)
    assert not staged_bytes(world)
    assert world.record(BEHIND) is None


def test_a_batch_is_dropped_however_large_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "DROPPED_BYTES", 1)
    last = world.height + 5
    world.order(*(world.staged(ALICE, "orders", tagged(n=n), not_after=last) for n in range(3)))
    chosen, _, _ = stage(world, 1, 1, 1, writer=OTHER)
    world.order(world.commit(ALICE, "orders", 0, chosen, writer=OTHER))
    world.wait(last + 10 - world.height)
    assert not left(world)


def test_a_writer_is_remembered_for_a_while_after_its_last_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WRITER_KEPT", 10)
    world.order(world.commit(ALICE, "orders", 0))
    world.wait(8)
    world.order(world.commit(ALICE, "orders", 1))
    world.wait(10)
    assert writer(world) is not None
    world.wait(1)
    assert writer(world) is None
    assert not world.entries(COUNTS.prefix("writers"))
    assert not world.entries(HELD.prefix("writers"))


# -- numbering over several blocks ---------------------------------------------------------------------------------------


def test_a_large_stage_is_numbered_over_several_blocks_in_its_order(world: World) -> None:
    world.machine, world.keeper = mount(world.genesis, data_shard(numbered_bytes=3 * LEAST))
    world.do(BOB, Subscribe("orders", ""))
    first = stage(world, *[1] * 7)
    second = stage(world, 2, 2, writer=OTHER)
    leaves = [
        *world.apply(
            world.commit(ALICE, "orders", 0, *first),
            world.commit(ALICE, "orders", 0, *second, writer=OTHER),
            world.publication(BOB, "orders", tagged(payload=b"between")),
        )
    ]
    record = writer(world)
    assert record is not None
    assert record.pending == 4
    leaves += world.apply(world.publication(BOB, "orders", tagged(payload=b"later")))
    leaves += world.apply()
    leaves += world.apply()
    assert not world.apply()
    published = [leaf for leaf in leaves if isinstance(leaf, BatchReceipt) and first_offset(leaf) is not None]
    staged_names = [batch.digest for batch in (*first, *second)]
    assert [one.digest for one in published if one.digest in staged_names] == staged_names
    ordered = sorted(published, key=lambda one: first_offset(one) or 0)
    assert [one.outcome for one in ordered] == outcomes(published)
    assert ends(world) == [13, 0]
    delivered = [offset for match in matches(leaves) for offset, _ in match.items]
    assert delivered == list(range(13))
    assert not left(world)


def test_a_full_block_numbers_one_batch(world: World) -> None:
    limit = world.genesis.limits.block_bytes
    large = [
        world.publication(BOB, "orders", tagged(payload=bytes(limit // 8 - 300)), partition=1)
        for _ in range(8)
    ]
    batches = stage(world, 1, 1)
    receipts = world.order(*large, world.commit(ALICE, "orders", 0, *batches))
    assert [one.digest for one in receipts[len(large) + 1 :]] == [batches[0].digest]
    assert [one.digest for one in world.order()] == [batches[1].digest]


def test_commits_that_wait_are_numbered_before_later_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 2)
    monkeypatch.setattr(staging, "CHUNK", 2)
    stages = [stage(world, *[1] * 5, number=number) for number in range(2)]
    found = world.order(*(world.commit(ALICE, "orders", number, *one) for number, one in enumerate(stages)))[
        2:
    ]
    for _ in range(4):
        found += world.order()
    assert [one.digest for one in found] == [batch.digest for one in stages for batch in one]
    world.wait(1)
    assert not left(world)


def test_a_revoked_publisher_keeps_what_it_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    batches = stage(world, 1, 1, 1)
    uncommitted = stage(world, 1, number=1)
    world.order(world.commit(ALICE, "orders", 0, *batches))
    world.order(world.control(ADMIN, RevokeClient("alice")))
    world.wait(1)
    assert ends(world) == [3, 0]
    assert world.order_one(world.commit(ALICE, "orders", 1, *uncommitted)).code == Revoked.code


def test_a_deleted_topic_takes_with_it_what_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    batches, old = stage(world, *[1] * 4), world.topic_id("orders")
    world.order(world.commit(ALICE, "orders", 0, *batches))
    world.order(world.control(ADMIN, DeleteTopic("orders")))
    world.wait(1)
    assert outcomes(world.order(world.control(ADMIN, CreateTopic("orders", 2, Policy(), "", "")))) == [Done()]
    world.wait(2)
    assert ends(world) == [1, 0]
    assert not left(world)
    assert not staged_bytes(world)
    assert writer(world) is None
    record = world.record(STAGES, "orders", old, ALICE.key, WRITER)
    assert record is not None
    assert (record.stage, record.pending) == (0, 0)
    assert world.order_one(batches[3]).code == StageOver.code


def test_what_is_staged_and_not_committed_outlives_its_topic(world: World) -> None:
    """As a batch does that was signed for the old topic and is ordered when there is a new one of the name."""
    batch = stage(world, 1)
    place, old = (world.height, 0), world.topic_id("orders")
    world.order(world.control(ADMIN, DeleteTopic("orders")))
    assert world.order_one(world.commit(ALICE, "orders", 0, *batch)).code == UnknownTopic.code
    world.topic("orders", partitions=1)
    assert outcomes(world.order(*batch)) == [Duplicate(place)]
    commit = world.commit(ALICE, "orders", 0, *batch, topic_id=old)
    assert world.order_one(commit).code == TopicReplaced.code
    assert world.order_one(world.commit(ALICE, "orders", 0, *batch)).code == NotStaged.code
    assert writer(world) is None
    assert ends(world) == [0, 0]


# -- limits --------------------------------------------------------------------------------------------------------------


def test_staging_what_fits_does_not_search_the_store(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a replica catches up, each search looks at all that it has written and not handed on yet."""
    scanned: list[bytes] = []
    scan = world.store.scan

    def counted(prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        scanned.append(prefix)
        return scan(prefix)

    monkeypatch.setattr(world.store, "scan", counted)
    found: list[int] = []
    for count in (1, 8):
        scanned.clear()
        batches = [world.staged(ALICE, "orders", tagged(number=at), stage=count) for at in range(count)]
        assert all(map(is_staged, world.order(*batches)))
        found.append(len(scanned))
    assert found[0] == found[1]


def test_a_client_may_stage_only_so_much(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "MAX_STAGED_PER_CLIENT", 3 * LEAST)
    last = world.height + 7
    batches = [world.staged(ALICE, "orders", tagged(n=i), not_after=last) for i in range(3)]
    world.order(*batches)
    more = world.staged(ALICE, "orders", tagged(n=4))
    receipt = world.order_one(more)
    assert receipt.code == LimitExceeded.code
    assert f"at height {last}" in refused(receipt).detail
    assert "maxOffsetsPerTrigger" in refused(receipt).detail
    assert is_staged(world.order_one(world.staged(BOB, "orders")))
    world.order(world.commit(ALICE, "orders", 0, *batches))
    assert is_staged(world.order_one(world.staged(ALICE, "orders", tagged(n=5), stage=1)))


def test_an_organisation_and_the_network_may_hold_only_so_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "MAX_STAGED", 8 * LEAST)
    for n in range(2):
        assert is_staged(world.order_one(world.staged(ALICE, "orders", tagged(n=n))))
    receipt = world.order_one(world.staged(BOB, "orders"))
    assert receipt.code == LimitExceeded.code
    assert "hospital-a may hold" in refused(receipt).detail
    carol = world.client("carol", "insurer")
    assert is_staged(world.order_one(world.staged(carol, "orders")))


def test_a_client_may_have_only_so_many_writers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_WRITERS_PER_CLIENT", 2)
    for n in range(2):
        assert world.do(ALICE, CommitStage("orders", bytes([n]) * 16, 0, ())).code == OK
    receipt = world.do(ALICE, CommitStage("orders", WRITER, 0, ()))
    assert receipt.code == LimitExceeded.code
    assert world.do(ALICE, CommitStage("orders", bytes(16), 1, ())).code == OK
    assert world.do(BOB, CommitStage("orders", WRITER, 0, ())).code == OK


# -- what matching may cost ----------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Asking one constraint costs 3 for each message. Numbering a batch of one part takes 6 besides."""
    monkeypatch.setattr(matching, "HEAD", 0)
    monkeypatch.setattr(matching, "LEAST", 3)
    monkeypatch.setattr(budget, "COMPARISONS", 1)
    monkeypatch.setattr(budget, "MAX_COMPARED", 30)
    world.do(BOB, Subscribe("orders", "c != 1"))
    return world


def test_a_batch_that_costs_too_much_is_not_staged(narrow: World) -> None:
    receipt = narrow.order_one(narrow.staged(ALICE, "orders", *[tagged(n=i) for i in range(11)]))
    assert receipt.code == LimitExceeded.code
    assert "split the batch" in refused(receipt).detail
    assert not left(narrow)


@pytest.mark.parametrize(("constraint", "accepted"), [("n != 1", False), ("z = 1", True)])
def test_what_was_asked_since_staging_counts_at_the_commit_if_it_is_asked_indeed(
    narrow: World, constraint: str, accepted: bool
) -> None:
    batches = stage(narrow, 10)
    narrow.do(BOB, Subscribe("orders", constraint))
    receipts = narrow.order(narrow.commit(ALICE, "orders", 0, *batches))
    assert receipts[0].code == (OK if accepted else LimitExceeded.code)
    assert len(receipts) == 1 + accepted


def test_whoever_would_make_committed_batches_too_costly_waits_until_they_are_numbered(
    narrow: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbering, "MAX_NUMBERED", 1)
    monkeypatch.setattr(budget, "MAX_COMPARED", 45)
    batches = stage(narrow, 5, 5, 5)
    narrow.order(narrow.commit(ALICE, "orders", 0, *batches))
    small = narrow.control(BOB, Subscribe("orders", "z = 1"))
    large = narrow.control(ALICE, Subscribe("orders", "n != 1 or n != 2"))
    known = narrow.control(BOB, Subscribe("orders", "c != 1"), session=OTHER)
    before = narrow.height
    codes = [receipt.code for receipt in narrow.order(small, large, known)]
    assert codes == [OK, Busy.code, OK, OK]  # the last one is a numbered batch
    assert large.digest not in narrow.outcomes[-1].settled
    assert narrow.order(large)[0].code == Busy.code
    assert narrow.order(large)[0].code == OK
    assert narrow.height == before + 3
    assert ends(narrow) == [15, 0]
    assert not left(narrow)


def test_matching_that_does_not_fit_in_a_block_goes_on_in_the_next(
    narrow: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = stage(narrow, 8, 8, 8, 4)  # 24, 24, 24 and 12 comparisons
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(55, 2))
    receipts = narrow.order(narrow.commit(ALICE, "orders", 0, *batches))
    assert outcomes(receipts) == [Done(), Published(0), Published(8)]  # one takes more than there is
    assert outcomes(narrow.order()) == [Published(16), Published(24)]


def test_a_block_whose_own_batches_use_the_budget_up_numbers_some_all_the_same(
    narrow: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(100, 20))
    batches = stage(narrow, 8, 8, 8)
    own = [
        narrow.publication(BOB, "orders", *[tagged(n=i)] * 5, partition=1, session=bytes([i]) * 16)
        for i in range(3)
    ]
    receipts = narrow.order(*own, narrow.commit(ALICE, "orders", 0, *batches))
    assert [receipt.code for receipt in receipts] == [OK] * 6
    assert [receipt.digest for receipt in receipts[4:]] == [batch.digest for batch in batches[:2]]
