"""Whether the indices in a store are what the receipts of its blocks give; whatever is wrong can be written again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parley.ledger import layout
from parley.ledger.application import BodyKeeper, KeyValue, Writes
from parley.model.codec import DECODE_ERRORS


class Derived:
    """`state` is what the application writes, with the indices; `leaves` are the receipts of a block of this store."""

    def __init__(self, keeper: BodyKeeper, store: KeyValue, state: KeyValue) -> None:
        self._keeper = keeper
        self._store = store
        self._state = state
        self._bare = _WithoutIndices(state)

    def of(self, height: int, leaves: Sequence[bytes]) -> Writes:
        """All that a block gives, whether or not another block gives something better."""
        return self._keeper.indices(height, leaves, self._bare)

    def wrong(self, height: int, leaves: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries that a block should have here and has not, with what they should be."""
        for key, value in self.of(height, leaves):
            stored = self._state.get(key)
            if stored != value and not self._is_better(key, stored, height, leaves):
                yield key, value

    def _is_better(self, key: bytes, stored: bytes | None, height: int, leaves: Sequence[bytes]) -> bool:
        """Whether another block gives this entry, rightly: a batch can have several receipts."""
        if stored is None or any(key == new for new, _ in self._keeper.indices(height, leaves, self._state)):
            return False
        try:
            other = self._keeper.height_of(key, stored)
            if other is None:
                return False
            leaves = layout.decode_receipts(self._store.get(layout.receipts(other)) or b"")
            return (key, stored) in self.of(other, leaves)
        except (*DECODE_ERRORS, ValueError):
            return False


class _WithoutIndices:
    """The state as it is for a block whose indices are not written yet."""

    def __init__(self, state: KeyValue) -> None:
        self._state = state

    def get(self, key: bytes) -> bytes | None:
        return None if key.startswith(layout.INDICES) else self._state.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(()) if prefix.startswith(layout.INDICES) else self._state.scan(prefix)
