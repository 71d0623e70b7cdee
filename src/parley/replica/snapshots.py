"""Snapshots for others: on request the state of one height is frozen, and offered once a quorum has certified it (P2)."""

from __future__ import annotations

from parley.consensus.types import QC, Header
from parley.ledger.application import KeyValue
from parley.sync.messages import (
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
)

__all__ = ["Snapshots"]


class Snapshots:
    """What this broker can give to one that has fallen too far behind."""

    def wants(self, height: int) -> bool:
        """Whether the state of this height, the last executed one, should be frozen now."""
        del height
        return False

    def freeze(self, height: int, view: KeyValue) -> None:
        del height, view

    def certified(self, header: Header, qc: QC) -> None:
        """A header is certified whose results this replica has computed, too."""
        del header, qc

    def offer(self, request: SnapshotRequest, now: int) -> SnapshotOffer | None:
        del request, now
        return None

    def nodes(self, request: NodesRequest, now: int) -> SnapshotNodes | None:
        """None: there is no such snapshot here any more."""
        del request, now
        return None

    def entries(self, request: EntriesRequest, now: int) -> SnapshotEntries | None:
        del request, now
        return None
