"""Judges a history: a pure function from records to a verdict, by the goals of Chios III-A and some of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from parley.chaos import checks
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


class Check(NamedTuple):
    """A property, what Chios calls it, and the function that finds where it does not hold."""

    name: str
    goal: str
    find: Callable[[Facts], Iterator[str]]


def judge(records: Iterable[Record]) -> Verdict:
    facts = Facts(records)
    violations: list[Violation] = []
    counts: dict[str, int] = {}
    for check in CHECKS:
        found = check.find(facts)
        first = [Violation(check.name, detail) for detail in islice(found, MAX_DETAILS)]
        if first:
            violations += first
            counts[check.name] = len(first) + sum(1 for _ in found)
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


CHECKS = (
    Check("agreement-1", "Agreement 1", checks.agreement_1),
    Check("agreement-2", "Agreement 2", checks.agreement_2),
    Check("total-order-1", "Total Order 1", checks.total_order_1),
    Check("total-order-2", "Total Order 2", checks.total_order_2),
    Check("liveness-1", "Liveness 1", checks.liveness_1),
    Check("liveness-2", "Liveness 2", checks.liveness_2),
    Check("no-creation", "No Creation", checks.no_creation),
    Check("no-duplication", "No Duplication", checks.no_duplication),
    Check("nothing-lost", "", checks.nothing_lost),
    Check("committed-reads", "", checks.committed_reads),
    Check("revocation", "", checks.revocation),
    Check("access", "", checks.access),
    Check("refused-stays-out", "", checks.refused_stays_out),
    Check("sound-stores", "", checks.sound_stores),
    Check("brokers-stay", "", checks.brokers_stay),
    Check("no-false-blame", "", checks.no_false_blame),
    Check("complete", "", checks.complete),
)
