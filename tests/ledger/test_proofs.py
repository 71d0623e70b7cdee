"""A proof of receipts holds for one block, one place in it, and one number of receipts, as the history certifies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from tests.ledger.shard import GENESIS, Shard, staged, told

from parley.applications import DATA_SHARD
from parley.consensus.types import Header
from parley.crypto import merkle
from parley.crypto.merkle import MultiProof
from parley.ledger import history, layout
from parley.ledger.proofs import BlockProof, Certified, ProofError, Trust, history_leaf, history_leaf_of
from parley.replica.chain import Chain

MOST = 40  # receipts that a forged proof pretends


def certified(shard: Shard) -> Certified:
    return Trust(GENESIS, DATA_SHARD.decode_leaf).certified(shard.anchor())


def blocks(shard: Shard) -> Iterator[tuple[Header, tuple[bytes, ...], merkle.Proof]]:
    """Executed and certified blocks with receipts, and their places in the history."""
    size = shard.anchor().header.executed_height
    for height in range(1, size + 1):
        leaves = layout.decode_receipts(shard.store.entries[layout.receipts(height)])
        block = Chain(shard.store).block(height)
        assert block is not None
        if leaves:
            path = history.prove(lambda node: shard.store.get(b"h/" + node), height - 1, size)
            yield block.header, leaves, path


def shown(shard: Shard) -> Iterator[BlockProof]:
    """Of every receipt alone, and of the first and last of each block together."""
    for header, leaves, path in blocks(shard):
        for places in ([at] for at in range(len(leaves))):
            some = tuple(leaves[at] for at in places)
            yield BlockProof(header, merkle.root(leaves), path, some, merkle.prove_many(leaves, places))
        if len(leaves) > 1:
            ends = merkle.prove_many(leaves, [0, len(leaves) - 1])
            yield BlockProof(header, merkle.root(leaves), path, (leaves[0], leaves[-1]), ends)


def moved(proof: BlockProof) -> Iterator[MultiProof]:
    """Other sizes and places of the same receipt under which all hashes fit."""
    right = proof.receipts
    for size in range(1, MOST):
        for index in range(size):
            forged = MultiProof(size, (index,), right.siblings)
            if forged != right and merkle.verify_many(proof.receipts_root, proof.leaves, forged):
                yield forged


@pytest.mark.parametrize("shard", [told, staged])
def test_every_receipt_is_proved_at_its_place(shard: Callable[[], Shard]) -> None:
    known = certified(shard())
    proofs = list(shown(shard()))
    assert any(proof.receipts.size > 4 for proof in proofs) == (shard is staged)
    for proof in proofs:
        assert known.leaves(proof) == tuple(map(DATA_SHARD.decode_leaf, proof.leaves))


def test_another_size_or_index_of_the_receipts_is_refused_although_all_hashes_fit_p2() -> None:
    known = certified(staged())
    forged = 0
    for proof in shown(staged()):
        if len(proof.leaves) > 1:
            continue
        for other in moved(proof):
            assert merkle.verify_many(proof.receipts_root, proof.leaves, other)
            assert (other.size, other.indices) != (proof.receipts.size, proof.receipts.indices)
            with pytest.raises(ProofError, match="not in the certified history"):
                known.leaves(replace(proof, receipts=other))
            forged += 1
    assert forged > 10


def test_another_index_in_a_tree_of_the_right_size_does_not_fit_p2() -> None:
    known = certified(staged())
    for proof in shown(staged()):
        right = proof.receipts
        for index in range(right.size):
            if len(proof.leaves) == 1 and (index,) != right.indices:
                with pytest.raises(ProofError, match="not those of block"):
                    known.leaves(replace(proof, receipts=replace(right, indices=(index,))))


@pytest.mark.parametrize("size", [-1, 0, 2**32, 2**64, 2**200])
def test_a_number_of_receipts_that_no_block_has_is_refused(size: int) -> None:
    for proof in shown(told()):
        with pytest.raises(ProofError, match="cannot have"):
            certified(told()).leaves(replace(proof, receipts=replace(proof.receipts, size=size)))


def test_the_leaf_of_the_history_binds_everything_that_a_proof_relies_on() -> None:
    leaves = (b"one", b"two", b"three")
    leaf = history_leaf_of(7, bytes(32), leaves)
    assert leaf == history_leaf(7, bytes(32), merkle.root(leaves), 3)
    others = {
        history_leaf(8, bytes(32), merkle.root(leaves), 3),
        history_leaf(7, bytes([1] * 32), merkle.root(leaves), 3),
        history_leaf(7, bytes(32), merkle.root(leaves[:2]), 3),
        history_leaf(7, bytes(32), merkle.root(leaves), 2),
        history_leaf(7, bytes(32), merkle.root(leaves), 4),
    }
    assert len(others | {leaf}) == 6


def test_no_receipts_are_a_number_too() -> None:
    assert history_leaf_of(1, bytes(32), ()) == history_leaf(1, bytes(32), merkle.EMPTY_ROOT, 0)


def test_a_header_of_another_version_of_the_application_is_refused_p24() -> None:
    anchor = told().anchor()
    assert anchor.header.version == GENESIS.application
    other = replace(anchor, header=replace(anchor.header, version=GENESIS.application + 1))
    with pytest.raises(ProofError, match=f"version {GENESIS.application + 1} of the application"):
        Trust(GENESIS, DATA_SHARD.decode_leaf).certified(other)
