"""Every number that a broker tells, by name: nothing else is exported, and docs/metrics.md describes all of them.

Names follow the conventions of Prometheus: one prefix, base units, `_total` for what only grows. No label has values
that clients can choose, except topics, which are few, and hashed unless the operator wants their names. Other brokers are
named as in the genesis file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from parley.replica.commit_times import BOUNDS, Durations
from parley.replica.evidence import Kind
from parley.store.disk import METRICS

Value = int | float | Durations
Labels = tuple[str, ...]  # their values
Sample = tuple[Labels, Value]
Reading = tuple[str, Labels, Value]  # the name, then the same

KINDS: tuple[str, ...] = get_args(Kind)  # of misbehaviour


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    public: bool = False  # told on /public_metrics, too

    def family(self, samples: Iterable[Sample]) -> Metric:
        found = _FAMILIES[self.kind](self.name, self.help, labels=self.labels)
        for labels, value in samples:
            if isinstance(found, HistogramMetricFamily):
                assert isinstance(value, Durations), "a histogram is of durations"
                found.add_metric(labels, _buckets(value), value.total / 1_000)
            else:
                assert not isinstance(value, Durations), f"a {self.kind} is a number"
                found.add_metric(labels, value)
        return found


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    ends = [str(bound / 1_000) for bound in BOUNDS] + ["+Inf"]
    return list(zip(ends, accumulate(durations.counts), strict=True))


_FAMILIES: dict[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_SHARD = ("shard",)
_PEER = ("peer",)

CATALOGUE = (
    Entry(
        "parley_build_info",
        "gauge",
        "Always 1; the labels say what runs.",
        ("version", "python"),
        public=True,
    ),
    Entry(
        "parley_info",
        "gauge",
        "Always 1; the labels say which broker of which network this is, and its version.",
        ("network", "broker", "organisation", "chain", "version"),
        public=True,
    ),
    Entry("parley_ready", "gauge", "1 while the broker takes part and serves, as /readyz says.", public=True),
    Entry(
        "parley_loop_lag_seconds",
        "gauge",
        "By how much the event loop was late, at worst, in the last minute.",
    ),
    Entry(
        "parley_loop_held_max_seconds",
        "gauge",
        "The longest that a job has held the event loop since the start, without the time for which it had no processor.",
        ("job",),
    ),
    Entry(
        "parley_disk_sync_max_seconds",
        "gauge",
        "The longest wait for the disk since the start: the store, the safety record, or both.",
    ),
    Entry(
        "parley_block_execution_max_seconds",
        "gauge",
        "The longest that the execution of a block has taken since the start.",
    ),
    Entry(
        "parley_block_receipts_max_bytes",
        "gauge",
        "The most bytes of receipts that a block has had since the start.",
    ),
    # -- throughput
    Entry(
        "parley_publications_total", "counter", "Publications that were ordered and executed.", public=True
    ),
    Entry(
        "parley_publication_bytes_total",
        "counter",
        "Bytes of the batches of publications that were executed.",
        public=True,
    ),
    Entry(
        "parley_batches_total",
        "counter",
        "Batches that were executed, by the code of their receipt.",
        ("result",),
    ),
    Entry(
        "parley_topic_publications_total", "counter", "Publications that were executed, by topic.", ("topic",)
    ),
    Entry(
        "parley_matches_total", "counter", "Places that publications were given in the orders of constraints."
    ),
    Entry(
        "parley_deliveries_total",
        "counter",
        "Messages that were sent to subscribers, withheld ones included.",
    ),
    # -- latency
    Entry(
        "parley_publish_latency_seconds",
        "histogram",
        "From the submission of a batch at this broker to its certified receipt.",
        public=True,
    ),
    Entry(
        "parley_commit_latency_seconds",
        "histogram",
        "From the proposal of a block with batches, as seen here, to its commit.",
        _SHARD,
    ),
    # -- consensus
    Entry("parley_epoch", "gauge", "The epoch of the shard's committee.", _SHARD),
    Entry("parley_view", "gauge", "The view that consensus is in.", _SHARD),
    Entry(
        "parley_view_changes_total", "counter", "Views that ended with a timeout instead of a block.", _SHARD
    ),
    Entry(
        "parley_committed_height",
        "gauge",
        "The height of the last block that is final here.",
        _SHARD,
        public=True,
    ),
    Entry(
        "parley_executed_height",
        "gauge",
        "The height of the last block that was executed.",
        _SHARD,
        public=True,
    ),
    Entry(
        "parley_certified_height",
        "gauge",
        "The height up to which results are certified and can be proven.",
        _SHARD,
    ),
    Entry(
        "parley_certified_age_seconds",
        "gauge",
        "For how long no newer header has been certified, as seen here.",
        _SHARD,
    ),
    Entry(
        "parley_replica_lag_blocks",
        "gauge",
        "Blocks that are final elsewhere and not executed here, as far as the newest certificate tells.",
        _SHARD,
        public=True,
    ),
    Entry(
        "parley_quorum_size", "gauge", "Brokers that a quorum needs, this one included.", _SHARD, public=True
    ),
    Entry("parley_committee_size", "gauge", "Brokers that the shard has.", _SHARD, public=True),
    Entry(
        "parley_peers_connected",
        "gauge",
        "Other brokers that answer this one and are heard by it.",
        public=True,
    ),
    Entry("parley_mempool_batches", "gauge", "Batches that wait for order.", _SHARD),
    Entry("parley_mempool_bytes", "gauge", "Bytes of the batches that wait for order.", _SHARD),
    Entry(
        "parley_mempool_oldest_seconds",
        "gauge",
        "For how long the oldest batch has waited for order here.",
        _SHARD,
    ),
    Entry(
        "parley_messages_dropped_total",
        "counter",
        "Messages to other brokers that were dropped from full queues.",
    ),
    # -- other brokers
    Entry("parley_peer_up", "gauge", "1 while this broker can exchange messages with another one.", _PEER),
    Entry(
        "parley_peer_round_trip_seconds",
        "gauge",
        "How long another broker takes to answer.",
        _PEER,
    ),
    Entry(
        "parley_peer_slow",
        "gauge",
        "1 while another broker takes much longer to answer than it should.",
        _PEER,
    ),
    Entry(
        "parley_votes_included_total",
        "counter",
        "Blocks whose certificates have the vote of a broker.",
        ("shard", "peer"),
    ),
    Entry(
        "parley_recent_votes_ratio",
        "gauge",
        "In how many of the last 100 certificates there is a vote of a broker: 1 is all of them.",
        ("shard", "peer"),
    ),
    Entry(
        "parley_failed_views_total",
        "counter",
        "Views that ended with a timeout instead of a block, by the broker that led them.",
        ("shard", "peer"),
    ),
    # -- clients
    Entry("parley_clients_connected", "gauge", "Clients that are connected, each counted once.", public=True),
    Entry("parley_subscriptions", "gauge", "Subscriptions whose lease lasts."),
    Entry(
        "parley_requests_refused_total",
        "counter",
        "What clients asked and did not get, by code.",
        ("reason",),
    ),
    Entry(
        "parley_connections_refused_total",
        "counter",
        "Connections that ended before it was known who came.",
        ("reason",),
    ),
    # -- storage
    Entry("parley_storage_bytes", "gauge", "Bytes that the files of the store take."),
    Entry(
        "parley_storage_limit_bytes",
        "gauge",
        "Bytes that they may take, from storage.max_bytes; 0: all there is.",
    ),
    Entry("parley_storage_free_bytes", "gauge", "Bytes that are free on the file system of the store."),
    *(Entry(metric.name, "gauge", metric.about) for metric in METRICS),
    # -- security and care
    Entry(
        "parley_byzantine_evidence_total",
        "counter",
        "Times that a broker was caught with two contradicting things that it has signed.",
        ("kind", "peer"),
        public=True,
    ),
    Entry(
        "parley_evidence_records",
        "gauge",
        "Records in the store that prove that a broker signed two contradicting things.",
        _PEER,
        public=True,
    ),
    Entry(
        "parley_messages_refused_total",
        "counter",
        "Messages of other brokers that were refused.",
        ("reason", "peer"),
    ),
    Entry(
        "parley_scrub_passes_total",
        "counter",
        "Times that the whole store was searched for damage.",
        _SHARD,
    ),
    Entry(
        "parley_damage_total",
        "counter",
        "Damaged entries of the store: told when found, and when mended.",
        ("mended",),
    ),
    Entry("parley_damage_open", "gauge", "Damaged entries of the store that are not mended yet."),
    Entry(
        "parley_certificate_expiry_seconds",
        "gauge",
        "When the broker's TLS certificate ends, in seconds since 1970.",
        public=True,
    ),
    Entry(
        "parley_authority_expiry_seconds",
        "gauge",
        "When the certificate of the organisation's authority ends, in seconds since 1970.",
        public=True,
    ),
    Entry(
        "parley_clock_offset_seconds",
        "gauge",
        "By how much the clocks of the other brokers are ahead of this one.",
    ),
)
