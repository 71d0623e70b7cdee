"""Whether the indices in a store are what the receipts of its blocks give; whatever is wrong can be written again.

A batch can have receipts in many blocks, and only one of them is the one to be found: all others have to see that
theirs need not be. Each such look costs one leaf of the other block, so the whole costs as much as there are receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from parley.ledger import layout
from parley.ledger.application import BodyKeeper, Indexing, Writes
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Position
from parley.store.interface import KeyValue

PART = 32  # leaves or entries that are looked at in one step


@dataclass(frozen=True, slots=True)
class _Claim:
    """An entry that should be `value` by the block that is looked at, and leads elsewhere."""

    key: bytes
    value: bytes | None
    stored: bytes
    to: Position


class Derived:
    """`state` is what the application writes, with the indices; `leaves` are the receipts of a block of this store."""

    def __init__(self, keeper: BodyKeeper, store: KeyValue, state: KeyValue) -> None:
        self._keeper = keeper
        self._store = store
        self._state = state
        self._bare = _WithoutIndices(state)

    def wrong(self, height: int, leaves: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries that a block should have here and has not, with what they should be."""
        return (step for step in self.compare(height, leaves) if not isinstance(step, int))

    def compare(self, height: int, leaves: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None] | int]:
        """The same in small steps: after each of them how many leaves and entries it has looked at."""
        claims: list[_Claim] = []
        looked = 0
        for entry in in_parts(self._keeper.indexing(height, self._bare), leaves):
            if isinstance(entry, int):
                yield entry
                continue
            key, value = entry
            stored = self._state.get(key)
            if stored != value:
                claim = self._claim(key, value, stored)
                if claim is None or self._replaces(claim, height, leaves):
                    yield entry
                else:
                    claims.append(claim)
            looked += 1
            if looked % PART == 0:
                yield PART
        yield from self._refuted(claims)

    def _claim(self, key: bytes, value: bytes | None, stored: bytes | None) -> _Claim | None:
        """None: what is stored leads nowhere."""
        try:
            to = None if stored is None else self._keeper.place_of(key, stored)
        except (*DECODE_ERRORS, ValueError):
            return None
        return None if stored is None or to is None else _Claim(key, value, stored, to)

    def _replaces(self, claim: _Claim, height: int, leaves: Sequence[bytes]) -> bool:
        """Whether the block would have replaced what is stored, when it was executed."""
        own = None if claim.value is None else self._keeper.place_of(claim.key, claim.value)
        if own is None:
            return True
        given = self._given((height, own[1]), leaves[own[1]], self._state)
        return any(key == claim.key for key, _ in given)

    def _refuted(self, claims: list[_Claim]) -> Iterator[tuple[bytes, bytes | None] | int]:
        """Those of which the other block knows nothing. Ordered by it: its receipts are read once."""
        claims.sort(key=lambda claim: claim.to)
        read = -1
        leaves: tuple[bytes, ...] = ()
        for at, claim in enumerate(claims, 1):
            if claim.to[0] != read:
                read = claim.to[0]
                data = self._store.get(layout.receipts(read))
                leaves = layout.readable(layout.decode_receipts, data) or ()
                yield len(leaves) // PART
            if not self._is_given(claim, leaves):
                yield claim.key, claim.value
            if at % PART == 0:
                yield PART

    def _is_given(self, claim: _Claim, leaves: Sequence[bytes]) -> bool:
        position = claim.to[1]
        known = position < len(leaves)
        return known and self.gives(claim.to, leaves[position], (claim.key, claim.stored))

    def gives(self, place: Position, leaf: bytes, entry: tuple[bytes, bytes]) -> bool:
        """Whether the leaf at this place gives the entry."""
        try:
            return entry in self._given(place, leaf, self._bare)
        except (*DECODE_ERRORS, ValueError):
            return False

    def _given(self, place: Position, leaf: bytes, state: KeyValue) -> Writes:
        """By one leaf alone."""
        indexing = self._keeper.indexing(place[0], state, place[1])
        return (*indexing.add((leaf,)), *indexing.rest())


def in_parts(indexing: Indexing, leaves: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None] | int]:
    """The derived entries of a block; after each part of its leaves, the number of them."""
    for start in range(0, len(leaves), PART):
        part = leaves[start : start + PART]
        yield from indexing.add(part)
        yield len(part)
    rest = indexing.rest()
    while found := tuple(islice(rest, PART)):
        yield from found
        yield len(found)


class _WithoutIndices:
    """The state as it is for a block whose indices are not written yet."""

    def __init__(self, state: KeyValue) -> None:
        self._state = state

    def get(self, key: bytes) -> bytes | None:
        return None if key.startswith(layout.INDICES) else self._state.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(()) if prefix.startswith(layout.INDICES) else self._state.scan(prefix, start)
