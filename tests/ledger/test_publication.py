"""The proof file of a publication holds with the genesis file alone, and with no byte of it changed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.application.world import make_genesis
from tests.ledger.shard import GENESIS, told

from parley.applications import DATA_SHARD
from parley.crypto import merkle
from parley.ledger import history, layout
from parley.ledger.proofs import BlockProof, ProofError, Trust
from parley.model import leaves as tree
from parley.model.batches import open_batch
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.proof import (
    MAX_PROOF,
    MessageProof,
    PublicationProof,
    check_publication,
    decode_publication,
    encode_publication,
)
from parley.modules.publishing.receipts import first_offset
from parley.replica.chain import Chain

TRUST = Trust(GENESIS, DATA_SHARD.decode_leaf)
decode_leaf = DATA_SHARD.decode_leaf


def published(height: int) -> tuple[int, tuple[bytes, ...], BatchReceipt] | None:
    leaves = layout.decode_receipts(told().store.entries[layout.receipts(height)])
    first = decode_leaf(leaves[0]) if leaves else None
    if isinstance(first, BatchReceipt) and first_offset(first) is not None:
        return height, leaves, first
    return None


def proof(*, with_message: bool = True) -> PublicationProof:
    """Of the second message of the last published batch."""
    shard = told()
    anchor = shard.anchor()
    size = anchor.header.executed_height
    height, leaves, receipt = next(filter(None, map(published, range(size, 0, -1))))
    block = Chain(shard.store).block(height)
    assert block is not None
    _, batch = open_batch(shard.store.entries[layout.batch(receipt.digest)], GENESIS.chain, 0)
    hashes = tree.leaves_of(batch.messages)
    message = MessageProof(batch.messages[1], tree.prove(hashes, 1)) if with_message else None
    path = history.prove(lambda node: shard.store.get(b"h/" + node), height - 1, size)
    shown = BlockProof(block.header, merkle.root(leaves), path, leaves[:1], merkle.prove_many(leaves, [0]))
    return PublicationProof.of(
        (receipt, shown, anchor), (batch.header, tree.root(hashes), batch.signature), message
    )


def published_in(shown: PublicationProof) -> BatchReceipt:
    leaf = decode_leaf(shown.receipt.leaves[0])
    assert isinstance(leaf, BatchReceipt)
    return leaf


def check(data: bytes) -> None:
    check_publication(decode_publication(data), TRUST)


@pytest.mark.parametrize("with_message", [True, False])
def test_a_proof_holds_with_the_genesis_file_alone(with_message: bool) -> None:
    shown = proof(with_message=with_message)
    check(encode_publication(shown))
    assert (shown.topic, shown.publisher) == ("wards", "hospital-a/alice")
    assert shown.offset == (13 if with_message else 12)
    assert shown.count == (1 if with_message else 3)


def test_no_single_byte_can_be_changed() -> None:
    data = bytearray(encode_publication(proof()))
    for at in range(len(data)):
        for flip in (0x01, 0x20, 0x80):
            data[at] ^= flip
            with pytest.raises(ProofError):
                check(bytes(data))
            data[at] ^= flip


def test_a_proof_is_worth_nothing_in_another_network() -> None:
    with pytest.raises(ProofError, match="another network"):
        check_publication(proof(), Trust(make_genesis(), decode_leaf))


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "gardens"},
        {"offset": 0},
        {"publisher": "hospital-b/bob"},
        {"time": 1},
        {"height": 1},
        {"count": 2},
        {"epochs": (b"x",)},
        {"root": bytes(32)},
        {"signature": bytes(64)},
        {"message": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nothing_in_the_file_is_taken_at_its_word(change: dict[str, object]) -> None:
    with pytest.raises(ProofError):
        check_publication(replace(proof(), **change), TRUST)


def test_a_message_is_proved_at_its_place_in_the_batch_and_nowhere_else() -> None:
    shown = proof()
    assert shown.message is not None
    place = shown.message.path
    assert (place.index, len(place.group), shown.batch.count) == (1, 3 * 32, 3)
    for moved in (
        replace(place, index=0),
        replace(place, index=2),
        replace(place, group=place.group[32:]),
        replace(place, group=place.group + bytes(32)),
        replace(place, path=replace(place.path, size=3, index=1)),
    ):
        wrong = PublicationProof.of(
            (published_in(shown), shown.receipt, shown.anchor),
            (shown.batch, shown.root, shown.signature),
            replace(shown.message, path=moved),
        )
        with pytest.raises(ProofError, match="not in the batch"):
            check_publication(wrong, TRUST)


def test_a_file_of_the_first_format_is_refused() -> None:
    data = encode_publication(proof())
    assert data.count(b"parley publication proof 3") == 1
    with pytest.raises(ProofError):
        check(data.replace(b"parley publication proof 3", b"parley publication proof 2"))


def test_a_header_that_too_few_voted_for_proves_nothing() -> None:
    shown = proof()
    votes = shown.anchor.qc.votes
    few = replace(votes, bitmap=b"\x03", signature=votes.signature[:128])
    weak = replace(shown, anchor=replace(shown.anchor, qc=replace(shown.anchor.qc, votes=few)))
    with pytest.raises(ProofError, match="quorum"):
        check_publication(weak, TRUST)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b"[]\n", b" " * (MAX_PROOF + 1)])
def test_whatever_is_not_a_proof_is_refused(data: bytes) -> None:
    with pytest.raises(ProofError):
        decode_publication(data)
