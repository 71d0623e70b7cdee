"""Receipts and entries of the state, as one broker shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.application.world import Signed
from tests.client.ledger import Ledger, believe, note

from parley.applications import DATA_SHARD
from parley.client.beliefs import Stale, UnverifiedView, check_entries, check_receipt, record_of
from parley.client.errors import ParleyError
from parley.client.messages import Evidence, Receipt
from parley.client.proofs import narrowed
from parley.crypto import merkle
from parley.ledger.proofs import BlockProof, ProofError
from parley.model.receipts import encode_leaf
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.modules.publishing.receipts import Published
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.receipts import Closed
from parley.modules.topics.tables import TOPICS
from parley.net.messages import Receipted

LEAVES = st.lists(st.binary(max_size=4), min_size=1, max_size=40)


@dataclass
class Story:
    ledger: Ledger
    first: Signed
    second: Signed

    def check(self, answer: Receipted, batch: Signed) -> object:
        return check_receipt(believe(self.ledger, answer.anchor), answer, batch.digest)


@pytest.fixture
def story() -> Story:
    ledger = Ledger()
    alice, bob = ledger.client("alice"), ledger.client("bob")
    ledger.topic("notes")
    first = ledger.publication(alice, "notes", note("one"), note("two"), note("three"))
    second = ledger.publication(bob, "notes", note("four"))
    ledger.order(first, second)
    ledger.apply()
    return Story(ledger, first, second)


def receipt_of(story: Story, index: int) -> Receipt:
    ledger = story.ledger
    answer = ledger.receipted(story.first.digest)
    ordered = check_receipt(believe(ledger, answer.anchor), answer, story.first.digest)
    batch = ledger.body(story.first.digest)
    leaves = tuple(message.leaf() for message in batch.messages)
    evidence = Evidence(
        ledger.trust,
        batch.header,
        leaves,
        batch.signature,
        ordered.receipt,
        (ordered.block, 0),
        ordered.anchor,
    )
    assert isinstance(ordered.receipt.outcome, Published)
    return Receipt(
        "notes",
        0,
        ordered.receipt.outcome.first_offset + index,
        ordered.height,
        ordered.time,
        ordered.receipt.client,
        "certified",
        batch.messages[index],
        index,
        lambda: evidence,
    )


def test_an_honest_receipt_is_believed(story: Story) -> None:
    answer = story.ledger.receipted(story.second.digest)
    ordered = check_receipt(believe(story.ledger, answer.anchor), answer, story.second.digest)
    assert ordered.receipt.outcome == Published(3)
    assert ordered.receipt.client == "hospital-a/bob"


def test_another_batchs_receipt_is_noticed(story: Story) -> None:
    for shown, asked in ((story.first, story.second), (story.second, story.first)):
        with pytest.raises(ProofError, match="another batch"):
            story.check(story.ledger.receipted(shown.digest), asked)


def test_a_receipt_among_others_is_noticed(story: Story) -> None:
    answer = story.ledger.receipted(story.first.digest)
    both = story.ledger.proof(answer.proof.header.height, [0, 1])
    with pytest.raises(ProofError, match="not one receipt"):
        story.check(replace(answer, proof=both), story.first)


def test_a_leaf_that_is_no_receipt_is_noticed(story: Story) -> None:
    answer = story.ledger.receipted(story.first.digest)
    end = encode_leaf(Closed("notes", 0, bytes(32), (1, 0), 0))
    lie = replace(answer, proof=replace(answer.proof, leaves=(end,)))
    with pytest.raises(ProofError, match="not one receipt"):
        check_receipt(UnverifiedView(answer.anchor, DATA_SHARD.decode_leaf), lie, story.first.digest)


def test_a_forged_receipt_is_noticed(story: Story) -> None:
    answer = story.ledger.receipted(story.first.digest)
    (leaf,) = believe(story.ledger, answer.anchor).leaves(answer.proof)
    forged = encode_leaf(replace(leaf, outcome=Published(1_000)))
    with pytest.raises(ProofError, match="not those of block"):
        story.check(replace(answer, proof=replace(answer.proof, leaves=(forged,))), story.first)


def test_a_receipt_under_an_older_header_is_noticed(story: Story) -> None:
    """The history of the older header ends before the block."""
    old = Ledger().anchor()
    answer = story.ledger.receipted(story.first.digest)
    with pytest.raises(ProofError, match="another place or another size"):
        story.check(replace(answer, anchor=old), story.first)


def test_a_leaf_that_cannot_be_read_is_the_brokers_fault(story: Story) -> None:
    answer = story.ledger.receipted(story.first.digest)
    view = UnverifiedView(answer.anchor, DATA_SHARD.decode_leaf)
    with pytest.raises(ProofError, match="cannot be read"):
        check_receipt(view, replace(answer, proof=replace(answer.proof, leaves=(b"\xc1",))), b"")


def test_entries_are_those_that_were_asked_for(story: Story) -> None:
    ledger = story.ledger
    keys = [TOPICS.key("notes"), CLIENTS.key(bytes(32))]
    answer = ledger.proven(*keys)
    view = believe(ledger, answer.anchor)
    value, nothing = check_entries(view, answer, keys, floor=0)
    record = record_of(TOPICS, value)
    assert record is not None
    assert (record.name, nothing) == ("notes", None)
    with pytest.raises(ProofError, match="another entry"):
        check_entries(view, answer, keys[::-1], floor=0)
    with pytest.raises(ProofError, match="2 entries were shown where 1"):
        check_entries(view, answer, keys[:1], floor=0)
    with pytest.raises(ProofError, match="2 entries were shown where 3"):
        check_entries(view, answer, [*keys, b"more"], floor=0)
    with pytest.raises(Stale):
        check_entries(view, answer, keys, floor=ledger.height + 1)
    assert check_entries(
        UnverifiedView(answer.anchor, DATA_SHARD.decode_leaf), answer, keys, floor=ledger.height
    ) == (value, nothing)


def test_hiding_an_entry_is_noticed(story: Story) -> None:
    answer = story.ledger.proven(TOPICS.key("notes"))
    lie = replace(answer, entries=(replace(answer.entries[0], value=None),))
    with pytest.raises(ProofError, match="not in the certified state"):
        check_entries(believe(story.ledger, answer.anchor), lie, [TOPICS.key("notes")], floor=0)


def test_an_unproven_entry_is_still_the_one_that_was_asked_for(story: Story) -> None:
    answer = story.ledger.proven(TOPICS.key("notes"))
    for other in ("abc", "other"):
        with pytest.raises(ProofError, match="another entry"):
            check_entries(
                UnverifiedView(answer.anchor, DATA_SHARD.decode_leaf), answer, [TOPICS.key(other)], floor=0
            )


def test_brokers_agree_on_a_receipt_that_they_prove_differently(story: Story) -> None:
    first = story.check(story.ledger.receipted(story.first.digest), story.first)
    story.ledger.apply()
    assert story.check(story.ledger.receipted(story.first.digest), story.first) == first


def test_a_record_that_cannot_be_read_is_the_brokers_fault() -> None:
    assert record_of(CLIENTS, None) is None
    with pytest.raises(ProofError, match="ClientRecord cannot be read"):
        record_of(CLIENTS, b"garbage")


@pytest.mark.parametrize("index", range(3))
def test_a_receipt_proves_its_message_to_third_parties(story: Story, index: int, tmp_path: Path) -> None:
    receipt = receipt_of(story, index)
    receipt.save(tmp_path / "proof.json")
    proof = decode_publication((tmp_path / "proof.json").read_bytes())
    check_publication(proof, story.ledger.trust)
    assert (proof.offset, proof.count, proof.publisher) == (index, 1, "hospital-a/alice")
    assert (tmp_path / "proof.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        receipt.save(tmp_path / "proof.json")


def test_a_receipt_proves_its_batch_without_the_message(story: Story) -> None:
    proof = receipt_of(story, 1).proof(message=False)
    check_publication(proof, story.ledger.trust)
    assert proof.message is None
    assert (proof.offset, proof.count) == (0, 3)


def test_a_proof_that_does_not_hold_is_not_handed_out(story: Story) -> None:
    """Under `quorum` the proof that came with a receipt was not looked at before."""
    receipt = receipt_of(story, 0)
    evidence = receipt._evidence()
    broken = Evidence(
        evidence.trust,
        evidence.header,
        evidence.leaves,
        bytes(64),
        evidence.receipt,
        evidence.shown,
        evidence.anchor,
    )
    with pytest.raises(ParleyError, match="not signed"):
        broken.proof(0, receipt._message)


@given(LEAVES, st.data())
def test_one_leafs_proof_comes_out_of_a_proof_of_many(leaves: list[bytes], data: st.DataObject) -> None:
    indices = sorted(data.draw(st.sets(st.integers(0, len(leaves) - 1), min_size=1)))
    at = data.draw(st.integers(0, len(indices) - 1))
    proof = BlockProof(
        Ledger().anchor().header,
        merkle.root(leaves),
        merkle.Proof(0, 1, ()),
        tuple(leaves[index] for index in indices),
        merkle.prove_many(leaves, indices),
    )
    one = narrowed(proof, at)
    assert one.leaves == (leaves[indices[at]],)
    assert one.receipts == merkle.prove_many(leaves, [indices[at]])
