"""A proof of receipts holds for one block, one place in it, and one number of receipts, as the history certifies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from msgspec.structs import replace
from tests.ledger.shard import GENESIS, KEYS, Shard, staged, told

from parley.applications import DATA_SHARD
from parley.consensus.committee import committees_of
from parley.consensus.types import QC, Header
from parley.crypto import merkle
from parley.crypto.merkle import MultiProof
from parley.crypto.qc import Ed25519List
from parley.ledger import history, layout, proofs, state_map
from parley.ledger.proofs import (
    Anchor,
    BlockProof,
    Certified,
    ProofError,
    StateEntry,
    Trust,
    history_leaf,
    history_leaf_of,
)
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


# -- headers ---------------------------------------------------------------------------------------------------------------


def trust() -> Trust:
    return Trust(GENESIS, DATA_SHARD.decode_leaf)


def signed(header: Header, signers: Iterable[int] = (0, 1, 2), view: int | None = None) -> Anchor:
    """As if these brokers had voted for the header, whatever it says."""
    view = header.view if view is None else view
    message = committees_of(GENESIS)[0].instance.vote_message(view, header.id())
    votes = {index: KEYS[index].sign(message) for index in signers}
    return Anchor(
        header, QC(0, view, header.id(), Ed25519List([key.public for key in KEYS]).aggregate(votes))
    )


def header(**fields: object) -> Header:
    return replace(told().anchor().header, **fields)


def test_a_header_that_a_quorum_signed_is_believed() -> None:
    assert trust().certified(signed(header(time=77))).time == 77


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"chain": bytes(32)}, "another network"),
        ({"shard": 1}, "belongs to shard 1 in epoch 0; what is believed is shard 0 in epoch 0"),
        ({"epoch": 1}, "belongs to shard 0 in epoch 1; what is believed is shard 0 in epoch 0"),
    ],
)
def test_a_header_of_another_network_shard_or_epoch_is_refused(
    fields: dict[str, object], problem: str
) -> None:
    with pytest.raises(ProofError, match=problem):
        trust().certified(signed(header(**fields)))


def test_a_header_of_an_older_version_is_refused() -> None:
    with pytest.raises(ProofError, match=f"made by version {GENESIS.application - 1}"):
        trust().certified(signed(header(version=GENESIS.application - 1)))


def test_a_certificate_of_another_header_or_view_is_refused() -> None:
    other = signed(header(time=77))
    for anchor in (Anchor(header(), other.qc), signed(header(), view=header().view + 1)):
        with pytest.raises(ProofError, match="not of the header"):
            trust().certified(anchor)


def test_a_header_that_too_few_signed_or_others_than_it_says_is_refused() -> None:
    few = signed(header(), signers=(0, 1))
    right = signed(header())
    forged = replace(right, qc=replace(right.qc, votes=signed(header(), signers=(1, 2, 3)).qc.votes))
    forged = replace(forged, qc=replace(forged.qc, votes=replace(forged.qc.votes, bitmap=b"\x07")))
    for anchor in (few, forged):
        with pytest.raises(ProofError, match="not certified by a quorum"):
            trust().certified(anchor)


def test_a_forgery_of_a_header_that_was_believed_before_is_refused() -> None:
    known = trust()
    right = signed(header())
    known.certified(right)
    for anchor in (signed(header(), signers=(0,)), replace(right, header=header(time=77))):
        with pytest.raises(ProofError):
            known.certified(anchor)


def test_a_header_that_was_refused_is_refused_again() -> None:
    known = trust()
    for _ in range(2):
        with pytest.raises(ProofError):
            known.certified(signed(header(), signers=(0,)))


def test_few_headers_are_remembered_the_newest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "_REMEMBERED", 2)
    known = trust()
    anchors = [signed(header(time=time)) for time in (1, 2, 3)]
    for anchor in anchors:
        known.certified(anchor)
    assert list(known._passed) == anchors[1:]


# -- blocks ----------------------------------------------------------------------------------------------------------------


def test_a_block_at_another_place_or_in_a_history_of_another_size_is_refused_although_all_hashes_fit() -> (
    None
):
    """The root of the history binds neither: the height of the block and that of the certified header do."""
    known = certified(told())
    forged = 0
    for proof in shown(told()):
        right, leaf = proof.history, history_leaf_of(proof.header.height, proof.header.id(), proof.leaves)
        for size in range(1, 2 * right.size):
            for index in range(size):
                moved = merkle.Proof(index, size, right.path)
                fits = merkle.verify(known.anchor.header.history_root, leaf, moved)
                if proof.receipts.size == 1 and fits and moved != right:
                    with pytest.raises(ProofError, match="another place or another size"):
                        known.leaves(replace(proof, history=moved))
                    forged += 1
    assert forged


def test_a_block_that_is_not_in_the_history_is_refused() -> None:
    known = certified(told())
    for proof in shown(told()):
        for wrong in (
            replace(proof, header=replace(proof.header, time=proof.header.time + 1)),
            replace(proof, receipts_root=bytes(32)),
            replace(proof, history=replace(proof.history, path=proof.history.path[::-1])),
        ):
            with pytest.raises(ProofError, match="not in the certified history"):
                known.leaves(wrong)


def test_receipts_that_are_not_the_blocks_are_refused() -> None:
    known = certified(told())
    for proof in shown(told()):
        with pytest.raises(ProofError, match="not those of block"):
            known.leaves(replace(proof, leaves=(proof.leaves[0] + b"\0", *proof.leaves[1:])))


def test_a_receipt_that_cannot_be_read_is_refused_although_a_quorum_certified_it() -> None:
    leaves = (b"no receipt",)
    block = header(height=1)
    leaf = history_leaf_of(1, block.id(), leaves)
    anchor = signed(header(executed_height=1, history_root=merkle.root([leaf])))
    path, receipts = merkle.prove([leaf], 0), merkle.prove_many(leaves, [0])
    with pytest.raises(ProofError, match="cannot be read"):
        trust().certified(anchor).leaves(BlockProof(block, merkle.root(leaves), path, leaves, receipts))


# -- entries of the state --------------------------------------------------------------------------------------------------

STATE = {b"a": b"1", b"b": b"2", b"c": b"3"}


class Nodes(dict[bytes, bytes]):
    """The state map of `STATE`."""

    def __init__(self) -> None:
        self.root, changes = state_map.update(self, STATE)
        super().__init__({path: node for path, node in changes.items() if node is not None})


def entry(key: bytes, /, **fields: object) -> StateEntry:
    return replace(StateEntry(key, STATE.get(key), state_map.prove(Nodes(), key)), **fields)


def state() -> Certified:
    return trust().certified(signed(header(state_root=Nodes().root)))


def test_entries_of_the_certified_state_are_believed_and_so_is_their_absence() -> None:
    assert [state().value(entry(key), key) for key in (b"a", b"b", b"c", b"d")] == [b"1", b"2", b"3", None]


@pytest.mark.parametrize(
    ("shown_entry", "asked"),
    [
        (entry(b"b"), b"a"),
        (entry(b"d"), b"a"),
        (entry(b"b", key=b"a"), b"a"),
        (entry(b"d", key=b"a"), b"a"),
        (entry(b"a", value=b"2"), b"a"),
        (entry(b"a", value=None), b"a"),
        (entry(b"d", value=b"1"), b"d"),
    ],
    ids=[
        "another key",
        "the absence of another key",
        "another key's proof",
        "the absence of another key under this one",
        "another value",
        "absence of what is there",
        "a value of what is not there",
    ],
)
def test_an_entry_that_the_certified_state_does_not_have_is_refused(
    shown_entry: StateEntry, asked: bytes
) -> None:
    with pytest.raises(ProofError):
        state().value(shown_entry, asked)


def test_an_entry_of_another_state_is_refused() -> None:
    with pytest.raises(ProofError, match="not in the certified state"):
        trust().certified(signed(header(state_root=bytes(32)))).value(entry(b"a"), b"a")
