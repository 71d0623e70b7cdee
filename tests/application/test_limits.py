"""No client and no organisation fills the state for the others: every table has a bound, and shares are equal.

What is remembered of batches cannot go before its last height, or a batch could apply twice (P3); so it has to be limited
where it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.histories import History
from tests.application.world import ADMIN, Actor, Signed, World, actor, registration, tagged

from parley.application import sequences
from parley.application.quotas import COUNTS, HELD
from parley.application.sequences import CHUNK, CHUNKS, ENTRY, SEQUENCES, SESSIONS
from parley.application.strangers import REMEMBERED, STRANGERS
from parley.application.tables import AnyTable
from parley.application.work import Budget
from parley.applications import DATA_SHARD
from parley.model.batches import MAX_NOT_AFTER
from parley.model.genesis import MAX_BROKERS, Genesis
from parley.model.names import MAX_PARTITIONS
from parley.model.receipts import BatchReceipt, Rejected
from parley.model.refusals import DUPLICATE, OK, Busy, Expired, OutOfSequence, Revoked
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import CLIENTS
from parley.modules.staging.staged import charge
from parley.modules.staging.tables import COMMITTED, PENDING_BATCHES, STAGED, STAGES
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.modules.topics.tables import TOPICS

ALICE, BEN, FAR = actor("alice"), actor("ben"), actor("far", "hospital-b")
EVERYBODY = (ALICE, BEN, FAR, actor("ina", "insurer"), actor("lea", "laboratory"))


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=MAX_PARTITIONS)
    for who in EVERYBODY:
        world.client(who.name, who.organisation)
    world.wait(
        1_100 + sequences.AGAIN
    )  # until what was written so far has expired: nothing is counted any more
    assert not world.table(SEQUENCES)
    return world


def session(number: int) -> bytes:
    return number.to_bytes(16, "big")


def begin(world: World, author: Actor, count: int, first: int = 1, valid: int = 1_000) -> list[Signed]:
    """The first batches of so many sessions."""
    last = world.height + valid
    return [
        world.publication(author, "orders", session=session(number), not_after=last)
        for number in range(first, first + count)
    ]


def refusal(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    assert receipt.code == Busy.code
    return receipt.rejected


def reasons(receipts: list[BatchReceipt]) -> Counter[str]:
    return Counter(OK if receipt.rejected is None else receipt.rejected.reason for receipt in receipts)


# -- sequences ---------------------------------------------------------------------------------------------------------


def test_64_short_runs_of_a_program_on_a_topic_of_64_partitions_lock_no_key_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is a session that publishes once to every partition, and all of them are remembered for hours."""
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(1_024))
    last = world.height + MAX_NOT_AFTER
    for run in range(1, 66):
        made = [
            world.publication(ALICE, "orders", partition=partition, session=session(run), not_after=last)
            for partition in range(MAX_PARTITIONS)
        ]
        assert {receipt.code for receipt in world.order(*made)} == {OK}, f"run {run}"
    assert world.record(HELD, "sessions", ALICE.key) == 65


def test_in_the_largest_network_64_such_runs_still_fit_into_what_one_key_may_have() -> None:
    share = sequences.MAX_SEQUENCES // MAX_BROKERS
    assert share // 2 >= 64 * MAX_PARTITIONS


def test_a_key_begins_a_limited_number_of_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MAX_SESSIONS", 3)
    assert reasons(world.order(*begin(world, ALICE, 3, valid=4))) == {OK: 3}
    before = world.entries()
    late = world.publication(ALICE, "orders", session=session(4))
    receipt = world.order_one(late)
    assert (refusal(receipt).reason, refusal(receipt).next_sequence) == ("sessions", 0)
    assert "the 3 sessions that it may have" in refusal(receipt).detail
    assert "keep one client open instead of starting many" in refusal(receipt).detail
    assert world.entries() == before
    assert not world.outcomes[-1].settled
    # Sessions go on, also in other partitions; other keys are not concerned; and room comes with time.
    assert world.order_one(world.publication(ALICE, "orders", session=session(1))).code == OK
    assert world.order_one(world.publication(ALICE, "orders", partition=1, session=session(1))).code == OK
    assert world.publish(BEN, "orders").code == OK
    world.wait(2)
    assert world.order_one(late).code == OK
    assert world.rebuilt_root() == world.root


def test_one_organisations_sequences_do_not_lock_out_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 16)  # a share of 4
    for who in (ALICE, BEN, ADMIN):
        world.order(*begin(world, who, 6))
    begun = world.record(COUNTS, "sequences", "hospital-a")
    assert begun == 4
    (receipt,) = world.order(*begin(world, BEN, 1, first=50))
    assert refusal(receipt).reason == "sequences_of_organisation"
    assert "the keys of hospital-a have the 4 sequences" in refusal(receipt).detail
    assert reasons(world.order(*begin(world, FAR, 2))) == {OK: 2}


def test_one_clients_sequences_lock_out_neither_its_colleagues_nor_its_administrator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody could revoke it: also an administrator's command begins a session."""
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 40)  # a share of 10
    found = reasons(world.order(*begin(world, ALICE, 20, valid=MAX_NOT_AFTER)))
    assert found == {OK: 5, "sequences_of_key": 15}
    assert reasons(world.order(*begin(world, BEN, 4))) == {OK: 3, "sequences_of_key": 1}
    revoked = world.order_one(world.control(ADMIN, RevokeClient("alice"), session=session(99)))
    assert revoked.code == OK
    assert {receipt.code for receipt in world.order(*begin(world, ALICE, 1, first=90))} == {Revoked.code}


def test_many_clients_together_do_not_lock_out_their_administrator(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, last = [actor(f"c{i}") for i in range(8)], world.height + 10
    for who in crowd:
        made = world.control(ADMIN, registration(world.chain, who), session=session(7), not_after=last)
        assert world.order_one(made).code == OK
    world.wait(3)
    # A share of 64, of which 4 are for administrators.
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 4 * 64)
    found = sum((reasons(world.order(*begin(world, who, 40))) for who in crowd), Counter[str]())
    assert found == {OK: 60, "sequences_of_key": 8 * 40 - 60}
    for number, who in enumerate(crowd[:2], 70):
        made = world.control(ADMIN, RevokeClient(who.name), session=session(number))
        assert world.order_one(made).code == OK


def test_the_refusal_of_a_key_with_too_many_sequences_says_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 40)
    *_, last = world.order(*begin(world, ALICE, 6))
    detail = refusal(last).detail
    assert "the key has 5 sequences" in detail
    assert "5 more are free for the keys of hospital-a" in detail
    assert "keep one client open" in detail
    assert f"This may yet be applied, up to height {world.height - 1 + 1_000}" in detail


def test_the_network_has_a_limit_for_all(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are rounded up, so that together they may be more than there is."""
    monkeypatch.setattr(sequences, "MAX_SEQUENCES", 5)  # a share of 2
    receipts = [world.order(*begin(world, who, 1)) for who in EVERYBODY]
    assert sum(map(reasons, receipts), Counter()) == {OK: 5}
    (receipt,) = world.order(*begin(world, FAR, 1, first=2))
    assert refusal(receipt).reason == "sequences_of_network"
    assert world.record(COUNTS, "sequences", "") == 5


def test_a_session_is_counted_until_its_last_sequence_has_expired(world: World) -> None:
    world.order(
        world.publication(ALICE, "orders", not_after=world.height + 2),
        world.publication(ALICE, "orders", partition=1, not_after=world.height + 4),
    )
    assert (world.record(HELD, "sessions", ALICE.key), len(world.table(SESSIONS))) == (1, 1)
    world.wait(2)
    assert world.record(HELD, "sequences", ALICE.key) == 1
    assert world.record(HELD, "sessions", ALICE.key) == 1
    world.wait(2)
    assert world.record(HELD, "sessions", ALICE.key) is None
    assert not world.table(SESSIONS)
    assert world.record(COUNTS, "sequences", "") is None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_no_batch_is_replayed_when_its_sequence_is_gone(seed: int) -> None:
    """A sequence outlives the longest `not_after` of its batches: when it begins at 0 again, they have expired (P3)."""
    random, world = Random(seed), World()
    world.topic("orders")
    world.client("alice")
    sent: list[Signed] = []
    for _ in range(12):
        batch = world.publication(
            ALICE,
            "orders",
            tagged(n=random.randrange(3)),
            sequence=None if random.random() < 0.7 else random.randrange(3),
            not_after=world.height + random.choice((1, 2, 5, 15, 30)),
        )
        sent.append(batch)
        decided = {receipt.digest for receipt in world.order(batch) if receipt.rejected is None}
        again = {receipt.digest: receipt for receipt in world.order(*sent)}
        # What was applied is a duplicate or has expired, in every block.
        assert not any(
            receipt.rejected is None and receipt.outcome_name == "published"
            for digest, receipt in again.items()
            if digest in decided
        )
    while any(record.publisher == ALICE.key for record in world.table(SEQUENCES).values()):
        world.wait(1)
    receipts = world.order(*sent)
    taken = [receipt for receipt in receipts if receipt.code not in {Expired.code, OutOfSequence.code}]
    assert not taken


# -- digests of applied batches -----------------------------------------------------------------------------------------


def test_one_clients_batches_lock_out_neither_colleagues_nor_other_organisations(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_CHUNKS", 16)  # a share of 4
    early = world.height + 20  # of the first chunk, and of the batch that seals it
    sent = [
        world.publication(
            ALICE, "orders", sequence=number, not_after=early if number <= CHUNK else early + 500
        )
        for number in range(4 * CHUNK)
    ]
    assert reasons(world.order(*sent[: 3 * CHUNK])) == {OK: 3 * CHUNK}
    receipt = world.order_one(sent[3 * CHUNK])
    assert refusal(receipt).reason == "chunks_of_key"
    assert f"2 times {CHUNK} batches of the key" in refusal(receipt).detail
    assert len(world.table(CHUNKS)) == 2
    before = world.entries()
    assert world.order_one(sent[3 * CHUNK]).code == Busy.code
    assert world.entries() == before  # nothing is decided
    for who in (BEN, FAR):
        made = [world.publication(who, "orders") for _ in range(CHUNK + 1)]
        assert reasons(world.order(*made)) == {OK: CHUNK + 1}
    # All that alice published is still known, and it goes on when the first of it has expired.
    assert world.order_one(sent[0]).code == DUPLICATE
    world.wait(early - world.height)
    assert reasons(world.order(*sent[3 * CHUNK :])) == {OK: CHUNK}
    assert world.record(HELD, "chunks", ALICE.key) == 2


def test_an_organisations_share_of_remembered_batches_is_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "MAX_CHUNKS", 4)  # a share of 1
    found: Counter[str] = Counter()
    for who in (ALICE, BEN):
        found += reasons(world.order(*(world.publication(who, "orders") for _ in range(CHUNK + 1))))
    assert found["chunks_of_organisation"] == 1
    assert found[OK] == 2 * CHUNK + 1


def test_a_publisher_at_full_speed_is_not_locked_out() -> None:
    """Blocks of 1 024 batches that are all one client's, signed for some hundred heights."""
    for organisations, heights in ((4, 2_000), (16, 500), (MAX_BROKERS, 250)):
        share = sequences.MAX_CHUNKS // organisations
        assert share // 2 * CHUNK >= 1_024 * heights


def test_what_is_remembered_of_batches_stays_below_two_gigabytes() -> None:
    entry = ENTRY.size * CHUNK + 300  # with its keys, and what lists and counts it
    assert (sequences.MAX_SEQUENCES + sequences.MAX_CHUNKS) * entry < 2 * 1024**3


# -- counters are what the state holds --------------------------------------------------------------------------------


class Short(History):
    """A history whose batches expire soon, so that sequences end and begin again."""

    def _not_after(self) -> int:
        return self.world.height + self.random.choice((1, 3, 6, 10, 30))


def counts(world: World) -> Iterator[tuple[str, str, bytes, int]]:
    """Everything that is counted: kind, organisation, key if keys are counted, and how much."""
    clients, lines = world.table(CLIENTS), world.table(SEQUENCES)
    for client in clients.values():
        yield "clients", client.organisation, b"", 1
    for topic in world.table(TOPICS).values():
        yield "topics", topic.organisation, b"", 1
    for line in lines.values():
        yield "sequences", line.organisation, line.publisher, 1
    for of, _ in world.table(CHUNKS):
        line = lines[of,]
        yield "chunks", line.organisation, line.publisher, 1
    for *_, publisher, _ in world.table(STAGES):
        yield "writers", clients[publisher,].organisation, publisher, 1
    for staged in world.table(STAGED).values():
        much = charge(staged.size, staged.count)
        yield "staged", clients[staged.publisher,].organisation, staged.publisher, much


def require_counted(world: World) -> None:
    organisations: Counter[tuple[str, str]] = Counter()
    keys: Counter[tuple[str, bytes]] = Counter()
    for kind, organisation, key, much in counts(world):
        organisations[kind, organisation] += much
        organisations[kind, ""] += much
        if key:
            keys[kind, key] += much
    lines = world.table(SEQUENCES).values()
    of_sessions = Counter((line.publisher, line.session) for line in lines)
    keys.update(("sessions", publisher) for publisher, _ in of_sessions)
    keys.update(("subscriptions", key[2]) for key in world.table(SUBSCRIPTIONS))
    assert world.table(COUNTS) == organisations
    assert world.table(HELD) == keys
    assert world.table(SESSIONS) == of_sessions
    assert (world.record(REMEMBERED) or 0) == len(world.table(STRANGERS))
    waiting = sum(len(one.digests) for one in world.table(COMMITTED).values())
    assert (world.record(PENDING_BATCHES) or 0) == waiting


class Held:
    """How many entries the tables have."""

    def __init__(self, world: World) -> None:
        self.genesis: Genesis = world.genesis
        self._world = world

    def of(self, table: AnyTable) -> int:
        return len(self._world.table(table))

    def expiring(self) -> Collection[AnyTable]:
        return [table for table in DATA_SHARD.tables.values() if table.expires]


def require_bounded(world: World) -> None:
    held = Held(world)
    for table in DATA_SHARD.tables.values():
        assert table.bound is not None
        if table.bound.most is not None:
            assert held.of(table) <= table.bound.most(held), table
        if table.bound.quota is not None:
            counted = world.record(COUNTS, table.bound.quota.what, "") or 0
            assert held.of(table) * table.bound.each <= counted


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_counters_are_what_the_state_holds_and_bounds_hold_after_every_block(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "FULL", 2 * ENTRY.size)  # chunks of two batches
        patch.setattr(sequences, "MAX_SEQUENCES", 48)
        patch.setattr(sequences, "MAX_CHUNKS", 12)
        patch.setattr(sequences, "MAX_SESSIONS", 2)
        history = Short(seed)
        for batches, time in history.blocks(30):
            history.world.apply(*batches, time=time)
            require_counted(history.world)
            require_bounded(history.world)
        history.world.wait(40 + sequences.AGAIN)
        require_counted(history.world)
        assert not history.world.table(SEQUENCES)
        assert not history.world.table(SESSIONS)
        assert not history.world.table(CHUNKS)
