"""Snapshots for others: on request the state of one height is frozen, and offered once a quorum has certified it (P2)."""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.types import QC, Header
from parley.ledger import layout, state_map
from parley.store.interface import KeyValue
from parley.sync.messages import (
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
)

STEP = 4  # heights between snapshots: brokers that are asked at about the same time freeze the same ones
MAX_PENDING = 8  # frozen heights that no certified header has named yet
MAX_AGE = 256  # executed heights since, after which a newer snapshot is taken instead of offering an old one
MAX_ANSWER = 512 * 1024  # bytes of entries; a full answer of nodes is smaller
IN_USE = 60_000  # ms since its last question for which a member keeps the snapshot that it is fetching
FORGOTTEN = 600_000  # ms without any question, after which nothing is kept: frozen views hold disk space
LIFETIME = (
    3_600_000  # ms after which a view goes whoever still asks: a liar could fill the disk by never ending
)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    offer: SnapshotOffer
    view: KeyValue
    since: int  # when


@dataclass(frozen=True, slots=True)
class _Use:
    height: int
    last: int  # when


def least() -> int:
    """Bytes that an answer has if more entries are to come: by single entries a liar could keep a joiner for ever."""
    return MAX_ANSWER // 8


class Snapshots:
    """What this broker can give to one that has fallen too far behind.

    Kept are the newest snapshot and for each member the one that it is fetching: a member that asks for newer and newer
    ones takes none away from another.
    """

    def __init__(self) -> None:
        self._pending: dict[int, KeyValue] = {}  # by height, lowest first
        self._ready: dict[int, _Snapshot] = {}
        self._uses: dict[int, _Use] = {}  # by member
        self._wanted = False
        self._executed = 0
        self._now = 0
        self._asked = 0  # when, by anybody

    @property
    def kept(self) -> tuple[int, ...]:
        """The heights of which a view is held, certified or not."""
        return (*self._ready, *self._pending)

    def wants(self, height: int, now: int) -> bool:
        """Whether the state of this height, the last executed one, should be frozen now. To be called in every step."""
        before, self._executed, self._now = self._executed, height, now
        if self._ready or self._pending:
            self._tidy(now)
        # Several blocks may be executed in one step. If it is always the same number, no step may ever end at such a height.
        is_due = height % STEP == 0 or height // STEP > before // STEP
        return self._wanted and is_due and height > 0 and height not in self.kept

    def freeze(self, height: int, view: KeyValue) -> None:
        if len(self._pending) == MAX_PENDING:  # of heights that headers have skipped, or will name last
            del self._pending[min(self._pending)]
        self._pending[height] = view

    def certified(self, header: Header, qc: QC) -> None:
        """A header is certified whose results this replica has computed, too."""
        height = header.executed_height
        view = self._pending.get(height)
        self._pending = {pending: kept for pending, kept in self._pending.items() if pending > height}
        head = None if view is None else layout.readable(layout.decode_head, view.get(layout.HEAD))
        if view is not None and head is not None and head.height == height:
            self._ready[height] = _Snapshot(SnapshotOffer(header, qc, head.history), view, self._now)
            self._pending.clear()
            self._wanted = False

    def drop(self) -> None:
        """Let go of every view, so that the store can be closed."""
        self._pending.clear()
        self._ready.clear()
        self._wanted = False

    # -- questions of members ------------------------------------------------------------------------------------------

    def offer(self, sender: int, request: SnapshotRequest, now: int) -> SnapshotOffer | None:
        self._asked = now
        newest = max(self._ready, default=0)
        if newest > request.above and newest + MAX_AGE >= self._executed:
            self._uses[sender] = _Use(newest, now)
            return self._ready[newest].offer
        if request.above < self._executed:  # or what is frozen now would not do
            self._wanted = True
        return None

    def nodes(self, sender: int, request: NodesRequest, now: int) -> SnapshotNodes | None:
        """None: there is no such snapshot here any more."""
        view = self._used(sender, request.height, now)
        if view is None:
            return None
        nodes = layout.StateNodes(view)
        found = tuple(_node(nodes, path) for path in request.paths)
        return SnapshotNodes(request.height, request.paths[0], found)

    def entries(self, sender: int, request: EntriesRequest, now: int) -> SnapshotEntries | None:
        view = self._used(sender, request.height, now)
        if view is None:
            return None
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in view.scan(layout.STATE, layout.state(request.after) + b"\0"):
            more = len(key) + len(value)
            if found and size >= least() and size + more > MAX_ANSWER:
                return SnapshotEntries(request.height, request.after, tuple(found), more=True)
            found.append((key[len(layout.STATE) :], value))
            size += more
        return SnapshotEntries(request.height, request.after, tuple(found), more=False)

    def _used(self, sender: int, height: int, now: int) -> KeyValue | None:
        snapshot = self._ready.get(height)
        if snapshot is None:
            return None
        self._asked = now
        self._uses[sender] = _Use(height, now)
        return snapshot.view

    def _tidy(self, now: int) -> None:
        if now - self._asked > FORGOTTEN:
            self.drop()
            return
        used = {use.height for use in self._uses.values() if now - use.last <= IN_USE}
        used.add(max(self._ready, default=0))
        self._ready = {
            height: kept
            for height, kept in self._ready.items()
            if height in used and now - kept.since <= LIFETIME
        }


def _node(nodes: layout.StateNodes, path: bytes) -> bytes:
    """Empty if there is none, or if it is damaged: the asker turns to another member."""
    try:
        found = state_map.standing(nodes, path)
    except state_map.DamagedMap:
        return b""
    return found if found is not None and len(found) <= state_map.MAX_NODE else b""
