"""Metrics of other brokers by name. The genesis file fixes the names, so no stranger can add a series."""

from __future__ import annotations

from collections.abc import Iterator

from parley.node.peers import GARBAGE, Peers
from parley.node.status import StatusReport
from parley.node.telemetry.catalogue import KINDS, Reading
from parley.node.telemetry.tally import Tally
from parley.replica.replica import Replica


def of_peers(peers: Peers, tally: Tally) -> Iterator[Reading]:
    """Numbers of the brokers that share a shard with this one."""
    for place, name in peers.others.items():
        yield from _of_peer(peers, place, name)
        yield from _misdeeds(tally, name)


def of_members(status: StatusReport) -> Iterator[Reading]:
    """Numbers of the members of one shard, this broker included in those of votes and views."""
    replica, config = status.driver.replica, status.config
    if not isinstance(replica, Replica):  # while a snapshot is fetched there is none
        return
    for index, (name, records) in enumerate(zip(config.committee.names, replica.accused, strict=True)):
        yield from _of_member(replica, index, (str(config.shard), name))
        if index != config.index:
            yield "parley_evidence_records", (name,), records


def _of_peer(peers: Peers, index: int, name: str) -> Iterator[Reading]:
    yield "parley_peer_up", (name,), int(peers.connected(index))
    yield "parley_peer_slow", (name,), int(peers.is_slow(index))
    if (took := peers.round_trip_ms(index)) is not None:
        yield "parley_peer_round_trip_seconds", (name,), took / 1_000


def _misdeeds(tally: Tally, name: str) -> Iterator[Reading]:
    for kind in KINDS:
        yield "parley_byzantine_evidence_total", (kind, name), tally.misbehaviour[name, kind]
    # Reasons that no correct broker causes are shown with 0 as well, so that the first one is seen as an increase.
    told = {**dict.fromkeys(GARBAGE, 0), **tally.messages_refused.get(name, {})}
    for reason, count in sorted(told.items(), key=lambda item: item[0].name):
        yield "parley_messages_refused_total", (reason.name.lower(), name), count


def _of_member(replica: Replica, index: int, labels: tuple[str, str]) -> Iterator[Reading]:
    votes = replica.votes
    yield "parley_votes_included_total", labels, votes.total[index]
    if votes.blocks:
        yield "parley_recent_votes_ratio", labels, votes.counts[index] / votes.blocks
    yield "parley_failed_views_total", labels, replica.failed_views[index]
