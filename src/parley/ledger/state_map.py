"""The Merkle map of the whole replicated state, so that one root in a header certifies every entry and every absence (P2).

A 16-ary trie over hashed keys. A subtree of one key is that key's leaf, as high up as it can stand, and an empty subtree
is nothing: the root depends on the entries alone, not on the order in which they came and went. Nodes are stored by
path, so that a change overwrites them and nothing is left behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from parley.crypto.encoding import u32
from parley.crypto.hashing import DIGEST_SIZE, digest, domain_prefix

WIDTH = 16
MAX_DEPTH = 2 * DIGEST_SIZE  # a nibble of the hashed key for each level
MAX_LEVEL = 2 + (WIDTH - 1) * DIGEST_SIZE

EMPTY_ROOT = digest("state/empty")

# The hash inputs of digest(domain, ...), laid out once: every change of the state passes here.
_KEY = domain_prefix("state/key")
_VALUE = domain_prefix("state/value")
_LEAF = domain_prefix("state/leaf") + u32(DIGEST_SIZE)
_LEAF_VALUE = u32(DIGEST_SIZE)
_BRANCH = [domain_prefix("state/branch") + u32(2 + DIGEST_SIZE * count) for count in range(WIDTH + 1)]

_ENTRY_SIZE = 2 * DIGEST_SIZE  # what is kept of a leaf: the hashes of its key and of its value
MAX_NODE = 2 + WIDTH * DIGEST_SIZE + 2 + WIDTH * _ENTRY_SIZE
_NIBBLES = bytes(int(chr(c), 16) if chr(c) in "0123456789abcdef" else 0 for c in range(256))

_sha256 = hashlib.sha256

Level = Annotated[bytes, msgspec.Meta(min_length=2, max_length=MAX_LEVEL)]
Entry = Annotated[bytes, msgspec.Meta(min_length=_ENTRY_SIZE, max_length=_ENTRY_SIZE)]

# A subtree to its parent: its hash, and its entry if it is a leaf.
_Child = tuple[bytes, bytes]
_NOTHING: _Child = (b"", b"")


class Nodes(Protocol):
    """Where nodes are read: by path, one byte a nibble, which is as many bytes as the node is deep.

    A branch is stored as the presence bitmap, the hashes of its children, the bitmap of those that are leaves, and
    their entries; a map of a single key as the entry of that leaf alone.
    """

    def get(self, path: bytes, /) -> bytes | None: ...


class DamagedMap(Exception):  # noqa: N818 - the condition, not an error of the caller
    """A stored node is missing or not a node, so no root can be computed from the map."""

    def __init__(self, path: bytes) -> None:
        super().__init__(
            f"Node {path.hex()[1::2] or 'at the root'} of the state map is missing or damaged. The local state cannot "
            f"be used: check the disk, then rejoin from a certified snapshot."
        )
        self.path = path


class StrayNode(Exception):  # noqa: N818 - the condition, not an error of the caller
    """A node is stored where the one above it has none: it belongs to no state."""

    def __init__(self, path: bytes) -> None:
        super().__init__(f"Node {path.hex()[1::2]} belongs to no state.")
        self.path = path


class StateProof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The branches from the root towards a key, and the leaf of another key if that is where they end.

    A level is the branch's presence bitmap and the hashes of its children, without the one on the way.
    """

    levels: Annotated[tuple[Level, ...], msgspec.Meta(max_length=MAX_DEPTH)]
    other: Entry | None


def update(nodes: Nodes, changes: Mapping[bytes, bytes | None]) -> tuple[bytes, dict[bytes, bytes | None]]:
    """The root after all changes, and the nodes to write for it; None deletes, in both."""
    return _Update(nodes.get, changes).run() if changes else (root(nodes), {})


def root(nodes: Nodes) -> bytes:
    value = nodes.get(b"")
    if value is None:
        return EMPTY_ROOT
    if len(value) == _ENTRY_SIZE:
        return _leaf_hash(value)
    value, _, end, _ = _opened(b"", value)
    return _branch_hash(value[:end])


def prove(nodes: Nodes, key: bytes) -> StateProof:
    """That the key has the value it has, or that it has none."""
    hashed = _key_hash(key)
    nibbles = _nibbles(hashed)
    levels: list[bytes] = []
    stored = nodes.get(b"")
    if stored is None or len(stored) == _ENTRY_SIZE:
        return StateProof((), _unless_own(hashed, stored))
    for depth, nibble in enumerate(nibbles):
        value, present, end, leaves = _opened(nibbles[:depth], stored)
        bit = 1 << nibble
        at = 2 + DIGEST_SIZE * (present & bit - 1).bit_count()
        if not present & bit:
            return StateProof((*levels, value[:end]), None)
        levels.append(value[:at] + value[at + DIGEST_SIZE : end])
        if leaves & bit:
            return StateProof(tuple(levels), _unless_own(hashed, _entry_of(value, end, leaves, bit)))
        stored = nodes.get(nibbles[: depth + 1])
    raise DamagedMap(nibbles)  # two keys with one hash


def path_of(key: bytes) -> bytes:
    """The way from the root to a key, as far down as nodes can stand."""
    return _nibbles(_key_hash(key))


def leaf_entry(key: bytes, value: bytes) -> bytes:
    """What the map keeps of an entry of the state."""
    return _leaf(_key_hash(key), value)[1]


def check_node(nodes: Nodes, path: bytes, root: bytes) -> Contents:
    """What a node says. Raises `DamagedMap` if it is not what the one above it has there, `StrayNode` if that has nothing."""
    expected, value = _claimed(nodes, path, root), nodes.get(path)
    if expected is None:
        raise StrayNode(path)
    contents = None if value is None or (path and is_leaf(value)) else check(path, expected, value)
    if contents is None:
        raise DamagedMap(path)
    return contents


def rebuilt_node(nodes: Nodes, path: bytes, leaves: Mapping[int, bytes]) -> bytes:
    """The node at a path, from the stored ones right below it, and from the leaf entries there by nibble."""
    present = own = 0
    hashes, entries = b"", b""
    for nibble in range(WIDTH):
        child = path + bytes([nibble])
        stored = nodes.get(child)
        if stored is None and nibble not in leaves:
            continue
        present |= 1 << nibble
        if stored is not None:
            value, _, end, _ = _opened(child, stored)
            hashes += _branch_hash(value[:end])
        else:
            own |= 1 << nibble
            hashes += _leaf_hash(leaves[nibble])
            entries += leaves[nibble]
    if not path and len(hashes) == DIGEST_SIZE and present == own:
        return entries
    return present.to_bytes(2, "big") + hashes + own.to_bytes(2, "big") + entries


def verify(root: bytes, key: bytes, value: bytes | None, proof: StateProof) -> bool:
    """Whether the state with this root has this value under the key; None: whether it has no such key."""
    hashed = _key_hash(key)
    node = _end_of_path(hashed, value, proof)
    if node is None or len(proof.levels) > MAX_DEPTH:
        return False
    nibbles = _nibbles(hashed)
    for depth in reversed(range(len(proof.levels))):
        level, bit = proof.levels[depth], 1 << nibbles[depth]
        present = int.from_bytes(level[:2], "big")
        # Only the last branch of a proof of absence may have nothing on the way, and then `node` is empty.
        if bool(present & bit) != bool(node):
            return False
        if len(level) + len(node) != 2 + DIGEST_SIZE * present.bit_count():
            return False
        at = 2 + DIGEST_SIZE * (present & bit - 1).bit_count()
        node = _branch_hash(level[:at] + node + level[at:])
    return (node or EMPTY_ROOT) == root


# -- maps that come from somebody else, node by node, top down ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contents:
    """What a node says: where its branches stand and which hashes they must have, and how many leaves it has itself."""

    branches: tuple[tuple[bytes, bytes], ...]
    leaves: int


def standing(nodes: Nodes, path: bytes) -> bytes | None:
    """What stands at a path: a node, or the entry of a leaf, which is stored with the branch above."""
    stored = nodes.get(path)
    if stored is not None or not path:
        return stored
    above = nodes.get(path[:-1])
    if above is None or is_leaf(above):
        return None
    value, _, end, leaves = _opened(path[:-1], above)
    bit = 1 << path[-1]
    return _entry_of(value, end, leaves, bit) if leaves & bit else None


def is_leaf(node: bytes) -> bool:
    """Whether this is the entry of a leaf, and not a branch."""
    return len(node) == _ENTRY_SIZE


def check(path: bytes, hash_: bytes, node: bytes) -> Contents | None:
    """What a node says that is claimed to stand at a path; None if it has another hash or contradicts itself.

    The hash of a branch does not tell which of its children are leaves. What is called a leaf is shown to be one by its
    entry; a leaf that is called a branch shows when that branch is asked for, and `with_leaf` corrects it.
    """
    if is_leaf(node):
        return Contents((), 1) if _leaf_hash(node) == hash_ else None
    try:
        value, present, end, leaves = _opened(path, node)
    except DamagedMap:
        return None
    if _branch_hash(value[:end]) != hash_:
        return None
    branches: list[tuple[bytes, bytes]] = []
    children = [nibble for nibble in range(WIDTH) if present >> nibble & 1]
    for at, nibble in zip(range(2, end, DIGEST_SIZE), children, strict=True):
        child = value[at : at + DIGEST_SIZE]
        if not leaves >> nibble & 1:
            branches.append((path + bytes([nibble]), child))
        elif _leaf_hash(_entry_of(value, end, leaves, 1 << nibble)) != child:
            return None
    return Contents(tuple(branches), leaves.bit_count())


def with_leaf(path: bytes, node: bytes, entry: bytes) -> bytes:
    """The branch above `path`, corrected: what stands there is the leaf with this entry, and no branch."""
    value, _, end, leaves = _opened(path[:-1], node)
    bit = 1 << path[-1]
    at = end + 2 + _ENTRY_SIZE * (leaves & bit - 1).bit_count()
    return value[:end] + (leaves | bit).to_bytes(2, "big") + value[end + 2 : at] + entry + value[at:]


def holds(nodes: Nodes, key: bytes, value: bytes) -> bool:
    """Whether the map has this value under the key."""
    hashed = _key_hash(key)
    entry, nibbles = _leaf(hashed, value)[1], _nibbles(hashed)
    stored = nodes.get(b"")
    if stored is None or is_leaf(stored):
        return stored == entry
    for depth, nibble in enumerate(nibbles):
        node, present, end, leaves = _opened(nibbles[:depth], stored)
        bit = 1 << nibble
        if leaves & bit:
            return _entry_of(node, end, leaves, bit) == entry
        if not present & bit:
            return False
        stored = nodes.get(nibbles[: depth + 1])
    raise DamagedMap(nibbles)


class _Update:
    """One pass over the trie from the root, in the order of the hashed keys; a node is read and written at most once."""

    __slots__ = ("_get", "_hashed", "_new", "_paths", "_writes")

    def __init__(self, get: Callable[[bytes], bytes | None], changes: Mapping[bytes, bytes | None]) -> None:
        order = sorted((_key_hash(key), value) for key, value in changes.items())
        self._get = get
        self._hashed = [hashed for hashed, _ in order]
        self._paths = [_nibbles(hashed) for hashed in self._hashed]
        self._new = [_NOTHING if value is None else _leaf(hashed, value) for hashed, value in order]
        self._writes: dict[bytes, bytes | None] = {}

    def run(self) -> tuple[bytes, dict[bytes, bytes | None]]:
        stored, end = self._get(b""), len(self._hashed)
        if stored is None or len(stored) == _ENTRY_SIZE:
            old = _NOTHING if stored is None else (_leaf_hash(stored), stored)
            hash_, entry = self._replaced(0, 0, end, old)
        else:
            hash_, entry = self._branch(0, 0, end, stored)
        if entry or not hash_:  # not a branch, which would have been written
            top = entry or None
            if top != stored:
                self._writes[b""] = top
        return hash_ or EMPTY_ROOT, self._writes

    # What stands at some depth on the way of the changes from `first` to `end`, after them:

    def _branch(self, depth: int, first: int, end: int, found: bytes | None) -> _Child:
        """What becomes of a stored branch."""
        stored, present, middle, leaves = _opened(self._paths[first][:depth], found)
        hashes, entries = bytearray(stored[2:middle]), bytearray(stored[middle + 2 :])
        return self._merged(depth, first, end, (present, hashes, leaves, entries), stored)

    def _replaced(self, depth: int, first: int, end: int, old: _Child) -> _Child:
        """What becomes of a leaf or of nothing."""
        hash_, entry = old
        if first + 1 == end and (not entry or entry.startswith(self._hashed[first])):
            return self._new[first]
        bit = 1 << _nibbles(entry[:DIGEST_SIZE])[depth] if entry else 0
        return self._merged(depth, first, end, (bit, bytearray(hash_), bit, bytearray(entry)), None)

    def _merged(
        self,
        depth: int,
        first: int,
        end: int,
        branch: tuple[int, bytearray, int, bytearray],
        stored: bytes | None,
    ) -> _Child:
        """What becomes of a branch: presence bitmap, hashes, bitmap of the leaves, their entries."""
        present, hashes, leaves, entries = branch
        paths = self._paths
        start = first
        while start < end:
            nibble, stop = paths[start][depth], start + 1
            while stop < end and paths[stop][depth] == nibble:
                stop += 1
            bit = 1 << nibble
            at = DIGEST_SIZE * (present & bit - 1).bit_count()
            till = at + DIGEST_SIZE if present & bit else at
            entry_at = _ENTRY_SIZE * (leaves & bit - 1).bit_count()
            entry_till = entry_at + _ENTRY_SIZE if leaves & bit else entry_at
            if present & ~leaves & bit:
                found = self._get(paths[start][: depth + 1])
                hash_, entry = self._branch(depth + 1, start, stop, found)
            else:
                old = bytes(hashes[at:till]), bytes(entries[entry_at:entry_till])
                hash_, entry = self._replaced(depth + 1, start, stop, old)
            hashes[at:till] = hash_
            entries[entry_at:entry_till] = entry
            present = present | bit if hash_ else present & ~bit
            leaves = leaves | bit if entry else leaves & ~bit
            start = stop
        return self._closed(paths[first][:depth], (present, hashes, leaves, entries), stored)

    def _closed(
        self, path: bytes, branch: tuple[int, bytearray, int, bytearray], stored: bytes | None
    ) -> _Child:
        """Write what the branch has become and hand its hash, or the one leaf that is left, to its parent."""
        present, hashes, leaves, entries = branch
        if len(hashes) <= DIGEST_SIZE and present == leaves:  # one leaf or nothing is not a branch
            if stored is not None:
                self._writes[path] = None
            return bytes(hashes), bytes(entries)
        body = present.to_bytes(2, "big") + hashes
        node = body + leaves.to_bytes(2, "big") + entries
        if node != stored:
            self._writes[path] = node
        return _branch_hash(body), b""


def _end_of_path(hashed: bytes, value: bytes | None, proof: StateProof) -> bytes | None:
    """The hash of what must stand where the levels end, empty for nothing; None if the proof proves something else."""
    other = proof.other
    if value is not None:
        return None if other is not None else _leaf(hashed, value)[0]
    if other is None:
        return b""
    depth = len(proof.levels)
    # The leaf hash binds the other's hashed key, so that nobody can put a leaf of his choice in the way.
    fits = len(other) == _ENTRY_SIZE and _nibbles(other[:DIGEST_SIZE])[:depth] == _nibbles(hashed)[:depth]
    return _leaf_hash(other) if fits and not other.startswith(hashed) else None


def _claimed(nodes: Nodes, path: bytes, root: bytes) -> bytes | None:
    """The hash that the branch above has for the branch at this path; None if it has none there."""
    if not path:
        return None if root == EMPTY_ROOT else root
    above = nodes.get(path[:-1])
    if above is None or is_leaf(above):
        return None
    value, present, _, leaves = _opened(path[:-1], above)
    bit = 1 << path[-1]
    if not present & ~leaves & bit:
        return None
    at = 2 + DIGEST_SIZE * (present & bit - 1).bit_count()
    return value[at : at + DIGEST_SIZE]


def _unless_own(hashed: bytes, entry: bytes | None) -> bytes | None:
    return None if entry is None or entry.startswith(hashed) else entry


def _opened(path: bytes, value: bytes | None) -> tuple[bytes, int, int, int]:
    """A stored branch, its presence bitmap, where its hashes end, and the bitmap of its leaves."""
    if value is None or len(value) < 4:
        raise DamagedMap(path)
    present = value[0] << 8 | value[1]
    end = 2 + DIGEST_SIZE * present.bit_count()
    leaves = int.from_bytes(value[end : end + 2], "big")
    if len(value) != end + 2 + _ENTRY_SIZE * leaves.bit_count() or leaves & ~present:
        raise DamagedMap(path)
    return value, present, end, leaves


def _entry_of(value: bytes, end: int, leaves: int, bit: int) -> bytes:
    at = end + 2 + _ENTRY_SIZE * (leaves & bit - 1).bit_count()
    return value[at : at + _ENTRY_SIZE]


def _key_hash(key: bytes) -> bytes:
    return _sha256(_KEY + len(key).to_bytes(4, "big") + key).digest()


def _nibbles(hashed: bytes) -> bytes:
    return hashed.hex().encode().translate(_NIBBLES)


def _leaf(hashed: bytes, value: bytes) -> _Child:
    entry = hashed + _sha256(_VALUE + len(value).to_bytes(4, "big") + value).digest()
    return _leaf_hash(entry), entry


def _leaf_hash(entry: bytes) -> bytes:
    return _sha256(_LEAF + entry[:DIGEST_SIZE] + _LEAF_VALUE + entry[DIGEST_SIZE:]).digest()


def _branch_hash(body: bytes) -> bytes:
    """The hash of a presence bitmap and as many child hashes as it has bits."""
    return _sha256(_BRANCH[len(body) // DIGEST_SIZE] + body).digest()
