"""No operation makes a block long, and nobody's operations make others wait: attacks on the work of a block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.application.world import ADMIN, ADMINS, Actor, Signed, World, actor, closings, mount, tagged

from parley.application import expiry
from parley.application.state import State
from parley.application.work import BATCH, NEW_SEQUENCE, Budget, NoRoom, Pass, Shares, of_expression
from parley.applications import DATA_SHARD
from parley.ledger import layout
from parley.model.receipts import BatchReceipt
from parley.model.refusals import OK, Busy, Revoked
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import LEAVING
from parley.modules.retention import rules as retention
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.subscriptions.tables import CONSTRAINTS, ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import UnknownPartition
from parley.modules.topics.tables import ENDING, GROWING, HEADS, TOPICS

A, B, C, _ = ADMINS
BUDGET = Budget()
ALICE, BOB = actor("alice"), actor("bob", B)
# Of the state, with what each operation and each sequence touches besides; twice what is counted, at the most.
MOST = 2 * (BUDGET.batches + BUDGET.housekeeping)


@pytest.fixture
def world() -> World:
    world = World()
    world.client("alice")
    world.client("bob", B)
    world.topic("quiet", organisation=B)
    return world


def touched(world: World, height: int) -> int:
    return sum(key.startswith(layout.ENTRIES) for key, _ in world.outcomes[height - 1].writes)


def subscribe(world: World, who: Actor, topic: str, count: int, step: int = 20) -> None:
    for first in range(0, count, step):
        texts = [f"a = {number}" for number in range(first, min(first + step, count))]
        receipts = world.order(*(world.control(who, Subscribe(topic, text)) for text in texts))
        assert {receipt.code for receipt in receipts} == {OK}


def until_ordered(world: World, batches: list[Signed]) -> Iterator[list[BatchReceipt]]:
    """Blocks with these batches, as a pool orders them: what is put off comes again, before all others."""
    while batches:
        receipts = world.order(*batches)
        yield receipts
        settled = {receipt.digest for receipt in receipts if receipt.code != Busy.code}
        batches = [batch for batch in batches if batch.digest not in settled]


# -- topics that grow ------------------------------------------------------------------------------------------------


def test_altering_a_topic_with_many_constraints_takes_many_short_blocks(world: World) -> None:
    world.topic("wide")
    subscribe(world, ALICE, "wide", 200)
    assert world.do(ADMIN, AlterTopic("wide", 64, None, None, None)).code == OK
    first = world.height
    while world.table(GROWING):
        early = world.publish(BOB, "wide", partition=1)
        # It has one partition, and then all of them.
        assert early.code == (UnknownPartition.code if world.table(GROWING) else OK)
        assert world.publish(BOB, "quiet").code == OK
    assert world.record(TOPICS, "wide").partitions == 64  # type: ignore[union-attr]
    assert len(world.table(ORDER_HEADS)) == 200 * 64
    assert world.height - first > 10
    assert max(touched(world, height) for height in range(first, world.height + 1)) <= MOST
    assert world.publish(BOB, "wide", tagged(a=7), partition=63).code == OK
    assert world.rebuilt_root() == world.root


def test_what_changes_while_a_topic_grows_changes_in_all_its_partitions(world: World) -> None:
    world.topic("wide")
    subscribe(world, ALICE, "wide", 60)
    world.do(ADMIN, AlterTopic("wide", 64, None, None, None))
    assert world.do(ADMIN, AlterTopic("wide", None, 7, None, None)).code == Busy.code
    receipt = world.do(BOB, Subscribe("wide", "b = 1"))
    begun = receipt.given(Subscribed)
    assert begun is not None
    assert [start.partition for start in begun.partitions] == [0]  # everybody sees the old count
    assert (("wide", 64, begun.constraint)) in world.table(CONSTRAINTS)
    open_everywhere = next(
        key for key in world.table(CONSTRAINTS) if key[1] == 64 and key[2] != begun.constraint
    )
    text = world.table(CONSTRAINTS)[open_everywhere].constraint
    closed = closings(world.apply(world.control(ALICE, Unsubscribe("wide", text))))
    assert [leaf.partition for leaf in closed] == list(range(64))
    while world.table(GROWING):
        world.wait(1)
    assert {key[1] for key in world.table(CONSTRAINTS)} == {64}
    again = world.do(BOB, Subscribe("wide", "b = 1")).given(Subscribed)
    assert again is not None
    assert len(again.partitions) == 64
    assert {start.incarnation for start in again.partitions} == {begun.partitions[0].incarnation}


def test_a_topic_that_is_deleted_while_it_grows_is_cleared_away(world: World) -> None:
    world.topic("wide")
    subscribe(world, ALICE, "wide", 60)
    world.do(ADMIN, AlterTopic("wide", 64, None, None, None))
    world.do(ADMIN, DeleteTopic("wide"))
    opened = len(world.table(ORDER_HEADS))
    assert 60 < opened < 60 * 64
    ended = 0
    while world.table(SUBSCRIPTIONS):
        ended += len(closings(world.apply()))
    assert ended == opened
    assert not world.table(GROWING)
    assert not world.table(CONSTRAINTS)
    assert not [key for key in world.table(HEADS) if key == ("wide", 1)]


def test_a_broker_that_starts_again_while_a_topic_grows_goes_on_alike(world: World) -> None:
    world.topic("wide")
    subscribe(world, ALICE, "wide", 60)
    world.do(ADMIN, AlterTopic("wide", 64, None, None, None))
    while world.table(GROWING):
        other = mount(world.genesis)[0].apply(world.next_block([]), [], world.store)
        world.wait(1)
        assert other.state_root == world.root


def test_jobs_and_expiries_are_looked_for_only_where_there_may_be_some(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.topic("wide")
    subscribe(world, ALICE, "wide", 60)
    known = world.machine._first_keys.known
    assert known[GROWING] is None
    world.do(ADMIN, AlterTopic("wide", 64, None, None, None))
    assert known[GROWING] == GROWING.key(A, "wide")
    while world.table(GROWING):
        world.apply()
    assert GROWING not in known  # until the next block looks
    world.apply()
    monkeypatch.setattr(State, "stored_keys", lambda *_: pytest.fail("a look"))
    world.apply()


def test_leases_that_end_while_a_deleted_topic_is_cleared_away_leave_no_order_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an order that was left behind was matched in a partition that it did not have, and all brokers stopped."""
    monkeypatch.setattr(DATA_SHARD, "budget", Budget(housekeeping=64))
    world.topic("gone")
    clients = sorted((world.client(f"c{number}") for number in range(24)), key=lambda client: client.key)
    for client in clients:
        assert world.do(client, Subscribe("gone", "")).code == OK
    ends = world.time + world.genesis.timeouts.lease
    world.apply(time=world.time + 1_000)
    for client in clients[12:]:
        assert world.do(client, Subscribe("gone", "")).code == OK
    world.do(ADMIN, DeleteTopic("gone"))
    world.apply(time=ends + 1)
    while world.do(ADMIN, CreateTopic("gone", 2, Policy(), "", "")).code != OK:
        assert world.table(ENDING)
    assert not world.table(CONSTRAINTS)
    assert not world.table(SUBSCRIPTIONS)
    assert world.publish(BOB, "gone", partition=1).code == OK


# -- clients that are revoked ----------------------------------------------------------------------------------------


def test_revoking_clients_with_many_subscriptions_takes_many_short_blocks(world: World) -> None:
    world.topic("wide", partitions=64)
    clients = [world.client(f"c{number}") for number in range(3)]
    for number, client in enumerate(clients):
        for text in range(40):
            assert world.do(client, Subscribe("wide", f"a = {number * 40 + text}")).code == OK
    first = world.height + 1
    receipts = world.order(*(world.control(ADMIN, RevokeClient(f"c{number}")) for number in range(3)))
    assert {receipt.code for receipt in receipts} == {OK}
    assert world.do(clients[0], Subscribe("wide", "b = 1")).code == Revoked.code  # at once
    # Until its turn an order goes on, and others may join it.
    joined = world.do(BOB, Subscribe("wide", "a = 119")).given(Subscribed)
    assert joined is not None
    while world.table(LEAVING):
        assert world.publish(BOB, "quiet").code == OK
    assert list(world.table(SUBSCRIPTIONS)) == [("wide", joined.constraint, BOB.key)]
    ended = [closings(world.leaves(height)) for height in range(first, world.height + 1)]
    assert sum(map(len, ended)) == 119 * 64
    assert max(map(len, ended)) <= BUDGET.housekeeping + 64
    for leaves in ended:  # all of a subscription's orders end in one block
        assert len(leaves) == 64 * len({leaf.constraint for leaf in leaves})
    assert max(sum(map(len, one.leaves)) for one in world.outcomes) < 1024 * 1024


def test_one_organisations_jobs_leave_room_for_anothers(world: World) -> None:
    world.topic("wide", partitions=64)
    for number in range(100):
        world.do(ALICE, Subscribe("wide", f"a = {number}"))
    world.do(BOB, Subscribe("wide", "b = 1"))
    world.order(world.control(ADMIN, RevokeClient("alice")), world.control(ADMINS[B], RevokeClient("bob")))
    world.wait(2)
    assert world.table(LEAVING).keys() == {(A, ALICE.key)}


# -- operations that touch much --------------------------------------------------------------------------------------


def test_subscribing_and_leaving_in_a_loop_does_not_hold_up_a_bystander(world: World) -> None:
    world.topic("wide", partitions=64)
    churn = [
        world.control(ALICE, kind("wide", f"a = {number}"))
        for number in range(60)
        for kind in (Subscribe, Unsubscribe)
    ]
    quiet = [world.publication(BOB, "quiet", session=bytes([number]) * 16) for number in range(10)]
    first = world.height + 1
    (at_once, *later) = until_ordered(world, [*churn, *quiet])
    codes = {receipt.digest: receipt.code for receipt in at_once}
    assert {codes[batch.digest] for batch in quiet} == {OK}
    assert Busy.code in codes.values()
    assert {receipt.code for receipts in later for receipt in receipts} == {OK, Busy.code}
    assert max(touched(world, height) for height in range(first, world.height + 1)) <= MOST
    assert not world.table(SUBSCRIPTIONS)


def test_many_new_sessions_do_not_fill_a_block(world: World) -> None:
    batches = [world.publication(ALICE, "quiet", session=number.to_bytes(16, "big")) for number in range(900)]
    (first, *_) = until_ordered(world, batches)
    assert 0 < sum(receipt.code == OK for receipt in first) <= BUDGET.batches // (BATCH + NEW_SEQUENCE)


def test_rules_that_no_replica_remembers_do_not_make_a_block_long(world: World) -> None:
    rule = " or ".join(f'a{number} == "{number}"' for number in range(25))
    world.topic("ruled", publish=f'{rule} or org == "{B}"')
    batches = [world.publication(BOB, "ruled", session=number.to_bytes(16, "big")) for number in range(200)]
    (first, *_) = until_ordered(world, batches)
    assert 0 < sum(receipt.code == OK for receipt in first) < BUDGET.batches // of_expression(rule)


def test_programs_that_all_start_again_at_once_are_served_in_a_few_blocks(world: World) -> None:
    world.topic("news")
    clients = [world.client(f"c{number}") for number in range(400)]
    batches = [
        world.control(client, Subscribe("news", f"a = {number}")) for number, client in enumerate(clients)
    ]
    served = [sum(receipt.code == OK for receipt in receipts) for receipts in until_ordered(world, batches)]
    assert sum(served) == 400
    assert len(served) <= 16


def test_expiries_do_not_hold_up_jobs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MAX_SWEPT", BUDGET.housekeeping)
    monkeypatch.setattr(retention, "MAX_MOVED", BUDGET.housekeeping)
    world.topic("short", partitions=64, retention=1)
    world.topic("wide", partitions=64)
    world.do(ALICE, Subscribe("wide", "a = 1"))
    sessions = [number.to_bytes(16, "big") for number in range(300)]
    world.do(ADMIN, RevokeClient("alice"))
    for number in range(3):
        world.order(
            *(
                world.publication(
                    BOB, "short", session=session, partition=at % 64, not_after=world.height + 2
                )
                for at, session in enumerate(sessions[100 * number : 100 * number + 100])
            )
        )
    assert not world.table(LEAVING)


# -- shares ----------------------------------------------------------------------------------------------------------


def crowd(world: World, organisation: str, count: int) -> list[Actor]:
    return [world.client(f"{organisation}-{number}", organisation) for number in range(count)]


def costly(world: World) -> str:
    """A topic on which a message with a = 1 takes much."""
    world.topic("costly", organisation=C)
    who = world.client("reader", C)
    for first in range(0, 36, 12):
        world.order(
            *(
                world.control(who, Subscribe("costly", f"a = 1 and b != {number}"))
                for number in range(first, first + 12)
            )
        )
    return "costly"


def test_a_cheap_publisher_gets_through_beside_a_costly_one(world: World) -> None:
    topic = costly(world)
    dear = [world.publication(ALICE, topic, *[tagged(a=1)] * 40, session=bytes([n]) * 16) for n in range(20)]
    cheap = [world.publication(BOB, topic, tagged(a=2), session=bytes([n]) * 16) for n in range(20)]
    (first, *_) = until_ordered(world, [*dear, *cheap])
    codes = {receipt.digest: receipt.code for receipt in first}
    assert {codes[batch.digest] for batch in cheap} == {OK}
    assert sum(codes[batch.digest] == OK for batch in dear) < 10


def test_two_clients_of_one_organisation_share_what_it_has(world: World) -> None:
    topic = costly(world)
    carol = world.client("carol")
    many = [world.publication(ALICE, topic, *[tagged(a=1)] * 20, session=bytes([n]) * 16) for n in range(20)]
    one = world.publication(carol, topic, *[tagged(a=1)] * 20)
    receipts = world.order(*many, one)
    codes = {receipt.digest: receipt.code for receipt in receipts}
    assert codes[one.digest] == OK
    assert Busy.code in codes.values()


def test_once_a_batch_of_a_session_is_put_off_so_are_its_later_ones(world: World) -> None:
    topic = costly(world)
    fill = [world.publication(BOB, topic, *[tagged(a=1)] * 20, session=bytes([n]) * 16) for n in range(20)]
    mine = [world.publication(ALICE, topic, *[tagged(a=tag)] * 20) for tag in (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)]
    receipts = {receipt.digest: receipt for receipt in world.order(*fill, *mine)}
    codes = [receipts[batch.digest].code for batch in mine]
    done = codes.index(Busy.code)
    assert done > 0
    assert codes == [OK] * done + [Busy.code] * (len(mine) - done)


def test_whoever_has_no_share_left_gets_what_others_leave(world: World) -> None:
    topic = costly(world)
    batches = [
        world.publication(ALICE, topic, *[tagged(a=1)] * 40, session=bytes([n]) * 16) for n in range(2)
    ]
    assert {receipt.code for receipt in world.order(*batches, world.publication(BOB, "quiet"))} == {OK}


def test_batches_have_half_of_a_block_whatever_is_done_besides() -> None:
    budget = Budget(batches=100, housekeeping=20)
    assert [budget.left(20), budget.left(0), budget.left(-20), budget.left(-200)] == [100, 80, 60, 50]


def test_shares_are_by_organisation_then_by_client_then_of_what_is_left() -> None:
    senders = [(A, b"1"), (A, b"2"), (B, b"3")]
    shares = Shares(40, senders, [B])

    def spend(sender: tuple[str, bytes], amount: int, number: Pass) -> bool:
        try:
            shares.turn(sender, number)
            shares.spend(amount)
        except NoRoom:
            return False
        return True

    assert not spend(senders[0], 11, Pass.CLIENT)
    assert spend(senders[0], 8, Pass.CLIENT)
    assert not spend(senders[0], 9, Pass.CLIENT)
    assert spend(senders[0], 8, Pass.ORGANISATION)
    assert not spend(senders[1], 1, Pass.ORGANISATION)  # its organisation has used its share
    assert spend(senders[2], 18, Pass.CLIENT)
    assert not spend(senders[2], 1, Pass.REST)
    assert shares.left == 40 - 8 - 8 - 18 - 3 * BATCH
    assert shares.exceeding is None


def test_one_batch_takes_more_than_its_senders_share_after_all_others_had_theirs() -> None:
    senders = [(A, b"1"), (A, b"2"), (B, b"3")]
    shares = Shares(40, senders, [A])

    def spend(sender: tuple[str, bytes], amount: int, number: Pass) -> bool:
        try:
            shares.turn(sender, number, amount)
            for _ in range(amount):
                shares.spend(1)
        except NoRoom:
            return False
        return True

    assert not spend(senders[0], 60, Pass.CLIENT)
    assert not spend(senders[0], 60, Pass.ORGANISATION)
    assert not spend(senders[2], 60, Pass.REST)  # it may not
    assert spend(senders[2], 38, Pass.REST)  # what others leave
    assert not spend(senders[1], 10, Pass.REST)  # it can wait for its share in another block
    assert spend(senders[0], 60, Pass.REST)
    assert shares.exceeding == (A, 60)
    assert not spend(senders[0], 60, Pass.REST)  # one in a block


def test_what_a_batch_was_given_before_there_was_no_room_is_given_back() -> None:
    senders = [(A, b"1"), (A, b"2")]
    shares = Shares(40, senders)
    shares.turn(senders[1], Pass.CLIENT)
    shares.spend(1)
    shares.turn(senders[0], Pass.CLIENT)
    before = shares.left
    shares.spend(5)
    shares.spend(3, done=True)
    with pytest.raises(NoRoom) as full:
        shares.spend(20)
    assert full.value.work == 28
    assert shares.left == before + BATCH - 3  # it counts when it is executed
