"""Any leaf of any past size of the history is proven from the nodes that appending told of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.crypto import merkle
from parley.crypto.merkle import MAX_LEAVES, MountainRange
from parley.ledger import history
from parley.ledger.history import MissingNode

steady = settings(derandomize=True, deadline=None)
LEAVES = [b"leaf %d" % i for i in range(70)]


def stored(leaves: list[bytes]) -> dict[bytes, bytes]:
    mountains = MountainRange()
    return {
        history.node_key(level, index): node
        for leaf in leaves
        for level, index, node in mountains.append(leaf)
    }


NODES = stored(LEAVES)


@pytest.mark.parametrize("size", range(1, len(LEAVES) + 1))
def test_every_leaf_of_every_size_has_the_proof_of_the_whole_tree(size: int) -> None:
    leaves = LEAVES[:size]
    root = merkle.root(leaves)
    for index, leaf in enumerate(leaves):
        proof = history.prove(NODES.get, index, size)
        assert proof == merkle.prove(leaves, index)
        assert merkle.verify(root, leaf, proof)


def needed(index: int, size: int) -> list[bytes]:
    """The nodes that a proof is made of."""
    read: list[bytes] = []

    def get(key: bytes) -> bytes:
        read.append(key)
        return bytes(32)

    history.prove(get, index, size)
    return read


@steady
@given(st.integers(1, 3_000), st.data())
def test_a_proof_reads_few_nodes_and_each_once(size: int, data: st.DataObject) -> None:
    read = needed(data.draw(st.integers(0, size - 1)), size)
    assert len(read) == len(set(read)) <= 2 * size.bit_length()


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 64, 70])
def test_a_missing_or_damaged_node_is_named(size: int) -> None:
    names = {
        history.node_key(level, i): (level, i) for level in range(7) for i in range(len(LEAVES) >> level)
    }
    assert names.keys() == NODES.keys()
    for index in range(size):
        for key in needed(index, size):
            for bad in (None, b"", NODES[key][:-1], NODES[key] + b"\0"):
                damaged: dict[bytes, bytes | None] = {**NODES, key: bad}
                with pytest.raises(MissingNode, match="missing or damaged") as caught:
                    history.prove(damaged.get, index, size)
                assert (caught.value.level, caught.value.index) == names[key]


def test_only_leaves_of_the_tree_are_proven() -> None:
    for index, size in [(0, 0), (-1, 3), (3, 3), (0, MAX_LEAVES + 1)]:
        with pytest.raises(ValueError, match="there is no leaf"):
            history.prove(NODES.get, index, size)


@steady
@given(st.tuples(st.integers(0, 40), st.integers(0, MAX_LEAVES - 1)))
def test_node_keys_are_short_and_tell_which_node(name: tuple[int, int]) -> None:
    key = history.node_key(*name)
    assert (key[0], int.from_bytes(key[1:], "big")) == name
    assert len(key) == 6


@steady
@given(st.integers(1, len(LEAVES)), st.data())
def test_a_node_in_its_place_leads_to_the_root_and_another_does_not(size: int, data: st.DataObject) -> None:
    root = merkle.root(LEAVES[:size])
    assert history.root(NODES.get, size) == root
    level = data.draw(st.integers(0, size.bit_length() - 1))
    index = data.draw(st.integers(0, (size >> level) - 1))
    node = NODES[history.node_key(level, index)]
    assert history.climb(NODES.get, (level, index), size, node) == root
    assert history.climb(NODES.get, (level, index), size, bytes(32)) != root


@steady
@given(st.integers(1, len(LEAVES)), st.data())
def test_a_proof_tells_of_nodes_that_are_stored_as_they_are(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    told = list(history.proven_nodes(history.prove(NODES.get, index, size), merkle.leaf_hash(LEAVES[index])))
    assert all(NODES[history.node_key(level, at)] == node for level, at, node in told)
    assert (0, index) in {(level, at) for level, at, _ in told}
    ends = {(at + 1) << level for level, at, _ in told}
    assert max(ends) <= size, "only subtrees that are complete are stored"


def test_no_block_has_the_root_of_an_empty_tree() -> None:
    assert history.root(NODES.get, 0) == merkle.EMPTY_ROOT


@pytest.mark.parametrize("size", range(1, 40))
def test_every_row_of_leaves_of_every_size_has_the_proof_of_the_whole_tree(size: int) -> None:
    leaves = LEAVES[:size]
    root = merkle.root(leaves)
    for first in range(size):
        for count in range(1, size - first + 1):
            proof = history.prove_range(NODES.get, first, count, size)
            assert proof == merkle.prove_many(leaves, range(first, first + count))
            assert merkle.verify_many(root, leaves[first : first + count], proof)


@pytest.mark.parametrize(("first", "count", "size"), [(0, 0, 5), (3, 3, 5), (-1, 2, 5), (5, 1, 5), (0, 1, 0)])
def test_a_row_that_is_not_there_is_not_proven(first: int, count: int, size: int) -> None:
    with pytest.raises(ValueError, match="there are no"):
        history.prove_range(NODES.get, first, count, size)
