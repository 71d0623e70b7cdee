"""Erasing bodies: those that retention has ended, with what has to stay of them, and those that nobody will ask for (P21)."""

from __future__ import annotations

from collections import OrderedDict

from parley.ledger import layout
from parley.ledger.application import Application
from parley.model.codec import DECODE_ERRORS
from parley.replica.chain import Entries, StateView
from parley.replica.findings import Finding, Put
from parley.replica.overlay import Overlay
from parley.replica.ports import Write
from parley.replica.scrub import Orphan
from parley.replica.scrub_blocks import Outdated

__all__ = ["Eraser"]

MAX_ERASED = 256  # bodies a round
MAX_ORPHANS = 4_096  # bodies that are remembered as nobody's
ORPHAN_AGE = 600_000  # ms between two sightings after which a body is nobody's for good


class Eraser:
    def __init__(self, store: Overlay, application: Application) -> None:
        self._store = store
        self._application = application
        self._state = StateView(store)
        self._orphans: OrderedDict[bytes, int] = OrderedDict()  # when they were seen first

    def erase(self) -> tuple[Entries, list[Finding]]:
        """What the application says is over: the writes, and the bodies of which nothing could be kept."""
        try:
            over = self._application.erase(self._state, MAX_ERASED)
        except (*DECODE_ERRORS, ValueError):  # the state is damaged, which is found and mended elsewhere
            return [], []
        entries: Entries = [(b"s/" + key, value) for key, value in over.writes]
        lost: list[Finding] = []
        for name in over.batches:
            gone, damaged = self._gone(name)
            entries += gone
            lost += damaged
        return entries, lost

    def meet(self, item: Orphan | Outdated, now: int, *, filling: bool) -> list[Write]:
        """A body that should not be here. While old records are filled in nobody knows yet which are needed."""
        if isinstance(item, Outdated):
            entries, _ = self._gone(item.name)
            return [self._write(entries)] if entries else []
        if filling:
            return []
        first = self._orphans.setdefault(item.name, now)
        if len(self._orphans) > MAX_ORPHANS:
            self._orphans.popitem(last=False)
        if now - first < ORPHAN_AGE:
            return []
        self._orphans.pop(item.name, None)
        return [self._write([(layout.batch(item.name), None)])]

    def _gone(self, name: bytes) -> tuple[Entries, list[Finding]]:
        body = self._store.get(layout.batch(name))
        if body is None:
            return [], []
        gone = (layout.batch(name), None)
        try:
            return [(layout.erased(name), self._application.remains(body)), gone], []
        except (*DECODE_ERRORS, ValueError):
            return [gone], [Finding(gone[0], "cannot be read, so nothing of it stays", Put(None))]

    def _write(self, entries: Entries) -> Write:
        self._store.write(entries)
        return Write(tuple(entries), sync=False)
