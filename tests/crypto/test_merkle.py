"""Proofs hold for every leaf of every tree, for nothing else, and the mountain range is the same tree."""

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto import merkle
from parley.crypto.encoding import EncodingError
from parley.crypto.hashing import digest
from parley.crypto.merkle import MAX_LEAVES, MountainRange, MultiProof, Proof

SIZES = range(1, 71)
ROOT_OF_7 = "3a6956f71f99a639be2542dd50125c61309255edc59532404bc2dc7245052401"


def leaves_of(size: int) -> list[bytes]:
    return [b"leaf %d" % i for i in range(size)]


def rfc6962(leaves: list[bytes]) -> bytes:
    """The definition of RFC 6962, section 2.1, in our domains."""
    if not leaves:
        return digest("merkle/empty")
    if len(leaves) == 1:
        return digest("merkle/leaf", leaves[0])
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return digest("merkle/node", rfc6962(leaves[:split]), rfc6962(leaves[split:]))


def flips(node: bytes) -> list[bytes]:
    """The node with one bit of each of its bytes flipped."""
    return [node[:i] + bytes([node[i] ^ 1 << i % 8]) + node[i + 1 :] for i in range(len(node))]


def replaced(nodes: tuple[bytes, ...], at: int, node: bytes) -> tuple[bytes, ...]:
    return (*nodes[:at], node, *nodes[at + 1 :])


@given(st.lists(st.binary(max_size=20), max_size=80))
def test_the_root_is_that_of_rfc_6962(leaves: list[bytes]) -> None:
    assert merkle.root(leaves) == rfc6962(leaves)


def test_the_format_is_frozen() -> None:
    assert merkle.root(leaves_of(7)).hex() == ROOT_OF_7
    assert merkle.root([]) == merkle.EMPTY_ROOT == digest("merkle/empty")


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_of_every_tree_is_proven_at_its_index_only(size: int) -> None:
    leaves = leaves_of(size)
    root = merkle.root(leaves)
    for index, leaf in enumerate(leaves):
        proof = merkle.prove(leaves, index)
        assert (proof.index, proof.size) == (index, size)
        assert merkle.verify(root, leaf, proof)
        assert not merkle.verify(root, b"other", proof)
        for other in range(-1, size + 1):
            moved = msgspec.structs.replace(proof, index=other)
            assert merkle.verify(root, leaf, moved) == (other == index)


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 11, 33])
def test_a_proof_with_any_byte_changed_is_refused(size: int) -> None:
    leaves = leaves_of(size)
    root = merkle.root(leaves)
    for index, leaf in enumerate(leaves):
        proof = merkle.prove(leaves, index)
        assert not any(merkle.verify(other, leaf, proof) for other in flips(root))
        assert not any(merkle.verify(root, other, proof) for other in flips(leaf))
        for at, node in enumerate(proof.path):
            for other in flips(node):
                tampered = msgspec.structs.replace(proof, path=replaced(proof.path, at, other))
                assert not merkle.verify(root, leaf, tampered)


@pytest.mark.parametrize("size", SIZES)
def test_the_path_has_exactly_the_length_of_its_index(size: int) -> None:
    leaves = leaves_of(size)
    root = merkle.root(leaves)
    for index, leaf in enumerate(leaves):
        proof = merkle.prove(leaves, index)
        for path in (proof.path[:-1], proof.path[1:], (*proof.path, bytes(32)), (bytes(32), *proof.path)):
            if path != proof.path:
                assert not merkle.verify(root, leaf, msgspec.structs.replace(proof, path=path))


def test_inner_nodes_are_not_leaves() -> None:
    leaves = leaves_of(4)
    left, right = (merkle.root(half) for half in (leaves[:2], leaves[2:]))
    assert not merkle.verify(merkle.root(leaves), left, Proof(0, 2, (right,)))
    assert merkle.root([left, right]) != merkle.root(leaves)


@pytest.mark.parametrize(
    "proof",
    [
        Proof(0, 0, ()),
        Proof(1, 1, ()),
        Proof(-1, 1, ()),
        Proof(0, -1, ()),
        Proof(0, MAX_LEAVES + 1, (bytes(32),) * 41),
        Proof(0, 2, (bytes(31),)),
        Proof(0, 2, (bytes(33),)),
        Proof(0, 1, (bytes(32),) * 65),
    ],
)
def test_proofs_out_of_bounds_are_refused(proof: Proof) -> None:
    assert not merkle.verify(merkle.root([b"leaf"]), b"leaf", proof)


def test_a_proof_in_the_largest_tree_is_bounded() -> None:
    node = merkle.leaf_hash(b"leaf")
    for _ in range(40):
        node = merkle.node_hash(node, bytes(32))
    assert merkle.verify(node, b"leaf", Proof(0, MAX_LEAVES, (bytes(32),) * 40))


def test_only_existing_leaves_are_proven() -> None:
    for index in (-1, 3):
        with pytest.raises(ValueError, match="there is no leaf"):
            merkle.prove(leaves_of(3), index)
    for indices in ([], [3], [-1], [1, 1]):
        with pytest.raises(ValueError, match="distinct"):
            merkle.prove_many(leaves_of(3), indices)


@st.composite
def subsets(draw: st.DrawFn) -> tuple[list[bytes], list[int]]:
    size = draw(st.integers(1, 70))
    indices = draw(st.sets(st.integers(0, size - 1), min_size=1))
    return leaves_of(size), sorted(indices)


@given(subsets(), st.randoms(use_true_random=False))
def test_any_subset_is_proven_at_once(chosen: tuple[list[bytes], list[int]], random: Random) -> None:
    leaves, indices = chosen
    shuffled = indices.copy()
    random.shuffle(shuffled)
    proof = merkle.prove_many(leaves, shuffled)
    assert proof.indices == tuple(indices)
    assert merkle.verify_many(merkle.root(leaves), [leaves[i] for i in indices], proof)


@given(subsets())
def test_siblings_are_minimal(chosen: tuple[list[bytes], list[int]]) -> None:
    leaves, indices = chosen
    proof = merkle.prove_many(leaves, indices)
    single = {node for i in indices for node in merkle.prove(leaves, i).path}
    assert len(set(proof.siblings)) == len(proof.siblings)
    assert set(proof.siblings) <= single
    if len(indices) == len(leaves):
        assert proof.siblings == ()
    if len(indices) == 1:
        assert proof.siblings == merkle.prove(leaves, indices[0]).path


@given(subsets(), st.data())
def test_a_changed_multiproof_is_refused(chosen: tuple[list[bytes], list[int]], data: st.DataObject) -> None:
    leaves, indices = chosen
    root, shown = merkle.root(leaves), [leaves[i] for i in indices]
    proof = merkle.prove_many(leaves, indices)
    replace = msgspec.structs.replace

    at = data.draw(st.integers(0, len(indices) - 1))
    tampered = [*shown[:at], b"other", *shown[at + 1 :]]
    assert not merkle.verify_many(root, tampered, proof)
    assert not merkle.verify_many(root, [*shown, b"more"], proof)
    assert not merkle.verify_many(root, shown[:-1], proof)
    assert not merkle.verify_many(root, shown, replace(proof, siblings=(*proof.siblings, bytes(32))))
    for at, node in enumerate(proof.siblings):
        missing = proof.siblings[:at] + proof.siblings[at + 1 :]
        assert not merkle.verify_many(root, shown, replace(proof, siblings=missing))
        assert not merkle.verify_many(
            root, shown, replace(proof, siblings=replaced(proof.siblings, at, node[1:]))
        )
        other = data.draw(st.sampled_from(flips(node)))
        siblings = replaced(proof.siblings, at, other)
        assert not merkle.verify_many(root, shown, replace(proof, siblings=siblings))


def test_a_multiproof_with_any_byte_changed_is_refused() -> None:
    leaves, indices = leaves_of(23), [2, 3, 9, 22]
    root, shown = merkle.root(leaves), [leaves[i] for i in indices]
    proof = merkle.prove_many(leaves, indices)
    for at, node in enumerate(proof.siblings):
        for other in flips(node):
            tampered = msgspec.structs.replace(proof, siblings=replaced(proof.siblings, at, other))
            assert not merkle.verify_many(root, shown, tampered)


def test_indices_are_sorted_unique_and_in_bounds() -> None:
    leaves = leaves_of(4)
    root = merkle.root(leaves)
    siblings = merkle.prove_many(leaves, [0, 1]).siblings
    assert merkle.verify_many(root, leaves[:2], MultiProof(4, (0, 1), siblings))
    assert not merkle.verify_many(root, [leaves[1], leaves[0]], MultiProof(4, (1, 0), siblings))
    assert not merkle.verify_many(root, [leaves[0]] * 2, MultiProof(4, (0, 0), siblings))
    assert not merkle.verify_many(root, leaves[:2], MultiProof(4, (-1, 1), siblings))
    assert not merkle.verify_many(root, leaves[:2], MultiProof(4, (0, 4), siblings))
    assert not merkle.verify_many(root, [], MultiProof(4, (), (root,)))
    assert not merkle.verify_many(merkle.EMPTY_ROOT, [], MultiProof(0, (), ()))
    assert not merkle.verify_many(root, leaves[:1], MultiProof(MAX_LEAVES + 1, (0,), siblings))
    assert not merkle.verify_many(root, leaves[:1], MultiProof(4, (0,), (bytes(32),) * 65))


def test_proofs_have_one_encoding() -> None:
    proof = merkle.prove(leaves_of(5), 3)
    data = msgspec.msgpack.encode(proof)
    assert msgspec.msgpack.decode(data, type=Proof) == proof
    longer = msgspec.msgpack.encode([proof.index, proof.size, proof.path, 0])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(longer, type=Proof)


def test_the_mountain_range_of_every_prefix_has_the_root_of_the_tree() -> None:
    leaves = leaves_of(200)
    mountains = MountainRange()
    assert mountains.root() == merkle.root([])
    for size, leaf in enumerate(leaves, start=1):
        mountains.append(leaf)
        assert mountains.size == size
        assert mountains.root() == merkle.root(leaves[:size])


def test_appending_tells_every_perfect_subtree_once() -> None:
    leaves = leaves_of(100)
    mountains = MountainRange()
    told = {}
    for size, leaf in enumerate(leaves, start=1):
        for level, index, node in mountains.append(leaf):
            first, end = index << level, index + 1 << level
            assert end == size
            assert node == merkle.root(leaves[first:end])
            assert (level, index) not in told
            told[level, index] = node
    assert len(told) == sum(len(leaves) >> level for level in range(7))


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=80), st.data())
def test_tree_proofs_verify_against_the_mountain_range(leaves: list[bytes], data: st.DataObject) -> None:
    mountains = MountainRange()
    for leaf in leaves:
        mountains.append(leaf)
    index = data.draw(st.integers(0, len(leaves) - 1))
    assert merkle.verify(mountains.root(), leaves[index], merkle.prove(leaves, index))


@given(st.lists(st.binary(max_size=20), max_size=40), st.binary(max_size=20))
def test_a_stored_mountain_range_goes_on_as_if_never_stored(leaves: list[bytes], leaf: bytes) -> None:
    mountains = MountainRange()
    for earlier in leaves:
        mountains.append(earlier)
    data = mountains.encode()
    restored, copied = MountainRange.decode(data), mountains.copy()
    assert restored.encode() == data == copied.encode()
    for grown in (mountains, restored):
        grown.append(leaf)
    assert mountains.root() == restored.root() == merkle.root([*leaves, leaf])
    assert copied.root() == merkle.root(leaves)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 8])
def test_only_the_canonical_encoding_of_a_mountain_range_is_decoded(size: int) -> None:
    mountains = MountainRange()
    for leaf in leaves_of(size):
        mountains.append(leaf)
    data = mountains.encode()
    assert len(data) == 8 + 32 * size.bit_count()
    for bad in (data[:-1], data + b"\0", data + bytes(32), data[:7], b""):
        with pytest.raises(EncodingError):
            MountainRange.decode(bad)


def test_a_mountain_range_is_bounded() -> None:
    full = MountainRange.decode(MAX_LEAVES.to_bytes(8, "big") + bytes(32))
    assert full.size == MAX_LEAVES
    with pytest.raises(ValueError, match="ends at"):
        full.append(b"leaf")
    with pytest.raises(EncodingError, match="above the limit"):
        MountainRange.decode((2 * MAX_LEAVES).to_bytes(8, "big") + bytes(32))


@given(st.lists(st.binary(max_size=20), max_size=40), st.data())
def test_a_tree_with_all_its_levels_gives_the_same_root_and_proofs(
    leaves: list[bytes], data: st.DataObject
) -> None:
    tree = merkle.Tree(leaves)
    assert tree.root == merkle.root(leaves)
    assert tree == merkle.Tree(list(leaves))
    assert tree != merkle.Tree([*leaves, b"more"])
    if leaves:
        indices = sorted(data.draw(st.sets(st.integers(0, len(leaves) - 1), min_size=1)))
        assert tree.prove(indices) == merkle.prove_many(leaves, indices)
    with pytest.raises(ValueError, match="indices must ascend"):
        tree.prove([len(leaves)])
