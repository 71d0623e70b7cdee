"""Merkle trees of the RFC 6962 shape, so that one root certifies batches, receipts and the whole history.

A root does not bind the number of leaves: a caller that relies on an index must know the size from a
trusted place (a certified header) and compare it with the proof's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from parley.crypto.encoding import EncodingError, u32, u64
from parley.crypto.hashing import DIGEST_SIZE, digest, domain_prefix

MAX_LEAVES = 2**40
MAX_PATH = 64

EMPTY_ROOT = digest("merkle/empty")

# digest("merkle/leaf", data) and digest("merkle/node", left, right), laid out once: trees are hashed on
# the hot path. The fixed lengths hold because every node that comes from outside is measured first.
_LEAF = domain_prefix("merkle/leaf")
_LEFT = domain_prefix("merkle/node") + u32(DIGEST_SIZE)
_RIGHT = u32(DIGEST_SIZE)
_SIZE_WIDTH = 8

_sha256 = hashlib.sha256

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That one leaf stands at `index` among `size`: its siblings from the bottom up."""

    index: Count
    size: Count
    path: tuple[bytes, ...]


class MultiProof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That leaves stand at `indices`: the siblings they do not give themselves, bottom up, left to right."""

    size: Count
    indices: tuple[Count, ...]
    siblings: tuple[bytes, ...]


def leaf_hash(data: bytes) -> bytes:
    return _sha256(_LEAF + len(data).to_bytes(4, "big") + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The parent of two nodes, each of which must have the size of a digest."""
    return _sha256(_LEFT + left + _RIGHT + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return EMPTY_ROOT
    level = [leaf_hash(leaf) for leaf in leaves]
    while len(level) > 1:
        level = _parents(level)
    return level[0]


def prove(leaves: Sequence[bytes], index: int) -> Proof:
    if not 0 <= index < len(leaves):
        raise ValueError(f"there is no leaf {index} among {len(leaves)}")
    path: list[bytes] = []
    position = index
    for level in _levels(leaves):
        sibling = position ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        position >>= 1
    return Proof(index, len(leaves), tuple(path))


def verify(root: bytes, leaf: bytes, proof: Proof) -> bool:
    """Whether the leaf stands at the proof's index of a tree with the proof's size and this root."""
    if not 0 <= proof.index < proof.size <= MAX_LEAVES or not _well_formed(proof.path, MAX_PATH):
        return False
    node = leaf_hash(leaf)
    position, last = proof.index, proof.size - 1
    used = 0
    while last:
        # The last node of an odd level has no sibling and moves up as it is.
        if position & 1 or position < last:
            if used == len(proof.path):
                return False
            sibling = proof.path[used]
            used += 1
            node = node_hash(sibling, node) if position & 1 else node_hash(node, sibling)
        position >>= 1
        last >>= 1
    return used == len(proof.path) and node == root


def prove_many(leaves: Sequence[bytes], indices: Iterable[int]) -> MultiProof:
    """One proof for several distinct leaves, in any order; the proof lists them sorted."""
    wanted = sorted(indices)
    if not _increasing(wanted, len(leaves)):
        raise ValueError(f"indices must be distinct and name some of the {len(leaves)} leaves")
    return MultiProof(len(leaves), tuple(wanted), _siblings(_levels(leaves), wanted))


def verify_many(root: bytes, leaves: Sequence[bytes], proof: MultiProof) -> bool:
    """Whether the leaves, in the order of the proof's indices, stand in the tree with this root."""
    if not 0 < proof.size <= MAX_LEAVES or len(leaves) != len(proof.indices):
        return False
    if not _increasing(proof.indices, proof.size):
        return False
    if not _well_formed(proof.siblings, MAX_PATH * len(leaves)):
        return False
    siblings = iter(proof.siblings)
    known = list(zip(proof.indices, map(leaf_hash, leaves), strict=True))
    last = proof.size - 1
    while last:
        climbed = _climb(known, last, siblings)
        if climbed is None:
            return False
        known = climbed
        last >>= 1
    return next(siblings, None) is None and known[0][1] == root


class Tree:
    """A tree with all its levels: for its root, and for many proofs none of which should cost the whole tree."""

    __slots__ = ("_levels", "size")

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.size = len(leaves)
        level = [leaf_hash(leaf) for leaf in leaves]
        levels = [tuple(level)]
        while len(level) > 1:
            level = _parents(level)
            levels.append(tuple(level))
        # Tuples of bytes, unlike lists, are not looked at again in every collection of cycles: trees are kept, and large.
        self._levels = tuple(levels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and (self.size, self.root) == (other.size, other.root)

    def __hash__(self) -> int:
        return hash((self.size, self.root))

    @property
    def root(self) -> bytes:
        return self._levels[-1][0] if self.size else EMPTY_ROOT

    def prove(self, indices: Sequence[int]) -> MultiProof:
        """What `prove_many` gives; the indices are ascending."""
        if not _increasing(indices, self.size):
            raise ValueError(f"indices must ascend and name some of the {self.size} leaves")
        return MultiProof(self.size, tuple(indices), _siblings(self._levels[:-1], indices))


class MountainRange:
    """An append-only tree that keeps only the roots of its perfect subtrees, largest first.

    Its root of n leaves equals `root` of those leaves: RFC 6962 splits off the largest power of two on the
    left again and again, which is bagging the peaks from right to left. `prove` and `verify` serve both.
    """

    __slots__ = ("_peaks", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._peaks: list[bytes] = []

    @property
    def size(self) -> int:
        return self._size

    def append(self, leaf: bytes) -> list[tuple[int, int, bytes]]:
        """The perfect subtrees that the leaf completes: level (0 is the leaf), index in it, hash. Two on average."""
        if self._size >= MAX_LEAVES:
            raise ValueError(f"a mountain range ends at {MAX_LEAVES} leaves")
        node, merging = leaf_hash(leaf), self._size
        completed = [(0, merging, node)]
        # A one-bit of the size is a peak; adding one carries through the trailing ones.
        while merging & 1:
            node = node_hash(self._peaks.pop(), node)
            merging >>= 1
            completed.append((len(completed), merging, node))
        self._peaks.append(node)
        self._size += 1
        return completed

    def root(self) -> bytes:
        if not self._peaks:
            return EMPTY_ROOT
        *rest, node = self._peaks
        for peak in reversed(rest):
            node = node_hash(peak, node)
        return node

    def copy(self) -> MountainRange:
        return self._restored(self._size, self._peaks.copy())

    def encode(self) -> bytes:
        """The size in eight bytes, then the peaks, whose number the size determines."""
        return u64(self._size) + b"".join(self._peaks)

    @classmethod
    def decode(cls, data: bytes) -> MountainRange:
        if len(data) < _SIZE_WIDTH:
            raise EncodingError("the size of the mountain range is truncated")
        size = int.from_bytes(data[:_SIZE_WIDTH], "big")
        if size > MAX_LEAVES:
            raise EncodingError(f"a mountain range of {size} leaves is above the limit of {MAX_LEAVES}")
        expected = _SIZE_WIDTH + DIGEST_SIZE * size.bit_count()
        if len(data) != expected:
            raise EncodingError(f"a mountain range of {size} leaves takes {expected} bytes, not {len(data)}")
        starts = range(_SIZE_WIDTH, expected, DIGEST_SIZE)
        return cls._restored(size, [data[at : at + DIGEST_SIZE] for at in starts])

    @classmethod
    def _restored(cls, size: int, peaks: list[bytes]) -> MountainRange:
        self = cls()
        self._size, self._peaks = size, peaks
        return self


def _parents(level: list[bytes]) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    parents = [_sha256(_LEFT + left + _RIGHT + right).digest() for left, right in pairs]
    if len(level) & 1:
        parents.append(level[-1])
    return parents


def _levels(leaves: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Every level that has siblings, from the leaves up: all but the root's."""
    level = [leaf_hash(leaf) for leaf in leaves]
    while len(level) > 1:
        yield level
        level = _parents(level)


def _siblings(levels: Iterable[Sequence[bytes]], known: Sequence[int]) -> tuple[bytes, ...]:
    """What the known leaves do not give themselves, from the leaves' level up."""
    siblings: list[bytes] = []
    for level in levels:
        present = set(known)
        siblings += [level[p ^ 1] for p in known if p ^ 1 not in present and p ^ 1 < len(level)]
        known = sorted({position >> 1 for position in known})
    return tuple(siblings)


def _climb(
    known: list[tuple[int, bytes]], last: int, siblings: Iterator[bytes]
) -> list[tuple[int, bytes]] | None:
    """The parents of the known nodes of one level, or None when a sibling is missing."""
    parents: list[tuple[int, bytes]] = []
    at = 0
    while at < len(known):
        position, node = known[at]
        at += 1
        if position & 1 or position < last:
            if not position & 1 and at < len(known) and known[at][0] == position + 1:
                sibling: bytes | None = known[at][1]
                at += 1
            else:
                sibling = next(siblings, None)
            if sibling is None:
                return None
            node = node_hash(sibling, node) if position & 1 else node_hash(node, sibling)
        parents.append((position >> 1, node))
    return parents


def _well_formed(nodes: tuple[bytes, ...], limit: int) -> bool:
    return len(nodes) <= limit and all(len(node) == DIGEST_SIZE for node in nodes)


def _increasing(indices: Sequence[int], size: int) -> bool:
    """Whether the indices are at least one, strictly increasing and below the size."""
    if not indices or indices[0] < 0 or indices[-1] >= size:
        return False
    return all(low < high for low, high in pairwise(indices))
