"""Judges a history: a pure function from records to a verdict, by the goals of Chios III-A and some of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec import Struct

from parley.chaos import bars, checks
from parley.chaos.facts import Facts
from parley.chaos.history import Record

MAX_DETAILS = 20  # of each property that are told; all are counted


class Violation(Struct, frozen=True):
    name: str
    detail: str


class Verdict(Struct, frozen=True):
    """`counts` has a number for each property that does not hold; `violations` are the first places of each."""

    violations: tuple[Violation, ...]
    counts: dict[str, int]
    invoked: int
    acknowledged: int
    refused: int
    unknown: int
    delivered: int
    empties: int
    read: int
    caught: int

    @property
    def holds(self) -> bool:
        return not self.violations

    @property
    def names(self) -> list[str]:
        return list(self.counts)

    @property
    def lost(self) -> int:
        return self.counts.get("nothing-lost", 0)

    @property
    def doubled(self) -> int:
        return self.counts.get("no-duplication", 0)

    @property
    def reordered(self) -> int:
        return self.counts.get("total-order-2", 0)


def judge(records: Iterable[Record]) -> Verdict:
    facts = Facts(records)
    violations: list[Violation] = []
    counts: dict[str, int] = {}
    for name, find in CHECKS.items():
        found = find(facts)
        first = [Violation(name, detail) for detail in islice(found, MAX_DETAILS)]
        if first:
            violations += first
            counts[name] = len(first) + sum(1 for _ in found)
    deliveries = [delivery for _, delivery in facts.deliveries()]
    return Verdict(
        violations=tuple(violations),
        counts=counts,
        invoked=len(facts.invoked),
        acknowledged=len(facts.acknowledged),
        refused=len(facts.failed),
        unknown=facts.unknown,
        delivered=sum(not delivery.empty for delivery in deliveries),
        empties=sum(delivery.empty for delivery in deliveries),
        read=sum(len(entries) for entries in facts.log.values()),
        caught=len(facts.caught),
    )


# The functions that find where a property does not hold; the first eight are goals of Chios.
CHECKS: dict[str, Callable[[Facts], Iterator[str]]] = {
    "agreement-1": checks.agreement_1,
    "agreement-2": checks.agreement_2,
    "total-order-1": checks.total_order_1,
    "total-order-2": checks.total_order_2,
    "liveness-1": checks.liveness_1,
    "liveness-2": checks.liveness_2,
    "no-creation": checks.no_creation,
    "no-duplication": checks.no_duplication,
    "nothing-lost": checks.nothing_lost,
    "committed-reads": checks.committed_reads,
    "revocation": checks.revocation,
    "access": checks.access,
    "refused-stays-out": checks.refused_stays_out,
    "sound-stores": checks.sound_stores,
    "brokers-stay": checks.brokers_stay,
    "no-false-blame": checks.no_false_blame,
    "complete": checks.complete,
    "fair-latency": bars.fair_latency,
    "attacks-fail": bars.attacks_fail,
    "bounded-memory": bars.bounded_memory,
    "bounded-execution": bars.bounded_execution,
    "free-loop": bars.free_loop,
    "bounded-receipts": bars.bounded_receipts,
}
