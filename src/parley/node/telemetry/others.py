"""Metrics of other brokers by name. The genesis file fixes the names, so no stranger can add a series."""

from __future__ import annotations

from collections.abc import Iterator

from parley.node.peers import GARBAGE
from parley.node.status import StatusReport
from parley.node.telemetry.catalogue import KINDS, SHARD, Reading
from parley.node.telemetry.tally import Tally
from parley.replica.replica import Replica


def of_others(status: StatusReport, tally: Tally) -> Iterator[Reading]:
    """Numbers that name a broker; those of votes and views name this one, too."""
    names = [broker.name for broker in status.config.genesis.brokers]
    own = status.config.index
    for index, name in enumerate(names):
        if index != own:
            yield from _of_peer(status, index, name)
            yield from _misdeeds(tally, index, name)
    if isinstance(replica := status.driver.replica, Replica):
        for index, (name, records) in enumerate(zip(names, replica.accused, strict=True)):
            yield from _of_member(replica, index, name)
            if index != own:
                yield "parley_evidence_records", (name,), records


def _of_peer(status: StatusReport, index: int, name: str) -> Iterator[Reading]:
    peers = status.peers
    yield "parley_peer_up", (name,), int(peers.connected(index))
    yield "parley_peer_slow", (name,), int(peers.is_slow(index))
    if (took := peers.round_trip_ms(index)) is not None:
        yield "parley_peer_round_trip_seconds", (name,), took / 1_000


def _misdeeds(tally: Tally, index: int, name: str) -> Iterator[Reading]:
    for kind in KINDS:
        yield "parley_byzantine_evidence_total", (kind, name), tally.misbehaviour[index, kind]
    # Reasons that no correct broker causes are shown with 0 as well, so that the first one is seen as an increase.
    told = {**dict.fromkeys(GARBAGE, 0), **tally.messages_refused.get(index, {})}
    for reason, count in sorted(told.items(), key=lambda item: item[0].name):
        yield "parley_messages_refused_total", (reason.name.lower(), name), count


def _of_member(replica: Replica, index: int, name: str) -> Iterator[Reading]:
    votes, labels = replica.votes, (*SHARD, name)
    yield "parley_votes_included_total", labels, votes.total[index]
    if votes.blocks:
        yield "parley_recent_votes_ratio", labels, votes.counts[index] / votes.blocks
    yield "parley_failed_views_total", labels, replica.failed_views[index]
