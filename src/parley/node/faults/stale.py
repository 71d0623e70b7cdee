"""A ledger that stands still when it is told to: what a broker shows that will not show anything new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from parley.ledger.proofs import Anchor, BlockProof
from parley.ledger.recent import RecentStates
from parley.model.refusals import NotReady, Refused
from parley.node.archive import Archive
from parley.node.faults.switches import STALE, Switches
from parley.node.feed import Feed
from parley.node.view import Ledger, View
from parley.store.interface import Lookup, StoreReader


class StaleLedger(Ledger):
    """The ledger, unless `stale` is set: then the view that was the newest at that moment, for ever."""

    def __init__(
        self,
        archive: Archive,
        states: RecentStates,
        feed: Feed,
        *,
        switches: Switches,
        store: StoreReader,
        now: Callable[[], int],
    ) -> None:
        super().__init__(archive, states, feed)
        self._switches = switches
        self._store = store
        self._now = now
        self._then: View | None = None

    def view(self) -> View:
        if not self._switches.active or not self._switches.has(STALE):
            return super().view()
        if self._then is None:
            newest = super().view()
            # Blocks that were executed but not certified are undone; those to come never reach the frozen store.
            undone = self._states.replaced_after(newest.height)
            state = RecentStates(_Over(self._store.frozen(), undone), newest.height)
            self._then = _OldView(self.archive, state, newest.anchor, self._now)
        return self._then

    def switch(self) -> None:
        """A switch was changed: stand still from now on, or go on."""
        if not self._switches.has(STALE):
            self.drop()
        try:
            self.view()
        except Refused:  # there is nothing to stand still at yet
            return

    def drop(self) -> None:
        """Let go of the frozen store, which cannot be closed before."""
        self._then = None


class _OldView(View):
    """It calls itself new, and knows nothing of what came later."""

    def __init__(
        self, archive: Archive, states: RecentStates, anchor: Anchor, now: Callable[[], int]
    ) -> None:
        super().__init__(archive, states.at(anchor.header.executed_height), anchor)
        self._now = now

    @property
    def time(self) -> int:
        return self._now()

    def leaves(self, height: int, positions: Sequence[int]) -> BlockProof:
        if height > self.height:
            raise NotReady("height", height=self.height)
        return super().leaves(height, positions)


@dataclass(frozen=True, slots=True)
class _Over:
    """Old values laid over a store."""

    store: Lookup
    values: Mapping[bytes, bytes | None]

    def get(self, key: bytes, /) -> bytes | None:
        return self.values[key] if key in self.values else self.store.get(key)
