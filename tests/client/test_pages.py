"""Reading by offset from one broker that may show anything: whatever is not the published log is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace
from tests.application.world import Actor, actor
from tests.client.columns import checked_both_ways
from tests.client.ledger import Ledger, believe, note

from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.client.beliefs import Stale, UnverifiedView
from parley.client.messages import Message
from parley.client.verification import Question, check_fetched
from parley.ledger.proofs import ProofError
from parley.model.batches import Withheld
from parley.model.receipts import BatchReceipt, encode_leaf
from parley.modules.publishing.proof import check_publication, decode_publication, encode_publication
from parley.modules.publishing.receipts import Published
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import Fetched, FetchedBatch, FetchedBlock, Skipped

SECRET = 'role == "doctor"'


@dataclass
class Story:
    """Seven messages in four batches and three blocks, one of them for doctors; Carol is a nurse."""

    ledger: Ledger
    carol: Actor

    def fetched(self, offset: int = 0) -> Fetched:
        return self.ledger.fetched(self.carol, "notes", offset)

    def check(self, answer: Fetched, offset: int = 0, floor: int = 0) -> tuple[Message, ...]:
        question = Question("notes", 0, offset, floor)
        view = believe(self.ledger, answer.anchor)
        return checked_both_ways(view, answer, self.ledger.reader(self.carol), question).messages


@pytest.fixture
def story() -> Story:
    ledger = Ledger()
    alice, bob = ledger.client("alice"), ledger.client("bob", "hospital-b")
    carol = ledger.client("carol", role="nurse")
    ledger.topic("notes", partitions=2)
    ledger.topic("other")
    ledger.publish(alice, "notes", note("zero"), note("one"), note("two"))
    ledger.order(
        ledger.publication(alice, "notes", note("three"), note("for doctors", SECRET)),
        ledger.publication(bob, "notes", note("five")),
        ledger.publication(bob, "other", note("elsewhere")),
        ledger.publication(bob, "notes", note("another partition"), partition=1),
    )
    ledger.publish(bob, "notes", note("six"))
    return Story(ledger, carol)


def with_batch(answer: Fetched, block: int, batch: int, changed: FetchedBatch) -> Fetched:
    batches = list(answer.blocks[block].batches)
    batches[batch] = changed
    return with_block(answer, block, replace(answer.blocks[block], batches=tuple(batches)))


def with_block(answer: Fetched, at: int, changed: FetchedBlock) -> Fetched:
    blocks = list(answer.blocks)
    blocks[at] = changed
    return replace(answer, blocks=tuple(blocks))


def test_an_honest_page_is_the_log(story: Story) -> None:
    messages = story.check(story.fetched())
    assert [(m.offset, None if m.empty else m.text(), m.publisher, m.empty) for m in messages] == [
        (0, "zero", "hospital-a/alice", False),
        (1, "one", "hospital-a/alice", False),
        (2, "two", "hospital-a/alice", False),
        (3, "three", "hospital-a/alice", False),
        (4, None, "hospital-a/alice", True),
        (5, "five", "hospital-b/bob", False),
        (6, "six", "hospital-b/bob", False),
    ]
    assert all(m.ps is None for m in messages)


@pytest.mark.parametrize("offset", range(8))
def test_a_page_begins_where_it_was_asked_to(story: Story, offset: int) -> None:
    assert [m.offset for m in story.check(story.fetched(offset), offset)] == list(range(offset, 7))


def test_every_message_has_a_proof_for_third_parties(story: Story) -> None:
    for message in story.check(story.fetched(1), 1):
        data = encode_publication(message.proof())
        proof = decode_publication(data)
        check_publication(proof, story.ledger.trust)
        if message.empty:
            assert proof.message is None
            assert proof.offset <= message.offset < proof.offset + proof.count
        else:
            assert (proof.offset, proof.count) == (message.offset, 1)
            assert proof.message is not None
            assert proof.message.message.payload == message.value


def test_a_truncated_batch_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[0].batches[0]
    with pytest.raises(ProofError, match="not the one that its receipt names"):
        story.check(with_batch(answer, 0, 0, replace(batch, contents=batch.contents[:2])))


def test_a_truncated_batch_with_a_header_to_match_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[0].batches[0]
    shorter = replace(batch, header=replace(batch.header, count=2), contents=batch.contents[:2])
    with pytest.raises(ProofError, match="not the one that its receipt names"):
        story.check(with_batch(answer, 0, 0, shorter))


def test_reordered_messages_are_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[0].batches[0]
    with pytest.raises(ProofError, match="not the one that its receipt names"):
        story.check(with_batch(answer, 0, 0, replace(batch, contents=batch.contents[::-1])))


def test_a_forged_payload_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[2].batches[0]
    with pytest.raises(ProofError, match="not the one that its receipt names"):
        story.check(with_batch(answer, 2, 0, replace(batch, contents=(note("forged"),))))


def test_a_forged_signature_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[2].batches[0]
    with pytest.raises(ProofError, match="not signed by its publisher"):
        story.check(with_batch(answer, 2, 0, replace(batch, signature=bytes(64))))


def test_a_message_that_is_left_out_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[0].batches[0]
    contents = (batch.contents[0], Skipped(batch.contents[1].leaf()), batch.contents[2])
    with pytest.raises(ProofError, match="offset 1 is left out"):
        story.check(with_batch(answer, 0, 0, replace(batch, contents=contents)))


def test_a_skipped_block_is_noticed(story: Story) -> None:
    answer = story.fetched()
    with pytest.raises(ProofError, match="offset 3 was to come next"):
        story.check(replace(answer, blocks=(answer.blocks[0], answer.blocks[2])))


def test_a_page_that_begins_later_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="offset 0 was to come next"):
        story.check(story.fetched(3))


def test_a_page_that_begins_earlier_is_noticed(story: Story) -> None:
    with pytest.raises(ProofError, match="offset 3 was to come next"):
        story.check(story.fetched(0), 3)


def test_a_replayed_block_is_noticed(story: Story) -> None:
    answer = story.fetched()
    with pytest.raises(ProofError, match="offset 3 was to come next"):
        story.check(replace(answer, blocks=(answer.blocks[0], answer.blocks[0])))


def test_another_partitions_batch_is_noticed(story: Story) -> None:
    other = story.ledger.fetched(story.carol, "notes", partition=1)
    with pytest.raises(ProofError, match="another topic or partition"):
        story.check(replace(story.fetched(), blocks=other.blocks))


def test_another_partitions_batch_is_noticed_the_other_way_round(story: Story) -> None:
    answer = story.ledger.fetched(story.carol, "notes", partition=1)
    lie = replace(answer, blocks=story.fetched().blocks)
    with pytest.raises(ProofError, match="another topic or partition"):
        check_fetched(
            believe(story.ledger, lie.anchor),
            lie,
            story.ledger.reader(story.carol),
            Question("notes", 1, 0, 0),
        )


def test_batches_do_not_overlap(story: Story) -> None:
    """Also for readers that look at no proof."""
    answer = story.fetched()
    block = answer.blocks[1]
    first, second = (DATA_SHARD.decode_leaf(leaf) for leaf in block.proof.leaves)
    assert isinstance(first, BatchReceipt)
    leaves = (encode_leaf(replace(first, outcome=Published(2))), encode_leaf(second))
    lie = with_block(answer, 1, replace(block, proof=replace(block.proof, leaves=leaves)))
    with pytest.raises(ProofError, match="offset 3 was to come next, not a batch of 2 from 2 on"):
        check_fetched(
            UnverifiedView(lie.anchor, DATA_SHARD.decode_leaf),
            lie,
            story.ledger.reader(story.carol, "quorum"),
            Question("notes", 0, 0, 0),
        )


def test_a_receipt_that_counts_more_than_its_batch_is_noticed(story: Story) -> None:
    """Otherwise readers that look at no proof would pass over what is left out, or take it for the end."""
    answer = story.fetched()
    block = answer.blocks[0]
    (leaf,) = (DATA_SHARD.decode_leaf(leaf) for leaf in block.proof.leaves)
    assert isinstance(leaf, BatchReceipt)
    proof = replace(block.proof, leaves=(encode_leaf(replace(leaf, count=leaf.count + 2)),))
    alone = replace(answer, blocks=(replace(block, proof=proof),))
    for lie, offset in ((with_block(answer, 0, alone.blocks[0]), 0), (alone, 3)):
        with pytest.raises(ProofError):
            checked_both_ways(
                UnverifiedView(lie.anchor, DATA_SHARD.decode_leaf),
                lie,
                story.ledger.reader(story.carol, "quorum"),
                Question("notes", 0, offset, 0),
            )


def test_another_partitions_head_is_noticed(story: Story) -> None:
    head = story.ledger.entry(HEADS.key("notes", 1))
    with pytest.raises(ProofError, match="another entry"):
        story.check(replace(story.fetched(7), head=head, blocks=()), 7)


def test_a_partition_that_does_not_exist_is_not_read_from(story: Story) -> None:
    answer = replace(story.fetched(), head=story.ledger.entry(HEADS.key("notes", 7)), blocks=())
    with pytest.raises(ProofError, match="partition 7 does not exist"):
        check_fetched(
            believe(story.ledger, answer.anchor),
            answer,
            story.ledger.reader(story.carol),
            Question("notes", 7, 0, 0),
        )


def test_the_receipt_of_something_else_is_noticed(story: Story) -> None:
    answer = story.fetched()
    registration = story.ledger.proof(1, [0])
    with pytest.raises(ProofError, match="is none"):
        story.check(with_block(answer, 0, replace(answer.blocks[0], proof=registration)))


def test_a_batch_without_its_receipt_is_noticed(story: Story) -> None:
    answer = story.fetched()
    block = answer.blocks[1]
    with pytest.raises(ProofError, match="as many receipts as batches"):
        story.check(with_block(answer, 1, replace(block, batches=block.batches[:1])))
    fewer = replace(block, proof=story.ledger.proof(block.proof.header.height, [0]))
    with pytest.raises(ProofError, match="as many receipts as batches"):
        story.check(with_block(answer, 1, fewer))


def test_nothing_is_shown_only_at_the_end(story: Story) -> None:
    with pytest.raises(ProofError, match="there are offsets up to 7, and none from 5 on is shown"):
        story.check(replace(story.fetched(5), blocks=()), 5)
    assert story.check(story.fetched(7), 7) == ()


def test_a_forged_end_is_noticed(story: Story) -> None:
    answer = story.fetched(5)
    forged = replace(answer.head, value=encode_value(PartitionRecord(5, 0)))
    with pytest.raises(ProofError, match="not in the certified state"):
        story.check(replace(answer, head=forged, blocks=()), 5)


def test_an_end_from_before_what_was_seen_is_not_taken(story: Story) -> None:
    with pytest.raises(Stale):
        story.check(story.fetched(7), 7, floor=story.ledger.height + 1)


def test_old_messages_are_taken_even_from_a_broker_that_lags(story: Story) -> None:
    answer = story.fetched()
    assert len(story.check(replace(answer, blocks=answer.blocks[:1]), floor=story.ledger.height + 1)) == 3


def test_withholding_what_the_rule_allows_is_noticed(story: Story) -> None:
    answer = story.fetched()
    batch = answer.blocks[2].batches[0]
    (content,) = batch.contents
    assert not isinstance(content, Withheld | Skipped)
    lie = with_batch(answer, 2, 0, replace(batch, contents=(content.withheld(),)))
    with pytest.raises(ProofError, match="allows this reader"):
        story.check(lie)


def test_withholding_needs_proof_of_the_readers_attributes(story: Story) -> None:
    with pytest.raises(ProofError, match="without a proof"):
        story.check(replace(story.fetched(), reader=None))
    with pytest.raises(ProofError, match="another entry"):
        story.check(replace(story.fetched(), reader=story.ledger.entry(CLIENTS.key(actor("alice").key))))
