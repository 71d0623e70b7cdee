"""What counts as misbehaviour of a broker: that certified blocks lack its votes for long, or that it signed two words.

Silence is decided from the voters of certified blocks, in ledger order. A certificate holds a quorum of votes and not
all, so a single block proves nothing about anybody. Equivocation is proved by the two messages, whoever shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from parley.consensus.errors import Refused
from parley.consensus.types import Proposal
from parley.consensus.verify import Verifier
from parley.crypto.hashing import digest
from parley.model.genesis import Broker
from parley.replica import evidence
from parley.spark.detect_rules import Alert, Kind, Phase, Severity, Thresholds


class Voted(Struct, frozen=True, order=True):
    """A broker's vote that a certified block carries, or another sign of life in it; sorted: in ledger order."""

    height: int
    time: int
    broker: str


class _Last(Struct, array_like=True):
    """When a broker was heard last; `told` is the height at which its silence was."""

    height: int
    time: int
    told: int = 0


class BrokersState(Struct, array_like=True):
    """The block that votes come for now, and one place for each broker of the genesis file."""

    height: int = 0
    time: int = 0
    brokers: dict[str, _Last] = field(default_factory=dict)


def heard(state: BrokersState, brokers: Sequence[Broker], vote: Voted, limits: Thresholds) -> list[Alert]:
    """Take the next vote into account. Mutates `state`.

    A block is judged when the first vote of a later one comes: where a micro-batch ends makes no difference.
    """
    alerts: list[Alert] = []
    if vote.height > state.height:
        # Whoever starts to watch has heard nobody yet, and cannot complain of it.
        for broker in brokers:
            last = state.brokers.setdefault(broker.name, _Last(vote.height, vote.time))
            if not last.told and _is_silent(last, state, limits):
                last.told = state.height
                alerts.append(_silence(broker, last, state))
        state.height, state.time = vote.height, vote.time
    for broker in brokers:
        if broker.name == vote.broker:
            before = state.brokers[broker.name]
            alerts += [_return(broker, before, vote)] if before.told else []
            state.brokers[broker.name] = _Last(vote.height, vote.time)
    return alerts


def _is_silent(last: _Last, now: BrokersState, limits: Thresholds) -> bool:
    return now.height - last.height >= limits.silent_blocks and now.time - last.time >= limits.silent_time


def _silence(broker: Broker, last: _Last, now: BrokersState) -> Alert:
    blocks = now.height - last.height
    words = (
        f"{broker.name} is silent: none of the last {blocks} certified blocks carries its vote, the last that does is "
        f"{last.height}. It is down, cut off, does not agree, or is always slower than a quorum."
    )
    return _alert(
        Kind.SILENT,
        broker,
        ("began", "warning"),
        heights=(last.height, now.height),
        time=now.time,
        count=blocks,
        words=words,
    )


def _return(broker: Broker, last: _Last, vote: Voted) -> Alert:
    blocks = vote.height - last.height - 1
    words = f"{broker.name} votes again at height {vote.height}, after {blocks} blocks without its vote."
    return _alert(
        Kind.SILENT,
        broker,
        ("ended", "notice"),
        heights=(last.height, vote.height),
        time=vote.time,
        count=blocks,
        words=words,
    )


def accuse(records: Iterable[bytes], brokers: Sequence[Broker], verifier: Verifier, now: int) -> list[Alert]:
    """An alert for each broker and view of which two messages prove that they contradict each other.

    What does not verify accuses nobody: the broker that showed it may have made it up. `now` is the block time for
    messages that have none of their own.
    """
    alerts: dict[str, Alert] = {}
    for data in records:
        try:
            record = evidence.decode(data)
            proved = evidence.verify(record, verifier)
        except Refused:
            continue
        alert = _equivocation(brokers[proved.member], proved, record.first, now)
        alerts.setdefault(alert.alert, alert)
    return sorted(alerts.values(), key=lambda alert: (alert.subject, alert.height_from, alert.alert))


def _equivocation(broker: Broker, proved: evidence.Accusation, first: evidence.Signed, now: int) -> Alert:
    # Votes and timeouts name neither a height nor a time.
    height, time = (first.header.height, first.header.time) if isinstance(first, Proposal) else (0, now)
    words = (
        f"{broker.name} equivocates: it signed two {proved.kind} of view {proved.view} that contradict each other. "
        "Both signatures hold, and no honest broker gives both."
    )
    return _alert(
        Kind.EQUIVOCATION,
        broker,
        ("began", "critical"),
        heights=(height, height),
        time=time,
        count=2,
        words=words,
        view=proved.view,
    )


def _alert(
    kind: Kind,
    broker: Broker,
    how: tuple[Phase, Severity],
    *,
    heights: tuple[int, int],
    time: int,
    count: int,
    words: str,
    view: int = 0,
) -> Alert:
    phase, severity = how
    first, last = heights
    name = digest("alert", kind.encode(), broker.name.encode(), phase.encode(), b"%d %d" % (first, view))
    return Alert(
        name.hex()[:32],
        kind,
        broker.name,
        broker.organisation,
        phase,
        severity,
        first,
        last,
        time,
        count,
        words,
        tuple(sorted({height for height in heights if height})),
    )
