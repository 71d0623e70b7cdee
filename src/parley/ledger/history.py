"""Proofs of old blocks: the history range keeps only its peaks, so the nodes below them are stored and found here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parley.crypto.encoding import u64
from parley.crypto.hashing import DIGEST_SIZE
from parley.crypto.merkle import EMPTY_ROOT, MAX_LEAVES, MountainRange, MultiProof, Proof, node_hash

Get = Callable[[bytes], bytes | None]

_INDEX_WIDTH = 5  # bytes that hold any index below MAX_LEAVES


class MissingNode(Exception):  # noqa: N818 - the condition, not an error of the caller
    """A node of the history is not stored, or is not a node, so proofs that need it cannot be made."""

    def __init__(self, level: int, index: int) -> None:
        super().__init__(
            f"Node {index} at level {level} of the block history (blocks {(index << level) + 1} to {index + 1 << level}) is "
            f"missing or damaged in the local store. Check the disk, and ask another broker for the proof."
        )
        self.level = level
        self.index = index


def node_key(level: int, index: int) -> bytes:
    """Where a perfect subtree that `MountainRange.append` tells of is stored."""
    return level.to_bytes(1, "big") + index.to_bytes(_INDEX_WIDTH, "big")


def prove(get: Get, index: int, size: int) -> Proof:
    """That a leaf stands at `index` of the history of `size` leaves, from the nodes stored since."""
    if not 0 <= index < size <= MAX_LEAVES:
        raise ValueError(f"there is no leaf {index} among {size}")
    path: list[bytes] = []
    position, last, level = index, size - 1, 0
    while last:
        if position & 1 or position < last:
            path.append(_subtree(get, level, position ^ 1, size))
        position, last, level = position >> 1, last >> 1, level + 1
    return Proof(index, size, tuple(path))


def prove_range(get: Get, first: int, count: int, size: int) -> MultiProof:
    """That `count` leaves in a row stand at `first` and after it: only nodes beside the row's two ends are needed."""
    if not 0 <= first < first + count <= size <= MAX_LEAVES:
        raise ValueError(f"there are no {count} leaves from {first} on among {size}")
    siblings: list[bytes] = []
    low, high, last, level = first, first + count - 1, size - 1, 0
    while last:
        if low & 1:
            siblings.append(_subtree(get, level, low - 1, size))
        if not high & 1 and high < last:
            siblings.append(_subtree(get, level, high + 1, size))
        low, high, last, level = low >> 1, high >> 1, last >> 1, level + 1
    return MultiProof(size, tuple(range(first, first + count)), tuple(siblings))


def before_row(proof: MultiProof) -> MountainRange:
    """The history up to the row that a proof of `prove_range`, which holds, is for: the nodes to the left of the row."""
    low, high, last = proof.indices[0], proof.indices[-1], proof.size - 1
    siblings, peaks = iter(proof.siblings), list[bytes]()
    while last:
        if low & 1:
            peaks.append(next(siblings))
        if not high & 1 and high < last:
            next(siblings)
        low, high, last = low >> 1, high >> 1, last >> 1
    return MountainRange.decode(u64(proof.indices[0]) + b"".join(reversed(peaks)))


def root(get: Get, size: int) -> bytes:
    """The root of the first `size` leaves."""
    return _subtree(get, size.bit_length(), 0, size) if size else EMPTY_ROOT


def climb(get: Get, place: tuple[int, int], size: int, node: bytes) -> bytes:
    """The root of `size` leaves if `node` stands at this place, a level and an index in it, and all beside its way holds."""
    level, position = place
    last = size - 1 >> level
    while last:
        if position & 1 or position < last:
            sibling = _subtree(get, level, position ^ 1, size)
            node = node_hash(sibling, node) if position & 1 else node_hash(node, sibling)
        position, last, level = position >> 1, last >> 1, level + 1
    return node


def proven_nodes(proof: Proof, leaf: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The perfect subtrees that a proof which holds tells of: the hashed leaf, those beside its way and those on it."""
    position, last, level, node, used = proof.index, proof.size - 1, 0, leaf, 0
    yield 0, position, node
    while last:
        if position & 1 or position < last:
            sibling, used = proof.path[used], used + 1
            if (position ^ 1) + 1 << level <= proof.size:
                yield level, position ^ 1, sibling
            node = node_hash(sibling, node) if position & 1 else node_hash(node, sibling)
        position, last, level = position >> 1, last >> 1, level + 1
        if position + 1 << level <= proof.size:
            yield level, position, node


def _subtree(get: Get, level: int, index: int, size: int) -> bytes:
    """The node of a tree of `size` leaves; the last one of a level may be cut short by the end of the tree."""
    if index + 1 << level <= size:
        return _stored(get, level, index)
    # Its left half is perfect or all there is: a cut node without a right half is its left half.
    level, left = level - 1, 2 * index
    if left + 1 << level >= size:
        return _subtree(get, level, left, size)
    return node_hash(_stored(get, level, left), _subtree(get, level, left + 1, size))


def _stored(get: Get, level: int, index: int) -> bytes:
    node = get(node_key(level, index))
    if node is None or len(node) != DIGEST_SIZE:
        raise MissingNode(level, index)
    return node
