"""What must hold in every run with at most f faulty replicas; a checker that speaks has found a broken promise.

Each takes the observations of a run in order and answers with the evidence, in words, when its property is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.consensus.types import Proposal, Timeout, Vote
from parley.replica import wire
from parley.sim.observations import (
    Applied,
    Crashed,
    Ended,
    Failed,
    Healed,
    Observation,
    Opened,
    Persisted,
    Recovered,
    Sent,
    Served,
    Started,
    Submitted,
    Wiped,
)

MAX_VIOLATIONS = 100  # a broken run repeats itself; the first ones tell the story
MIN_PROGRESS = 3  # blocks that every correct replica must commit after the faults end


@dataclass(frozen=True, slots=True)
class Violation:
    """A property that did not hold, and how it shows."""

    checker: str
    time: int
    evidence: str


class Checker(Protocol):
    """One property of a run."""

    name: str

    def see(self, event: Observation) -> str | None:
        """Take the next observation; the evidence if it breaks the property."""


class Checkers:
    """Shows every observation to every checker and keeps what they say."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        self._checkers = tuple(checkers)
        self.violations: list[Violation] = []

    def see(self, time: int, event: Observation) -> None:
        for checker in self._checkers:
            evidence = checker.see(event)
            if evidence is not None and len(self.violations) < MAX_VIOLATIONS:
                self.violations.append(Violation(checker.name, time, evidence))


class Agreement:
    """No two correct replicas commit different blocks at one height, and none changes its mind."""

    name = "agreement"

    def __init__(self) -> None:
        self._committed: dict[int, tuple[bytes, int]] = {}

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Applied):
            return None
        block, first = self._committed.setdefault(event.block.height, (event.block.id, event.replica))
        if block == event.block.id:
            return None
        return (
            f"at height {event.block.height} replica {first} committed {_short(block)} "
            f"and replica {event.replica} committed {_short(event.block.id)}"
        )


class TotalOrder:
    """Every correct replica applies the blocks one after another: no gap, no step back except after a crash."""

    name = "total order"

    def __init__(self) -> None:
        self._height: dict[int, int] = {}

    def see(self, event: Observation) -> str | None:
        match event:
            case Started():
                self._height[event.replica] = event.committed
            case Applied():
                before = self._height.get(event.replica, 0)
                self._height[event.replica] = event.block.height
                if event.block.height != before + 1:
                    return f"replica {event.replica} applied height {event.block.height} right after {before}"
            case _:
                pass
        return None


class NoCreation:
    """Only batches that a client submitted are applied, and each block's receipts are for its own batches."""

    name = "no creation"

    def __init__(self) -> None:
        self._submitted: set[bytes] = set()

    def see(self, event: Observation) -> str | None:
        match event:
            case Submitted():
                self._submitted.add(event.batch)
            case Applied():
                for receipt in event.receipts:
                    if receipt.batch not in self._submitted:
                        return f"replica {event.replica} applied {_short(receipt.batch)}, which no client submitted"
                    if receipt.batch not in event.block.batches:
                        return f"replica {event.replica} applied {_short(receipt.batch)}, which is not in the block"
            case _:
                pass
        return None


class NoDuplication:
    """No batch takes effect twice; `effective` is the receipt's word for taking effect."""

    name = "no duplication"

    def __init__(self, effective: str = "ok") -> None:
        self._word = effective
        self._effective: dict[bytes, tuple[int, int]] = {}

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Applied) or event.suspect:
            return None
        for position, receipt in enumerate(event.receipts):
            if receipt.code != self._word:
                continue
            here = (event.block.height, position)
            first = self._effective.setdefault(receipt.batch, here)
            if first != here:
                return f"batch {_short(receipt.batch)} took effect at {first} and again at {here} (height, position)"
        return None


class OneSignaturePerView:
    """A correct replica never lets two different votes, proposals or timeouts of one view out, whatever its disk lost."""

    name = "one signature per view"

    def __init__(self) -> None:
        self._signed: dict[tuple[int, str, int], bytes] = {}

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Sent):
            return None
        match wire.decode(event.data):
            case Vote() as vote:
                return self._check(event.replica, "vote", vote.view, vote.signer, wire.encode(vote))
            case Proposal(header=header) as proposal:
                return self._check(
                    event.replica, "proposal", header.view, header.proposer, wire.encode(proposal)
                )
            case Timeout(vote=vote) as timeout:
                inner = (
                    self._check(event.replica, "vote", vote.view, vote.signer, wire.encode(vote))
                    if vote
                    else None
                )
                return inner or self._check(
                    event.replica, "timeout", timeout.view, timeout.signer, wire.encode(timeout)
                )
            case _:
                return None

    def _check(self, replica: int, kind: str, view: int, signer: int, message: bytes) -> str | None:
        if signer != replica or self._signed.setdefault((replica, kind, view), message) == message:
            return None
        return f"replica {replica} sent two different {kind}s for view {view}"


class RecordSurvives:
    """After a crash a replica finds the last safety record that it finished, or the one it was writing.

    A wiped disk has a new one; that the replica does not contradict the lost one is `OneSignaturePerView`'s matter.
    """

    name = "record survives"

    def __init__(self) -> None:
        self._finished: dict[int, bytes] = {}
        self._torn: dict[int, bytes | None] = {}

    def see(self, event: Observation) -> str | None:
        match event:
            case Persisted():
                self._finished[event.replica] = event.record
            case Crashed():
                self._torn[event.replica] = event.record
            case Wiped():
                self._finished.pop(event.replica, None)
                self._torn.pop(event.replica, None)
            case Recovered(record=None):
                return f"replica {event.replica} has no safety record any more: {event.fault}"
            case Recovered():
                torn = self._torn.get(event.replica)
                if event.record not in (self._finished.get(event.replica, event.record), torn):
                    return (
                        f"replica {event.replica} came back with another safety record than it had finished"
                    )
                assert event.record is not None
                self._finished[event.replica] = event.record
            case _:
                pass
        return None


class StaysUp:
    """No input stops a correct replica."""

    name = "stays up"

    def see(self, event: Observation) -> str | None:
        return f"replica {event.replica} stopped: {event.why}" if isinstance(event, Failed) else None


class BoundedExecution:
    """No block keeps a correct replica busy for long: it handles nothing else meanwhile."""

    name = "bounded execution"

    def __init__(self, max_ms: int) -> None:
        self._max_ms = max_ms

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Applied) or event.suspect or event.execution_us <= 1_000 * self._max_ms:
            return None
        return (
            f"replica {event.replica} executed block {event.block.height} for {event.execution_us // 1_000} ms, "
            f"longer than {self._max_ms} ms"
        )


class Unhindered:
    """After the faults, a client that asks for little gets it within so many views a step, whatever others ask for.

    A block is committed when leaders of `depth` views in a row and of the one that tells of it are correct, and f liars
    can break f such runs: with the view under way this makes k = (depth + 2) (f + 1) views. As many view timeouts are
    the limit, too: no view ends while all replicas execute, so that views alone would show nothing.
    """

    name = "unhindered"

    def __init__(self, depth: int, liars: int, view_timeout: int) -> None:
        self._views = (depth + 2) * (liars + 1)
        self._view_timeout = view_timeout

    def see(self, event: Observation) -> str | None:
        if not isinstance(event, Served):
            return None
        views = event.steps * self._views
        if event.views <= views and event.milliseconds <= views * self._view_timeout:
            return None
        return (
            f"the {event.asked} of a bystander took {event.views} views and {event.milliseconds / 1_000:.1f} s, "
            f"more than {views} views or their timeouts"
        )


class Liveness:
    """Once faults end, every correct replica moves on, every waiting batch is applied and every disk mended, within bounds."""

    name = "liveness"

    def __init__(self, max_views: int) -> None:
        self._max_views = max_views
        self._healed: Healed | None = None

    def see(self, event: Observation) -> str | None:
        match event:
            case Healed():
                self._healed = event
            case Ended() if self._healed is not None:
                return self._judge(self._healed, event)
            case Opened(whole=False):
                return (
                    f"replica {event.replica} still lacks records, or has damaged ones, or may not sign yet"
                )
            case _:
                pass
        return None

    def _judge(self, healed: Healed, ended: Ended) -> str | None:
        took = f"{(ended.time - healed.time) / 1000:.1f} s after the faults ended"
        if ended.outstanding:
            return (
                f"{took} {len(ended.outstanding)} batches wait, the first is {_short(ended.outstanding[0])}"
            )
        goal = max(progress_goal(healed), ended.settled)
        for status in ended.replicas:
            if not status.up or status.committed < goal:
                state = "up" if status.up else "down"
                return (
                    f"{took} replica {status.replica} is {state}, in view {status.view}, "
                    f"at height {status.committed} instead of {goal}"
                )
        views = max(status.view for status in ended.replicas) - max(status.view for status in healed.replicas)
        if views > self._max_views:
            return f"it took {views} views to move on, more than {self._max_views}"
        return None


def progress_goal(healed: Healed) -> int:
    """The height that every correct replica must reach after the faults ended."""
    return max(status.committed for status in healed.replicas) + MIN_PROGRESS


def _short(digest: bytes) -> str:
    return digest.hex()[:12]
