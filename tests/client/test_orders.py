"""A subscriber's order against one broker that may show anything: whatever is not the certified order is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Actor, actor
from tests.client.ledger import Ledger, believe, note, place_of

from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.client.beliefs import Stale, UnverifiedView, is_fresh, require_hidden
from parley.client.messages import Message
from parley.client.verification import Completeness, Order
from parley.ledger.proofs import ProofError
from parley.model.batches import Message as Message_
from parley.model.batches import Withheld
from parley.model.names import sorted_pairs
from parley.model.receipts import BatchReceipt, encode_leaf
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Match, PartitionStart, Subscribed
from parley.modules.subscriptions.tables import ORDER_HEADS
from parley.net.messages import DeliveredBlock, Delivery, Head

WHERE = 'ward == "er"'
SECRET = 'role == "doctor"'


@dataclass
class Story:
    """Alice publishes in three blocks, Bob in the last two; Carol, a nurse, follows one ward."""

    ledger: Ledger
    carol: Actor
    starts: tuple[PartitionStart, ...]

    @property
    def order(self) -> Order:
        return self.ledger.follow(self.carol, "notes", WHERE, self.starts)

    @property
    def delivery(self) -> Delivery:
        found = self.ledger.delivery(self.carol, "notes", WHERE, place_of(self.starts[0]))
        assert found is not None
        return found

    def of_another_order(self, topic: str, where: str) -> Delivery:
        (start,) = self.ledger.subscribe(self.carol, topic, where)
        found = self.ledger.delivery(self.carol, topic, where, place_of(replace(start, next_ps=0)))
        assert found is not None
        return found

    def match(self, block: DeliveredBlock) -> Match:
        leaf = DATA_SHARD.decode_leaf(block.proof.leaves[-1])
        assert isinstance(leaf, Match)
        return leaf

    def forged(
        self, at: int, contents: tuple[Message_ | Withheld, ...] | None = None, **changes: object
    ) -> Delivery:
        """The honest delivery up to a block, with another `Match` in that block."""
        delivery = self.delivery
        block = delivery.blocks[at]
        match = encode_leaf(replace(self.match(block), **changes))
        proof = replace(block.proof, leaves=(*block.proof.leaves[:-1], match))
        lie = replace(block, proof=proof, contents=block.contents if contents is None else contents)
        return replace(delivery, blocks=(*delivery.blocks[:at], lie))

    def believe(self, delivery: Delivery) -> None:
        """Without a look at the proofs."""
        self.order.delivered(UnverifiedView(delivery.anchor, DATA_SHARD.decode_leaf), delivery)

    def check(self, delivery: Delivery) -> list[tuple[Message, ...]]:
        return self.order.delivered(believe(self.ledger, delivery.anchor), delivery)


@pytest.fixture
def story() -> Story:
    ledger = Ledger()
    alice, bob = ledger.client("alice"), ledger.client("bob", "hospital-b")
    carol = ledger.client("carol", role="nurse")
    for topic in ("notes", "other"):
        ledger.topic(topic)
    starts = ledger.subscribe(carol, "notes", WHERE)
    ledger.subscribe(carol, "other", WHERE)
    ledger.subscribe(carol, "notes", 'ward == "icu"')
    er = {"ward": "er"}
    ledger.publish(alice, "notes", note("one", **er), note("elsewhere", ward="icu"), note("two", **er))
    ledger.order(
        ledger.publication(alice, "notes", note("three", **er), note("for doctors", SECRET, **er)),
        ledger.publication(bob, "notes", note("four", **er)),
        ledger.publication(bob, "other", note("five", **er)),
    )
    ledger.publish(bob, "notes", note("six", **er))
    return Story(ledger, carol, starts)


def changed(delivery: Delivery, at: int, block: DeliveredBlock) -> Delivery:
    blocks = list(delivery.blocks)
    blocks[at] = block
    return replace(delivery, blocks=tuple(blocks))


def test_an_honest_delivery_is_the_order_of_publication(story: Story) -> None:
    blocks = story.check(story.delivery)
    messages = _messages(blocks)
    assert [(m.ps, m.offset, None if m.empty else m.text(), m.publisher) for m in messages] == [
        (0, 0, "one", "hospital-a/alice"),
        (1, 2, "two", "hospital-a/alice"),
        (2, 3, "three", "hospital-a/alice"),
        (3, 4, None, "hospital-a/alice"),
        (4, 5, "four", "hospital-b/bob"),
        (5, 6, "six", "hospital-b/bob"),
    ]
    assert [m.empty for m in messages] == [False, False, False, True, False, False]
    assert messages[3].rule == SECRET
    assert messages[0].tags == {"ward": "er"}
    assert {m.verified for m in messages} == {"certified"}


def test_a_dropped_item_is_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[0]
    with pytest.raises(ProofError, match="1 messages are shown where 2 matched"):
        story.check(changed(delivery, 0, replace(block, contents=block.contents[:1])))


def test_reordered_items_are_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[0]
    with pytest.raises(ProofError, match="not the one that was published"):
        story.check(changed(delivery, 0, replace(block, contents=block.contents[::-1])))


def test_reordered_blocks_are_noticed(story: Story) -> None:
    delivery = story.delivery
    with pytest.raises(ProofError, match="number 0 was to come next, not 2"):
        story.check(replace(delivery, blocks=delivery.blocks[::-1][1:]))


def test_a_skipped_block_is_noticed(story: Story) -> None:
    delivery = story.delivery
    with pytest.raises(ProofError, match="number 2 was to come next, not 5"):
        story.check(replace(delivery, blocks=(delivery.blocks[0], delivery.blocks[2])))


def test_a_replayed_block_is_noticed(story: Story) -> None:
    delivery = story.delivery
    with pytest.raises(ProofError, match="number 2 was to come next, not 0"):
        story.check(replace(delivery, blocks=(delivery.blocks[0], delivery.blocks[0])))


def test_a_block_is_not_delivered_twice_by_two_deliveries(story: Story) -> None:
    order, delivery = story.order, story.delivery
    order.delivered(believe(story.ledger, delivery.anchor), delivery)
    with pytest.raises(ProofError, match="number 6 was to come next"):
        order.delivered(believe(story.ledger, delivery.anchor), delivery)


def test_a_forged_payload_is_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[2]
    (content,) = block.contents
    assert not isinstance(content, Withheld)
    with pytest.raises(ProofError, match="not the one that was published"):
        story.check(changed(delivery, 2, replace(block, contents=(replace(content, payload=b"forged"),))))


def test_a_forged_tag_is_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[2]
    forged = note("six", ward="icu")
    with pytest.raises(ProofError, match="not the one that was published"):
        story.check(changed(delivery, 2, replace(block, contents=(forged,))))


def test_a_message_that_does_not_match_is_noticed_even_if_a_leaf_says_so(story: Story) -> None:
    """Under `quorum` leaves are not proven, so an answer must at least agree with itself."""
    delivery = story.delivery
    block = delivery.blocks[2]
    forged = note("six", ward="icu")
    match = story.ledger.leaves(block.proof.header.height)[1]
    leaves = (block.proof.leaves[0], encode_leaf(replace(match, items=((6, forged.leaf()),))))
    lie = replace(block, proof=replace(block.proof, leaves=leaves), contents=(forged,))
    order = story.order
    order.delivered(
        UnverifiedView(delivery.anchor, DATA_SHARD.decode_leaf), replace(delivery, blocks=delivery.blocks[:2])
    )
    with pytest.raises(ProofError, match="do not match"):
        order.delivered(
            UnverifiedView(delivery.anchor, DATA_SHARD.decode_leaf), replace(delivery, blocks=(lie,))
        )


def test_a_swapped_publisher_is_noticed(story: Story) -> None:
    """Another batch's receipt does not cover the offset, and one that was changed is not in the block."""
    delivery, ledger = story.delivery, story.ledger
    block = delivery.blocks[1]
    height = block.proof.header.height
    match_at = max(
        at for at, leaf in enumerate(ledger.leaves(height)) if encode_leaf(leaf) == block.proof.leaves[-1]
    )
    only_alice = replace(block, proof=ledger.proof(height, [0, match_at]))
    with pytest.raises(ProofError, match="no receipt shows who published offset 5"):
        story.check(changed(delivery, 1, only_alice))
    bob = ledger.leaves(height)[1]
    forged = (encode_leaf(replace(bob, client="hospital-a/alice")), *block.proof.leaves[1:])
    with pytest.raises(ProofError, match="not those of block"):
        story.check(changed(delivery, 1, replace(block, proof=replace(block.proof, leaves=forged))))


def test_another_topics_leaf_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="another topic, partition or constraint"):
        story.check(story.of_another_order("other", WHERE))


def test_another_constraints_leaf_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="another topic, partition or constraint"):
        story.check(story.of_another_order("notes", 'ward == "icu"'))


def test_another_incarnation_is_noticed(story: Story) -> None:
    """After unsubscribing and subscribing again the numbers begin anew: no leaf of the old order fits the new one."""
    ledger, old = story.ledger, story.delivery
    ledger.do(story.carol, Unsubscribe("notes", WHERE))
    starts = ledger.subscribe(story.carol, "notes", WHERE)
    assert starts[0].next_ps == 0
    order = ledger.follow(story.carol, "notes", WHERE, starts)
    with pytest.raises(ProofError, match="another incarnation"):
        order.delivered(believe(ledger, old.anchor), old)


def test_who_joins_in_the_middle_of_a_block_begins_there(story: Story) -> None:
    """The block's one leaf begins with numbers that were given before the subscription; they are checked, not delivered."""
    ledger = story.ledger
    dora, bob = ledger.client("dora"), actor("bob", "hospital-b")
    ledger.order(
        ledger.publication(bob, "notes", note("seven", ward="er"), note("eight", ward="er")),
        ledger.control(dora, Subscribe("notes", WHERE)),
        ledger.publication(actor("alice"), "notes", note("nine", ward="er")),
    )
    (receipt,) = [
        leaf for leaf in ledger.leaves(ledger.height) if getattr(leaf, "client", "") == "hospital-a/dora"
    ]
    assert isinstance(receipt, BatchReceipt)
    assert isinstance(receipt.outcome, Subscribed)
    (start,) = receipt.outcome.partitions
    assert start.next_ps == 8
    delivery = ledger.delivery(dora, "notes", WHERE, place_of(start))
    assert delivery is not None
    order = ledger.follow(dora, "notes", WHERE, [start])
    shown = order.delivered(believe(ledger, delivery.anchor), delivery)
    assert [(m.ps, m.offset, m.text()) for m in _messages(shown)] == [(8, 9, "nine")]
    head = ledger.head("notes", WHERE)
    assert order.completeness(believe(ledger, head.anchor), head) is Completeness.COMPLETE


def test_what_was_numbered_before_one_joined_is_checked_all_the_same(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[0]
    order = story.ledger.follow(
        story.carol, "notes", WHERE, [replace(story.starts[0], next_ps=1, next_offset=1)]
    )
    lie = replace(block, contents=(note("forged", ward="er"), block.contents[1]))
    with pytest.raises(ProofError, match="not the one that was published"):
        order.delivered(believe(story.ledger, delivery.anchor), replace(delivery, blocks=(lie,)))


def test_a_later_incarnation_is_noticed(story: Story) -> None:
    ledger = story.ledger
    ledger.do(story.carol, Unsubscribe("notes", WHERE))
    (start,) = ledger.subscribe(story.carol, "notes", WHERE)
    ledger.publish(actor("bob", "hospital-b"), "notes", note("seven", ward="er"))
    later = ledger.delivery(story.carol, "notes", WHERE, place_of(start))
    assert later is not None
    with pytest.raises(ProofError, match="another incarnation"):
        story.check(later)


def test_another_partitions_leaf_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="another topic, partition or constraint"):
        story.believe(story.forged(0, partition=1))


def test_more_messages_than_matched_are_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[0]
    with pytest.raises(ProofError, match="3 messages are shown where 2 matched"):
        story.check(changed(delivery, 0, replace(block, contents=(*block.contents, note("more")))))


def test_a_match_of_nothing_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="number 0 was to come next, not 0"):
        story.believe(story.forged(0, items=(), contents=()))


def test_the_order_of_offsets_is_that_of_numbers(story: Story) -> None:
    """Also for readers that look at no proof."""
    block = story.delivery.blocks[0]
    match = story.match(block)
    with pytest.raises(ProofError, match="offset 0 comes after 2"):
        story.believe(story.forged(0, items=match.items[::-1], contents=block.contents[::-1]))
    with pytest.raises(ProofError, match="offset 0 comes after 0"):
        story.believe(story.forged(0, items=match.items[:1] * 2, contents=block.contents[:1] * 2))
    (offset, leaf), *_ = story.match(story.delivery.blocks[2]).items
    assert offset == 6
    with pytest.raises(ProofError, match="offset 5 comes after 5"):
        story.believe(story.forged(2, items=((5, leaf),)))


def test_only_receipts_show_who_published(story: Story) -> None:
    delivery, ledger = story.delivery, story.ledger
    height = delivery.blocks[1].proof.header.height
    others = [at for at, leaf in enumerate(ledger.leaves(height)) if isinstance(leaf, Match)]
    matches_only = replace(delivery.blocks[1], proof=ledger.proof(height, others))
    with pytest.raises(ProofError):
        story.check(changed(delivery, 1, matches_only))


# -- empties -------------------------------------------------------------------------------------------------------


def test_withholding_what_the_rule_allows_is_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[2]
    (content,) = block.contents
    assert not isinstance(content, Withheld)
    entry = story.ledger.entry(CLIENTS.key(story.carol.key))
    lie = changed(delivery, 2, replace(block, contents=(content.withheld(),)))
    with pytest.raises(ProofError, match="withheld although its rule 'true' allows"):
        story.check(replace(lie, reader=entry))


def test_withholding_after_a_grant_is_noticed(story: Story) -> None:
    """The rule is judged on the reader's attributes under the header that the delivery names."""
    ledger, before = story.ledger, story.delivery
    ledger.do(ADMIN, AlterClient("carol", sorted_pairs({"role": "doctor"}), ()))
    assert not any(message.empty for message in _messages(story.check(story.delivery)))
    hidden = replace(
        before,
        anchor=ledger.anchor(),
        reader=ledger.entry(CLIENTS.key(story.carol.key)),
        blocks=before.blocks,
    )
    moved = tuple(
        replace(block, proof=ledger.proof(block.proof.header.height, block.proof.receipts.indices))
        for block in hidden.blocks
    )
    with pytest.raises(ProofError, match="allows this reader"):
        story.check(replace(hidden, blocks=moved))


def test_withholding_needs_proof_of_the_readers_attributes(story: Story) -> None:
    with pytest.raises(ProofError, match="without a proof of what this reader may see"):
        story.check(replace(story.delivery, reader=None))


def test_withholding_by_another_readers_attributes_is_noticed(story: Story) -> None:
    bob = actor("bob", "hospital-b")
    with pytest.raises(ProofError, match="another entry"):
        story.check(replace(story.delivery, reader=story.ledger.entry(CLIENTS.key(bob.key))))


def test_withholding_by_forged_attributes_is_noticed(story: Story) -> None:
    delivery = story.delivery
    assert delivery.reader is not None
    with pytest.raises(ProofError, match="not in the certified state"):
        story.check(replace(delivery, reader=replace(delivery.reader, value=None)))


def test_withholding_by_attributes_from_before_what_was_seen_is_not_taken(story: Story) -> None:
    delivery = story.delivery
    order = story.ledger.follow(story.carol, "notes", WHERE, story.starts, floor=story.ledger.height + 1)
    with pytest.raises(Stale):
        order.delivered(believe(story.ledger, delivery.anchor), delivery)
    story.ledger.follow(story.carol, "notes", WHERE, story.starts, floor=story.ledger.height).delivered(
        believe(story.ledger, delivery.anchor), delivery
    )


def test_what_was_seen_once_is_the_least_that_withholding_is_judged_by(story: Story) -> None:
    """By a delivery or by a head, and an older one afterwards does not undo it."""
    ledger, old = story.ledger, story.delivery
    old_head = ledger.head("notes", WHERE)
    ledger.apply()
    new, new_head = story.delivery, ledger.head("notes", WHERE)
    by_delivery, by_head = story.order, story.order
    by_delivery.delivered(believe(ledger, new.anchor), replace(new, blocks=new.blocks[:1], reader=None))
    by_head.completeness(believe(ledger, new_head.anchor), new_head)
    by_head.delivered(believe(ledger, old.anchor), replace(old, blocks=old.blocks[:1], reader=None))
    for order in (by_delivery, by_head):
        order.completeness(believe(ledger, old_head.anchor), old_head)
        with pytest.raises(Stale):
            order.delivered(believe(ledger, old.anchor), replace(old, blocks=old.blocks[1:]))
        order.delivered(believe(ledger, new.anchor), replace(new, blocks=new.blocks[1:]))


def test_a_head_below_what_was_seen_certified_is_never_taken_for_complete(story: Story) -> None:
    ledger = story.ledger
    order = ledger.follow(story.carol, "notes", WHERE, story.starts)
    order.delivered(believe(ledger, story.delivery.anchor), story.delivery)
    head = ledger.head("notes", WHERE)
    view = believe(ledger, head.anchor)
    assert order.completeness(view, head) is Completeness.COMPLETE
    ledger.apply()
    newer = ledger.head("notes", WHERE)
    assert order.completeness(believe(ledger, newer.anchor), newer) is Completeness.COMPLETE
    assert order.completeness(view, head) is Completeness.BEHIND
    resumed = ledger.follow(story.carol, "notes", WHERE, story.starts, floor=ledger.height)
    resumed.delivered(believe(ledger, story.delivery.anchor), story.delivery)
    assert resumed.completeness(view, head) is Completeness.BEHIND


def test_who_is_not_registered_has_no_attributes(story: Story) -> None:
    ledger = story.ledger
    stranger = ledger.reader(actor("mallory"))
    view = believe(ledger, ledger.anchor())
    assert stranger.attributes(view, ledger.entry(CLIENTS.key(stranger.key)), 0) is None


def test_an_empty_of_a_revoked_reader_is_believed(story: Story) -> None:
    ledger = story.ledger
    ledger.do(ADMIN, RevokeClient("carol"))
    delivery = story.delivery
    everything = tuple(
        replace(
            block,
            contents=tuple(
                content if isinstance(content, Withheld) else content.withheld() for content in block.contents
            ),
        )
        for block in delivery.blocks
        if block.contents
    )
    shown = story.check(
        replace(delivery, reader=ledger.entry(CLIENTS.key(story.carol.key)), blocks=everything)
    )
    assert all(message.empty for message in _messages(shown))


def test_a_rule_that_cannot_be_read_hides_nothing() -> None:
    with pytest.raises(ProofError, match="a rule that cannot be read"):
        require_hidden(Withheld(bytes(32), "role ==", bytes(32)), {})


def test_a_header_that_cannot_be_read_is_the_brokers_fault(story: Story) -> None:
    """No quorum certifies one, but `quorum` readers look at what is not certified."""
    delivery = story.delivery
    block = delivery.blocks[2]
    forged = replace(note("six"), header=b"garbage")
    match = story.ledger.leaves(block.proof.header.height)[1]
    leaves = (block.proof.leaves[0], encode_leaf(replace(match, items=((6, forged.leaf()),), first_ps=0)))
    lie = replace(block, proof=replace(block.proof, leaves=leaves), contents=(forged,))
    with pytest.raises(ProofError, match="header cannot be read"):
        story.order.delivered(
            UnverifiedView(delivery.anchor, DATA_SHARD.decode_leaf), replace(delivery, blocks=(lie,))
        )


def test_offsets_do_not_go_back(story: Story) -> None:
    delivery = story.delivery
    place = replace(story.starts[0], next_offset=9)
    order = story.ledger.follow(story.carol, "notes", WHERE, [place])
    with pytest.raises(ProofError, match="offset 0 comes after 8"):
        order.delivered(believe(story.ledger, delivery.anchor), delivery)


def test_a_block_must_end_with_what_it_added_to_an_order(story: Story) -> None:
    delivery, ledger = story.delivery, story.ledger
    block = delivery.blocks[0]
    receipt_only = replace(block, proof=ledger.proof(block.proof.header.height, [0]))
    with pytest.raises(ProofError, match="is no match"):
        story.check(changed(delivery, 0, receipt_only))


# -- heads ---------------------------------------------------------------------------------------------------------


def followed(story: Story) -> Order:
    order, delivery = story.order, story.delivery
    order.delivered(believe(story.ledger, delivery.anchor), delivery)
    return order


def completeness(story: Story, order: Order, head: Head) -> Completeness:
    return order.completeness(believe(story.ledger, head.anchor), head)


def test_the_head_proves_that_nothing_is_missing(story: Story) -> None:
    head = story.ledger.head("notes", WHERE)
    assert completeness(story, followed(story), head) is Completeness.COMPLETE


def test_the_head_shows_what_was_withheld(story: Story) -> None:
    assert completeness(story, story.order, story.ledger.head("notes", WHERE)) is Completeness.MISSING


def test_an_old_head_proves_nothing(story: Story) -> None:
    old = story.ledger.head("notes", WHERE)
    order = followed(story)
    story.ledger.publish(actor("bob", "hospital-b"), "notes", note("seven", ward="er"))
    late = story.ledger.delivery(
        story.carol, "notes", WHERE, place_of(replace(story.starts[0], next_ps=6, next_offset=7))
    )
    assert late is not None
    order.delivered(believe(story.ledger, late.anchor), late)
    assert completeness(story, order, old) is Completeness.BEHIND


def test_a_head_that_has_not_come_to_where_a_reader_resumed_proves_nothing(story: Story) -> None:
    ahead = replace(story.starts[0], next_ps=7, next_offset=8)
    order = story.ledger.follow(story.carol, "notes", WHERE, (ahead,))
    assert completeness(story, order, story.ledger.head("notes", WHERE)) is Completeness.BEHIND


def test_a_head_from_before_the_subscription_does_not_end_it(story: Story) -> None:
    ledger = story.ledger
    old = ledger.head("notes", "")
    starts = ledger.subscribe(story.carol, "notes", "")
    order = ledger.follow(story.carol, "notes", "", starts)
    assert order.completeness(believe(ledger, old.anchor), old) is Completeness.BEHIND


def test_a_head_without_the_order_ends_it(story: Story) -> None:
    order = followed(story)
    story.ledger.do(story.carol, Unsubscribe("notes", WHERE))
    assert completeness(story, order, story.ledger.head("notes", WHERE)) is Completeness.ENDED


def test_a_head_from_before_what_was_seen_does_not_end_an_order(story: Story) -> None:
    """As of a broker that lags, a partition that was added since has no order."""
    ledger = story.ledger
    story.ledger.do(story.carol, Unsubscribe("notes", WHERE))
    order = ledger.follow(story.carol, "notes", WHERE, story.starts, floor=ledger.height + 1)
    assert completeness(story, order, ledger.head("notes", WHERE)) is Completeness.BEHIND


def test_a_head_of_a_later_order_ends_this_one_and_of_an_earlier_does_not(story: Story) -> None:
    ledger, order = story.ledger, followed(story)
    old = ledger.head("notes", WHERE)
    ledger.do(story.carol, Unsubscribe("notes", WHERE))
    starts = ledger.subscribe(story.carol, "notes", WHERE)
    assert completeness(story, order, ledger.head("notes", WHERE)) is Completeness.ENDED
    later = ledger.follow(story.carol, "notes", WHERE, starts)
    assert completeness(story, later, old) is Completeness.BEHIND


def test_the_absence_of_ones_own_subscription_ends_the_order(story: Story) -> None:
    """Others hold the constraint, so that the order goes on: it is not shown to who does not subscribe any more."""
    ledger, order = story.ledger, followed(story)
    ledger.subscribe(ledger.client("dora"), "notes", WHERE)
    story.ledger.do(story.carol, Unsubscribe("notes", WHERE))
    assert completeness(story, order, ledger.head("notes", WHERE)) is Completeness.COMPLETE
    absent = ledger.own_subscription(story.carol, "notes", WHERE)
    assert completeness(story, order, absent) is Completeness.LAPSED


def test_absence_from_before_the_subscription_does_not_end_it(story: Story) -> None:
    ledger = story.ledger
    dora = ledger.client("dora")
    before = ledger.own_subscription(dora, "notes", WHERE)
    starts = ledger.subscribe(dora, "notes", WHERE)  # joins an order that is older than that header
    order = ledger.follow(dora, "notes", WHERE, starts, floor=ledger.height)
    assert completeness(story, order, before) is Completeness.BEHIND


def test_a_subscription_that_lives_is_not_taken_for_its_end(story: Story) -> None:
    present = story.ledger.own_subscription(story.carol, "notes", WHERE)
    with pytest.raises(ProofError, match="a subscription that lives"):
        completeness(story, followed(story), present)
    (entry,) = present.entries
    with pytest.raises(ProofError, match="not in the certified state"):
        completeness(story, followed(story), replace(present, entries=(replace(entry, value=None),)))


@pytest.mark.parametrize("where", [WHERE, 'ward == "surgery"'])
def test_the_absence_of_another_subscription_ends_nothing(story: Story, where: str) -> None:
    ledger = story.ledger
    who = ledger.client("dora") if where == WHERE else story.carol
    absent = ledger.own_subscription(who, "notes", where)
    with pytest.raises(ProofError, match="head of partition 0 is not shown"):
        completeness(story, followed(story), absent)


def test_a_head_must_show_every_partition(story: Story) -> None:
    head = story.ledger.head("notes", WHERE)
    with pytest.raises(ProofError, match="head of partition 0 is not shown"):
        completeness(story, story.order, replace(head, entries=()))


def test_a_forged_head_is_noticed(story: Story) -> None:
    ledger = story.ledger
    head = ledger.head("notes", WHERE)
    record = ledger.record(ORDER_HEADS, *ORDER_HEADS.unpack(head.entries[0].key))
    assert record is not None
    forged = replace(head.entries[0], value=encode_value(replace(record, next_ps=0)))
    with pytest.raises(ProofError, match="not in the certified state"):
        completeness(story, story.order, replace(head, entries=(forged,)))


def test_a_head_is_fresh_by_its_headers_time_only(story: Story) -> None:
    ledger = story.ledger
    view = believe(ledger, ledger.head("notes", WHERE, time=100_000).anchor)
    assert is_fresh(view, 105_000, 5_000)
    assert is_fresh(view, 90_000, 5_000)  # the reader's clock is behind
    assert not is_fresh(view, 105_001, 5_000)


# -- certificates --------------------------------------------------------------------------------------------------


def test_a_header_needs_a_quorum(story: Story) -> None:
    delivery = story.delivery
    weak = story.ledger.certify(delivery.anchor.header, signers=(0, 1))
    with pytest.raises(ProofError, match="not certified by a quorum"):
        story.check(replace(delivery, anchor=weak))


def test_only_certified_readers_look_at_certificates(story: Story) -> None:
    ledger = story.ledger
    weak = ledger.certify(ledger.anchor().header, signers=(0, 1))
    with pytest.raises(ProofError):
        ledger.reader(story.carol).view(weak)
    for level in ("quorum", "trusted"):
        view = ledger.reader(story.carol, level).view(weak)
        assert (view.height, view.time) == (ledger.height, ledger.time)


def test_a_certificate_is_of_one_header(story: Story) -> None:
    delivery = story.delivery
    other = replace(delivery.anchor.header, state_root=bytes(32))
    with pytest.raises(ProofError, match="certificate is not of the header"):
        story.check(replace(delivery, anchor=replace(delivery.anchor, header=other)))


def test_a_certificate_of_other_keys_is_noticed(story: Story) -> None:
    delivery = story.delivery
    votes = replace(delivery.anchor.qc.votes, signature=bytes(len(delivery.anchor.qc.votes.signature)))
    forged = replace(delivery.anchor, qc=replace(delivery.anchor.qc, votes=votes))
    with pytest.raises(ProofError, match="not certified by a quorum"):
        story.check(replace(delivery, anchor=forged))


def test_a_block_outside_the_certified_history_is_noticed(story: Story) -> None:
    delivery = story.delivery
    block = delivery.blocks[0]
    header = replace(block.proof.header, time=block.proof.header.time + 1)
    with pytest.raises(ProofError, match="not in the certified history"):
        story.check(changed(delivery, 0, replace(block, proof=replace(block.proof, header=header))))


def _messages(shown: list[tuple[Message, ...]]) -> list[Message]:
    return [message for block in shown for message in block]
