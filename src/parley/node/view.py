"""The ledger as one certified header proves it: everything that a broker shows is as of such a header (P2, P7)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Raw

from parley.application.tables import K, R, Table
from parley.ledger import layout, recent, state_map
from parley.ledger.proofs import Anchor, BlockProof, StateEntry
from parley.ledger.recent import HeightError, RecentStates
from parley.model.refusals import NotReady
from parley.net.messages import encode
from parley.node.archive import Archive
from parley.node.feed import Feed

MAX_REMEMBERED = 4_096  # records and proofs of one view
MAX_REMEMBERED_PROOFS = 64  # of blocks; each may be as large as what matched in its block


class View:
    """To be used at once: after more blocks, the state of its height may no longer be kept."""

    def __init__(self, archive: Archive, state: recent.View, anchor: Anchor) -> None:
        self.archive = archive
        self.anchor = anchor
        self.height = state.height
        self._state = state
        self._records: dict[bytes, Any] = {}
        self._entries: dict[bytes, StateEntry] = {}
        self._proofs: dict[tuple[int, tuple[int, ...]], Raw] = {}

    @property
    def time(self) -> int:
        return self.anchor.header.time

    def read(self, table: Table[R, *K], *key: *K) -> R | None:
        """A record of the certified state."""
        packed = table.key(*key)
        if packed in self._records:
            record: R | None = self._records[packed]
            return record
        data = self._read(packed)
        found = None if data is None else table.decode(data)
        if len(self._records) < MAX_REMEMBERED:
            self._records[packed] = found
        return found

    def entry(self, key: bytes) -> StateEntry:
        """An entry of the certified state, or its absence, with the proof."""
        found = self._entries.get(key)
        if found is None:
            found = StateEntry(key, self._read(key), state_map.prove(_Nodes(self._state), key))
            if len(self._entries) < MAX_REMEMBERED:
                self._entries[key] = found
        return found

    def _read(self, key: bytes) -> bytes | None:
        try:
            return self._state.get(layout.state(key))
        except HeightError as error:
            raise NotReady("moved_on", fault=str(error)) from None

    def leaves(self, height: int, positions: Sequence[int]) -> BlockProof:
        """Receipts of a block up to the certified height, at ascending positions."""
        return self.archive.block(height).prove(positions, self.archive.history(height, self.height))

    def proof(self, height: int, positions: tuple[int, ...]) -> Raw:
        """The same, encoded: many are sent the same."""
        found = self._proofs.get((height, positions))
        if found is None:
            found = Raw(encode(self.leaves(height, positions)))
            if len(self._proofs) < MAX_REMEMBERED_PROOFS:
                self._proofs[height, positions] = found
        return found

    @cached_property
    def encoded_anchor(self) -> Raw:
        return Raw(encode(self.anchor))


class Ledger:
    """Gives everybody the same newest view, which can be read until the next block is applied."""

    def __init__(self, archive: Archive, states: RecentStates, feed: Feed) -> None:
        self.archive = archive
        self._states = states
        self._feed = feed
        self._view: View | None = None

    def view(self) -> View:
        """Raises `NotReady` while there is no certified header with results that are still kept."""
        anchor = self._feed.anchor
        if anchor is None or anchor.header.executed_height == 0:
            raise NotReady("no_results")
        try:
            state = self._states.at(anchor.header.executed_height)
        except HeightError as error:
            raise NotReady("catching_up", fault=str(error)) from None
        if self._view is None or self._view.anchor is not anchor:
            self._view = View(self.archive, state, anchor)
        return self._view

    def require_whole(self) -> None:
        """Raises `NotReady` while old records are missing: what is not here yet must not look as if it never was."""
        if not self.archive.is_whole():
            raise NotReady("filling_in")


class _Nodes:
    def __init__(self, state: recent.View) -> None:
        self._state = state

    def get(self, path: bytes, /) -> bytes | None:
        return self._state.get(layout.state_node(path))
