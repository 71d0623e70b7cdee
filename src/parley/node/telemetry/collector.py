"""Reads a broker's numbers when they are asked for, from the parts that keep them: watching costs nothing else."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

import parley
from parley.application.executed import Executed
from parley.crypto.hashing import digest
from parley.model.refusals import DUPLICATE, OK, classes
from parley.modules.subscriptions.index import SUBSCRIPTION_INDEX
from parley.node.holding import Holding
from parley.node.status import StatusReport
from parley.node.telemetry.catalogue import CATALOGUE, Labels, Reading, Value
from parley.node.telemetry.health import Life, Pulse, ShardLife, obstacles
from parley.node.telemetry.others import of_members, of_peers
from parley.node.telemetry.tally import TURNED_AWAY, Tally
from parley.replica.commit_times import Durations
from parley.replica.replica import Replica

OTHER = "other"  # all topics beyond those that are counted by name


def topic_label(chain: bytes, topic: str) -> str:
    """Equal at all brokers of a network; a name that can be guessed can be found out by trying it."""
    return digest("metrics/topic", chain, topic.encode()).hex()[:16]


@dataclass(eq=False)
class BrokerCollector:
    """A collector of prometheus_client. Between two lives of a broker only the process's own numbers are there."""

    tally: Tally
    pulse: Pulse
    holding: Holding
    chain: bytes
    clear_topics: bool
    about: tuple[str, str, str] = ("", "", "")  # the names of the network, the broker and its organisation
    life: Life | None = None
    storage_bytes: int | None = None  # measured by whoever asks, because it takes a while

    def collect(self) -> Iterator[Metric]:
        found: defaultdict[str, dict[Labels, Value]] = defaultdict(dict)
        for name, labels, value in self._readings():
            before = found[name].get(labels)
            # Numbers without the label of their shard are those of the whole broker.
            found[name][labels] = value if before is None else added(before, value)
        for entry in CATALOGUE:
            yield entry.family(found.pop(entry.name, {}).items())
        assert not found, f"not in the catalogue: {', '.join(found)}"

    def describe(self) -> list[Metric]:
        return [entry.family(()) for entry in CATALOGUE]

    def _readings(self) -> Iterator[Reading]:
        yield from self._of_process()
        if self.life is not None:
            for one in self.life.shards:
                yield from self._of_ledger(one)
                yield from _of_consensus(one.status)
                yield from _of_store(one)
                yield from of_members(one.status)
            yield from self._of_disk(self.life)
            yield from of_peers(self.life.peers, self.tally)
            yield from _of_broker(self.life)

    def _of_process(self) -> Iterator[Reading]:
        tally = self.tally
        yield "parley_build_info", (parley.__version__, platform.python_version()), 1
        yield "parley_info", (*self.about, self.chain.hex(), parley.__version__), 1
        yield from _each(
            (),
            parley_ready=int(not obstacles(self.life)),
            parley_loop_lag_seconds=self.pulse.worst / 1_000,
            parley_disk_sync_max_seconds=tally.longest_sync_ns / 1e9,
            parley_block_execution_max_seconds=tally.longest_execution_ns / 1e9,
            parley_block_receipts_max_bytes=tally.largest_receipts,
            parley_publish_latency_seconds=tally.receipts,
            parley_deliveries_total=tally.deliveries,
        )
        for job, longest in self.holding.longest.items():
            yield "parley_loop_held_max_seconds", (job,), longest / 1e9
        for code in classes():
            yield "parley_requests_refused_total", (code,), tally.refused[code]
        for reason in TURNED_AWAY:
            yield "parley_connections_refused_total", (reason,), tally.turned_away[reason]
        for mended in (False, True):
            yield "parley_damage_total", (str(mended).lower(),), tally.damage[mended]

    def _of_ledger(self, life: ShardLife) -> Iterator[Reading]:
        machine, executed = life.machine, life.machine.executed
        yield from _each(
            (),
            parley_publications_total=executed.totals["publications"],
            parley_publication_bytes_total=executed.totals["publication_bytes"],
            parley_matches_total=executed.totals["matches"],
        )
        for code in (OK, DUPLICATE, *classes()):
            yield "parley_batches_total", (code,), executed.batches[code]
        for label, count in self._topics(executed).items():
            yield "parley_topic_publications_total", (label,), count
        if (subscriptions := (machine.derived or {}).get(SUBSCRIPTION_INDEX)) is not None:
            yield "parley_subscriptions", (), len(subscriptions)

    def _topics(self, executed: Executed) -> Counter[str]:
        """Added up by label: a topic may be called like all the others together."""
        found: Counter[str] = Counter()
        for topic, count in executed.labelled.get("publications", {}).items():
            found[topic if self.clear_topics else topic_label(self.chain, topic)] += count
        if others := executed.others["publications"]:
            found[OTHER] += others
        return found

    def _of_disk(self, life: Life) -> Iterator[Reading]:
        rooms = [one.status.room for one in life.shards]
        if self.storage_bytes is not None:
            yield "parley_storage_bytes", (), self.storage_bytes
        yield "parley_storage_limit_bytes", (), sum(room.max_bytes for room in rooms)
        yield "parley_storage_free_bytes", (), min(room.free for room in rooms)


def _of_store(life: ShardLife) -> Iterator[Reading]:
    for name, value in life.store.metrics():
        yield name, (), value


def _of_consensus(status: StatusReport) -> Iterator[Reading]:
    replica, committee = status.driver.replica, status.config.committee
    labels = (str(committee.shard),)
    yield from _each(
        labels,
        parley_epoch=committee.epoch,
        parley_view=replica.view,
        parley_committed_height=replica.committed_height,
        parley_executed_height=replica.executed_height,
        parley_certified_height=status.feed.height,
        parley_quorum_size=committee.quorum,
        parley_committee_size=committee.size,
        parley_certified_age_seconds=status.driver.still_ms / 1_000,
    )
    if isinstance(replica, Replica):  # while a snapshot is fetched there is none
        batches, size = replica.waiting
        since = replica.waiting_since
        yield from _each(
            labels,
            parley_mempool_batches=batches,
            parley_mempool_bytes=size,
            parley_mempool_oldest_seconds=0 if since is None else max(0, status.now() - since) / 1_000,
            parley_replica_lag_blocks=replica.behind,
            parley_view_changes_total=replica.given_up,
            parley_commit_latency_seconds=replica.commits.took,
            parley_scrub_passes_total=replica.searched,
        )
        yield "parley_damage_open", (), replica.damaged


def _of_broker(life: Life) -> Iterator[Reading]:
    yield from _each(
        (),
        parley_peers_connected=sum(map(life.peers.connected, life.peers.others)),
        parley_clients_connected=len(life.clients),
        parley_messages_dropped_total=life.peers.dropped,
        parley_certificate_expiry_seconds=life.showing.current.ends // 1_000,
        parley_authority_expiry_seconds=life.showing.authority_ends // 1_000,
    )
    if (offset := life.clock.offset()) is not None:
        yield "parley_clock_offset_seconds", (), offset / 1_000


def added(one: Value, other: Value) -> Value:
    """The sum of one number of two shards."""
    assert not isinstance(one, Durations), "durations are told for each shard"
    assert not isinstance(other, Durations), "durations are told for each shard"
    return one + other


def _each(labels: tuple[str, ...], **values: Value) -> Iterator[Reading]:
    """Numbers by name that have the same labels."""
    return ((name, labels, value) for name, value in values.items())
