"""The rules of P3, one by one: a batch takes effect once, in its turn, or is refused for good (T23)."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN, Actor, Signed, World, actor, registration, tagged

from parley.application import expiry, strangers
from parley.application.expiry import BEHIND, EXPIRY
from parley.application.sequences import AGAIN, CHUNK, CHUNKS, SEQUENCES
from parley.application.strangers import REMEMBERED, STRANGERS
from parley.model.batches import MAX_NOT_AFTER
from parley.model.names import Position
from parley.model.receipts import BatchReceipt, Duplicate, Rejected
from parley.model.refusals import (
    DUPLICATE,
    OK,
    Busy,
    Expired,
    OutOfSequence,
    PermissionDenied,
    Revoked,
    SequenceReused,
    UnknownClient,
)
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import RevokeClient
from parley.modules.topics.operations import AlterTopic, DeleteTopic
from parley.modules.topics.tables import HEADS


@pytest.fixture
def world() -> World:
    world = World()
    world.topic("orders", partitions=2)
    world.client("alice")
    return world


ALICE = actor("alice")


def refusal(receipt: BatchReceipt) -> Rejected:
    assert receipt.rejected is not None
    return receipt.rejected


def small(world: World, sequence: int, not_after: int | None = None, author: Actor = ALICE) -> Signed:
    return world.publication(author, "orders", sequence=sequence, not_after=not_after)


def test_batches_in_sequence_are_applied(world: World) -> None:
    first = world.publish(ALICE, "orders", tagged(), tagged(), tagged())
    second = world.publish(ALICE, "orders", tagged())
    assert (first.outcome, second.outcome) == (Published(0), Published(3))


def test_a_known_digest_is_a_duplicate_of_the_old_receipt(world: World) -> None:
    batch = small(world, 0)
    world.order(world.control(ADMIN, DeleteTopic("none")), batch)
    height = world.height
    for _ in range(3):
        assert world.order_one(batch).outcome == Duplicate((height, 1))
    assert batch.digest in world.outcomes[-1].settled


def test_another_digest_with_a_used_sequence_is_refused(world: World) -> None:
    world.publish(ALICE, "orders", tagged(), tagged())
    for sequence in (0, 1):
        receipt = world.order_one(world.publication(ALICE, "orders", tagged(x=1), sequence=sequence))
        assert receipt.code == SequenceReused.code
        assert refusal(receipt).next_sequence == 2


def test_a_gap_is_out_of_sequence_and_may_be_ordered_again(world: World) -> None:
    later = small(world, 1)
    receipt = world.order_one(later)
    assert (receipt.code, refusal(receipt).next_sequence) == (OutOfSequence.code, 0)
    assert later.digest not in world.outcomes[-1].settled
    assert world.order_one(small(world, 0)).code == OK
    assert world.order_one(later).outcome == Published(1)


def test_within_a_block_a_session_is_applied_in_sequence_in_the_places_that_it_holds(world: World) -> None:
    world.client("bob")
    bob = [small(world, i, author=actor("bob")) for i in range(2)]
    alice = [small(world, i) for i in range(3)]
    receipts = world.order(alice[2], bob[1], alice[1], alice[0], bob[0])
    assert [receipt.digest for receipt in receipts] == [
        batch.digest for batch in (alice[0], bob[0], alice[1], alice[2], bob[1])
    ]
    assert [receipt.outcome for receipt in receipts] == [Published(i) for i in range(5)]


def test_sequences_are_apart_by_author_session_topic_and_partition(world: World) -> None:
    world.client("bob")
    world.topic("results")
    batches = [
        small(world, 0),
        small(world, 0, author=actor("bob")),
        world.publication(ALICE, "orders", session=b"1" * 16, sequence=0),
        world.publication(ALICE, "orders", partition=1, sequence=0),
        world.publication(ALICE, "results", sequence=0),
    ]
    assert {receipt.code for receipt in world.order(*batches)} == {OK}


def test_control_operations_have_a_sequence_of_their_own(world: World) -> None:
    assert world.order_one(small(world, 0)).code == OK
    receipt = world.order_one(world.control(ALICE, DeleteTopic("orders"), sequence=0))
    assert receipt.code == PermissionDenied.code  # and not SequenceReused


def test_a_refused_batch_uses_its_sequence_and_is_never_applied(world: World) -> None:
    world.do(ADMIN, AlterTopic("orders", None, None, "client == 'bob'", None))
    batch = world.publication(ALICE, "orders", tagged(), tagged())
    receipt = world.order_one(batch)
    assert (receipt.code, refusal(receipt).next_sequence) == (PermissionDenied.code, 2)
    refused_at = world.height
    world.do(ADMIN, AlterTopic("orders", None, None, "", None))
    # A lying broker keeps it and orders it again after the grant.
    assert world.order_one(batch).outcome == Duplicate((refused_at, 0))
    assert world.order_one(small(world, 0)).code == SequenceReused.code
    assert world.order_one(small(world, 2)).outcome == Published(0)


def test_an_expired_batch_consumes_nothing_and_is_done_with(world: World) -> None:
    batch = small(world, 0, not_after=world.height)
    receipt = world.order_one(batch)
    assert (receipt.code, refusal(receipt).next_sequence) == (Expired.code, 0)
    assert batch.digest in world.outcomes[-1].settled
    assert world.order_one(small(world, 0)).code == OK
    assert refusal(world.order_one(batch)).next_sequence == 1


def test_a_batch_may_be_applied_up_to_its_last_height(world: World) -> None:
    assert world.order_one(small(world, 0, not_after=world.height + 1)).code == OK


def test_a_batch_is_valid_for_100_000_heights_at_most(world: World) -> None:
    too_far = small(world, 0, not_after=world.height + MAX_NOT_AFTER + 2)
    receipt = world.order_one(too_far)
    assert receipt.code == Expired.code
    assert "100000 ahead" in refusal(receipt).detail
    assert world.order_one(small(world, 0, not_after=world.height + MAX_NOT_AFTER + 1)).code == OK


def test_expiry_is_looked_at_before_the_digest(world: World) -> None:
    batch = small(world, 0, not_after=world.height + 1)
    assert world.order_one(batch).code == OK
    assert world.order_one(batch).code == Expired.code


@pytest.mark.parametrize("batches", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 1_100])
def test_every_batch_is_known_until_it_expires(batches: int, world: World) -> None:
    sent: list[Signed] = []
    places: list[Position] = []
    while len(sent) < batches:
        block = [small(world, len(sent) + i) for i in range(min(50, batches - len(sent)))]
        places += [(world.height + 1, i) for i in range(len(block))]
        sent += block
        assert {receipt.code for receipt in world.order(*block)} == {OK}
    asked = sorted({0, 1, CHUNK - 1, CHUNK, batches // 2, batches - 1} & set(range(batches)))
    receipts = world.order(*(sent[i] for i in asked))
    assert [receipt.outcome for receipt in receipts] == [Duplicate(places[i]) for i in asked]
    others = world.order(*(world.publication(ALICE, "orders", tagged(x=1), sequence=i) for i in asked))
    assert {receipt.code for receipt in others} == {SequenceReused.code}
    assert world.rebuilt_root() == world.root


def test_batches_of_many_messages_are_found_by_any_sequence_within(world: World) -> None:
    sent = [world.publication(ALICE, "orders", *[tagged()] * 7) for _ in range(3 * CHUNK)]
    world.order(*sent)
    height = world.height
    receipts = world.order(*sent[::9])
    assert [receipt.outcome for receipt in receipts] == [
        Duplicate((height, i)) for i in range(0, 3 * CHUNK, 9)
    ]
    inside = world.publication(ALICE, "orders", tagged(), sequence=7 * CHUNK + 3)
    assert world.order_one(inside).code == SequenceReused.code


def test_sequences_and_chunks_are_forgotten_when_their_batches_have_expired(world: World) -> None:
    world.wait(1_100 + AGAIN)  # until what was written so far has expired
    before = world.entries()
    last = world.height + 20
    for start in range(0, 3 * CHUNK, CHUNK):
        world.order(*(small(world, start + i, not_after=last) for i in range(CHUNK)))
    assert len(world.table(CHUNKS)) == 2
    assert len(world.table(SEQUENCES)) == 1
    world.wait(last - world.height)
    assert len(world.table(CHUNKS)) == 2
    world.wait(1)
    changed = {key for key, value in world.entries().items() if before.get(key) != value}
    assert changed == {HEADS.key("orders", 0)}
    assert world.rebuilt_root() == world.root
    assert world.order_one(small(world, 0)).code == OK  # the sequence begins again


def test_a_sequence_lives_on_while_it_is_used(world: World) -> None:
    for i in range(40):
        assert world.order_one(small(world, i, not_after=world.height + 3)).code == OK
    listed = [key for _, key in world.table(EXPIRY) if key.startswith(SEQUENCES.prefix())]
    assert len(listed) == len(world.table(SEQUENCES))  # each is listed once, however long it lives


def test_a_batch_is_known_at_its_last_height_although_its_sequence_is_looked_at_then(world: World) -> None:
    """Forgotten one height early, it would begin its sequence again and apply twice."""
    listed = world.height + 6
    world.order_one(small(world, 0, not_after=listed - 1))
    last = small(world, 1, not_after=listed)
    assert world.order_one(last).code == OK
    world.wait(listed - 1 - world.height)
    assert world.order_one(last).code == DUPLICATE
    assert world.height == listed
    assert world.order_one(last).code == Expired.code


def test_a_batch_of_an_older_chunk_is_known_at_its_last_height(world: World) -> None:
    last = world.height + 6
    early = [small(world, i, not_after=last) for i in range(CHUNK)]
    world.order(*early)
    world.order(small(world, CHUNK, not_after=last))
    world.wait(last - 1 - world.height)
    assert len(world.table(CHUNKS)) == 1
    assert world.order_one(early[0]).code == DUPLICATE
    assert world.height == last


def test_older_chunks_go_first_and_the_rest_is_still_known(world: World) -> None:
    early = [small(world, i, not_after=world.height + 10) for i in range(CHUNK)]
    world.order(*early)
    # The batch that seals the chunk counts into its expiry, too.
    world.order(small(world, CHUNK, not_after=world.height + 9))
    late = [small(world, CHUNK + 1 + i) for i in range(2 * CHUNK)]
    world.order(*late)
    height = world.height
    assert len(world.table(CHUNKS)) == 3
    world.wait(12)
    assert len(world.table(CHUNKS)) == 2
    assert world.order_one(early[0]).code == Expired.code
    receipts = world.order(late[0], late[CHUNK], late[-1])
    assert [receipt.outcome for receipt in receipts] == [
        Duplicate((height, i)) for i in (0, CHUNK, 2 * CHUNK - 1)
    ]
    other = world.publication(ALICE, "orders", tagged(x=1), sequence=3)
    assert world.order_one(other).code == SequenceReused.code


def test_a_reused_sequence_never_applies_after_its_session_was_forgotten(world: World) -> None:
    world.order_one(small(world, 0, not_after=world.height + 5))
    other = world.publication(ALICE, "orders", tagged(x=1), sequence=0, not_after=world.height + 50)
    assert world.order_one(other).code == SequenceReused.code
    world.wait(20)
    assert world.order_one(other).code == SequenceReused.code
    world.wait(40)
    assert world.order_one(other).code == Expired.code


def test_a_reused_sequence_does_not_apply_at_its_last_height_either(world: World) -> None:
    """The sequence is looked at in just that block."""
    last = world.height + 6
    world.order_one(small(world, 0, not_after=last - 1))
    other = world.publication(ALICE, "orders", tagged(x=1), sequence=0, not_after=last)
    assert world.order_one(other).code == SequenceReused.code
    world.wait(last - 1 - world.height)
    assert world.order_one(other).code == SequenceReused.code
    assert world.height == last


def test_what_expires_at_once_is_worked_off_over_several_blocks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MAX_SWEPT", 150)  # each takes three
    last = world.height + 3
    sessions = [i.to_bytes(16, "big") for i in range(1, 121)]
    for first in (0, 60):
        world.order(
            *(
                world.publication(ALICE, "orders", session=s, not_after=last)
                for s in sessions[first : first + 60]
            )
        )
    before = len(world.table(SEQUENCES))
    world.wait(last - world.height)
    assert len(world.table(SEQUENCES)) == before
    left = []
    for _ in range(4):
        world.wait(1)
        left.append(before - len(world.table(SEQUENCES)))
        assert world.rebuilt_root() == world.root
    assert left == [50, 100, 120, 120]
    assert world.record(BEHIND) is None


def test_a_batch_is_known_although_later_ones_expire_before_it(world: World) -> None:
    world.order(*(small(world, i, not_after=world.height + valid) for i, valid in enumerate((5, 50, 7))))
    height = world.height
    world.wait(20)
    assert world.order_one(small(world, 1, not_after=height + 49)).outcome == Duplicate((height, 1))


def stand_still(world: World, monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Let expiry fall behind by so many blocks."""
    monkeypatch.setattr(expiry, "MAX_SWEPT", 1)  # which is used up by looking at one height
    world.wait(blocks)
    assert behind(world) == world.height - blocks + 1


def behind(world: World) -> int:
    return world.record(BEHIND) or 0


def test_a_block_looks_at_a_limited_number_of_heights(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(world, monkeypatch, 30)
    monkeypatch.setattr(expiry, "MAX_SWEPT", 6)
    for _ in range(5):
        before = behind(world)
        world.wait(1)
        assert behind(world) == before + 5
    world.wait(10)
    assert not behind(world)


def test_a_sequence_used_while_expiry_was_behind_goes_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.table(SEQUENCES).keys()
    world.order(small(world, 0, not_after=world.height + 4))
    world.order(small(world, 1, not_after=world.height + 5))
    stand_still(world, monkeypatch, 10)
    monkeypatch.setattr(expiry, "MAX_SWEPT", 1_000)
    world.wait(2 + AGAIN)
    assert world.table(SEQUENCES).keys() == before
    assert world.rebuilt_root() == world.root


def test_a_sequence_that_begins_again_while_expiry_is_behind_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = world.height + 4
    world.order(small(world, 0, not_after=early))
    world.order(*(small(world, 1 + i, not_after=early + 8) for i in range(CHUNK)))
    stand_still(world, monkeypatch, 12)
    monkeypatch.setattr(expiry, "MAX_SWEPT", 2)
    while behind(world) <= early + 1:
        world.wait(1)
    known: dict[bytes, Position] = {}
    sent: dict[bytes, Signed] = {}
    for _ in range(20):
        # The sequence that was to go, or the one that took its place, is filled while old entries still go.
        block = [world.publication(ALICE, "orders") for _ in range(CHUNK)]
        sent |= {batch.digest: batch for batch in block}
        for at, receipt in enumerate(world.order(*block)):
            if receipt.code == OK:
                known[receipt.digest] = (world.height, at)
    for name in list(known)[:: CHUNK // 2]:
        assert world.order_one(sent[name]).outcome == Duplicate(known[name])
    assert world.rebuilt_root() == world.root


# -- those who have no part -------------------------------------------------------------------------------------------


MALLORY = actor("mallory")


def test_an_unknown_key_is_refused_for_good(world: World) -> None:
    batch = small(world, 0, author=MALLORY)
    receipt = world.order_one(batch)
    refused_at = world.height
    assert (receipt.code, receipt.client) == (UnknownClient.code, "")
    assert batch.digest in world.outcomes[-1].settled
    world.do(ADMIN, registration(world.chain, MALLORY))
    assert world.order_one(batch).outcome == Duplicate((refused_at, 0))
    assert world.order_one(world.publication(MALLORY, "orders", tagged(x=1), sequence=0)).code == OK
    assert world.order_one(batch).outcome == Duplicate((refused_at, 0))


def test_an_unknown_key_gets_no_sequence(world: World) -> None:
    before = world.table(SEQUENCES)
    world.order(*(small(world, i, author=MALLORY) for i in range(5)))
    assert world.table(SEQUENCES) == before
    assert len(world.table(STRANGERS)) == 5


def test_what_is_remembered_of_strangers_expires(world: World) -> None:
    world.order(*(small(world, i, author=MALLORY, not_after=world.height + 5) for i in range(5)))
    world.wait(5)
    assert not world.table(STRANGERS)
    assert world.record(REMEMBERED) is None


def test_strangers_cannot_fill_the_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MAX_STRANGERS", 3)
    batches = [small(world, i, author=MALLORY, not_after=world.height + 20) for i in range(5)]
    codes = [receipt.code for receipt in world.order(*batches)]
    assert codes == [UnknownClient.code] * 3 + [Busy.code] * 2
    assert world.outcomes[-1].settled == {batch.digest for batch in batches[:3]}
    before = world.entries()
    assert world.order_one(batches[4]).code == Busy.code
    assert world.entries() == before
    # Busy is no decision: what was not remembered may be applied once the key is known.
    world.do(ADMIN, registration(world.chain, MALLORY))
    assert world.order_one(batches[0]).code == DUPLICATE
    assert world.order_one(batches[4]).code == OutOfSequence.code


def test_a_revoked_key_goes_on_in_its_sequences_but_begins_no_other(world: World) -> None:
    assert world.order_one(small(world, 0)).code == OK
    world.do(ADMIN, RevokeClient("alice"))
    batch = small(world, 1)
    receipt = world.order_one(batch)
    assert (receipt.code, receipt.client) == (Revoked.code, "hospital-a/alice")
    assert world.order_one(batch).outcome == Duplicate((world.height - 1, 0))
    before = world.entries()
    fresh = world.publication(ALICE, "orders", session=b"2" * 16)
    for _ in range(2):
        assert world.order_one(fresh).code == Revoked.code
    assert world.entries() == before


def test_an_administrator_that_is_no_client_does_not_publish(world: World) -> None:
    receipt = world.publish(ADMIN, "orders")
    assert (receipt.code, refusal(receipt).next_sequence) == (UnknownClient.code, 1)
    world.do(ADMIN, registration(world.chain, ADMIN, name="chief"))
    assert world.publish(ADMIN, "orders").outcome == Published(0)
    assert world.publish(ADMIN, "orders").client == "hospital-a/chief"
