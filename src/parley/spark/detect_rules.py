"""What counts as misbehaviour of a client, decided from its ordered operations alone: no Spark, no clock but block time.

The rules see a client's refused and repeated operations in ledger order. What they say depends on that order and on
nothing else, not on how the ledger was cut into micro-batches: whoever replays it gets the same alerts.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from parley.crypto.hashing import digest
from parley.model.refusals import DUPLICATE, Suspicion, class_of, classes
from parley.model.text import unsteering

MAX_ENTRIES = 64  # remembered of a client and a rule: older ones are counted together
MAX_DISTINCT = 32  # highest threshold of what is counted once each, so that memory is twice as long
MAX_LEVEL = 5  # an alert is told again at ten times as much, and so on
MAX_EVIDENCE = 16  # heights that an alert names
MAX_EXAMPLES = 3
STRANGERS = ""  # the client of a receipt whose key nobody registered

Severity = Literal["notice", "warning", "critical"]
Phase = Literal["began", "grew", "ended"]


class Kind(StrEnum):
    """Scripts rely on these words."""

    REFUSALS = "refusals"
    PROBING = "probing"
    REPLAYS = "replays"
    REUSED = "reused-sequences"
    SILENT = "silent-broker"
    EQUIVOCATION = "equivocation"


class Thresholds(Struct, frozen=True):
    """From where on something is worth telling. `window` and `silent_time` are ms of block time."""

    refusals: int = 20
    probed: int = 5  # topics
    replays: int = 50
    reused: int = 1
    window: int = 60_000
    silent_blocks: int = 100
    silent_time: int = 30_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("probed", "reused"):
            if getattr(self, name) > MAX_DISTINCT:
                raise ValueError(f"{name} is at most {MAX_DISTINCT}")


class Alert(Struct, frozen=True):
    """One row of the table. `evidence` are heights at which it can be looked up, the last ones if there are many."""

    alert: str  # the same for the same ledger and thresholds: who has seen it need not look again
    kind: Kind
    subject: str
    organisation: str
    phase: Phase
    severity: Severity
    height_from: int
    height_to: int
    time: int  # block time in ms
    count: int
    words: str
    evidence: tuple[int, ...]


class Event(Struct, frozen=True, order=True):
    """An ordered operation that was refused or came again; sorted, they are in ledger order."""

    height: int
    position: int
    time: int
    code: str
    topic: str
    digest: str
    operation: str = ""


class _Entry(Struct, array_like=True):
    time: int
    height: int
    value: str
    count: int


class _Tally(Struct, array_like=True):
    """What was counted within the last window, and the episode that is open, if one is (`until` > 0)."""

    entries: list[_Entry] = field(default_factory=list)
    since: int = 0
    until: int = 0
    last: tuple[int, int] = (0, 0)  # height and time of what was counted last
    total: int = 0
    level: int = 0


class ClientState(Struct, array_like=True):
    """All that is remembered of a client: four tallies of bounded size."""

    refusals: _Tally = field(default_factory=_Tally)
    probing: _Tally = field(default_factory=_Tally)
    replays: _Tally = field(default_factory=_Tally)
    reused: _Tally = field(default_factory=_Tally)
    timer: int = 0  # the block time at which it is looked at again

    def tallies(self) -> list[tuple[Kind, _Tally]]:
        return [
            (Kind.REFUSALS, self.refusals),
            (Kind.PROBING, self.probing),
            (Kind.REPLAYS, self.replays),
            (Kind.REUSED, self.reused),
        ]


_STAGED = "stage"


def suspicion_of(code: str) -> Suspicion:
    """What a receipt's code counts as. Refusals are decided once for each batch: a repeat is a Duplicate (P3, P19).

    Replays have no effect, however often they come. OutOfSequence and Busy decide nothing, and honest clients meet them.
    """
    return "replay" if code == DUPLICATE else class_of(code).suspicion


def counted() -> frozenset[str]:
    """The codes that count as anything, of all modules that are loaded."""
    return frozenset(code for code in (DUPLICATE, *classes()) if suspicion_of(code))


def observe(state: ClientState, client: str, event: Event, limits: Thresholds) -> list[Alert]:
    """Take the client's next operation into account. Mutates `state`."""
    watch = _Watch(client, limits)
    alerts: list[Alert] = []
    suspicion = suspicion_of(event.code)
    # A refused stage is not remembered (P23), so that anybody could have it refused again.
    if suspicion in {"refusal", "probe"} and event.operation != _STAGED:
        alerts += watch.count(Kind.REFUSALS, state.refusals, event, event.code)
    if suspicion == "probe" and event.topic:
        alerts += watch.count(Kind.PROBING, state.probing, event, event.topic, distinct=True)
    if suspicion == "replay":
        alerts += watch.count(Kind.REPLAYS, state.replays, event, event.code)
    if suspicion == "reuse":
        # Anybody who holds such a batch can send it again, so each counts once.
        alerts += watch.count(Kind.REUSED, state.reused, event, event.digest, distinct=True)
    return alerts


def rest(state: ClientState, client: str, now: int, limits: Thresholds) -> tuple[list[Alert], int]:
    """What ends because block time has reached `now`, and when to look again (0: nothing is left). Mutates `state`."""
    watch = _Watch(client, limits)
    alerts: list[Alert] = []
    ends: list[int] = []
    for kind, tally in state.tallies():
        alerts += watch.end(kind, tally, now)
        if not tally.until:  # an open episode is told with all that was there when it was last counted
            _forget(tally, now - limits.window)
        ends += [entry.time + limits.window for entry in tally.entries[-1:]]
        ends += [tally.until] if tally.until else []
    return alerts, max(ends) + 1 if ends else 0


class _Watch:
    """One client under given thresholds."""

    def __init__(self, client: str, limits: Thresholds) -> None:
        self._client = client
        self._limits = limits
        self._thresholds = {
            Kind.REFUSALS: limits.refusals,
            Kind.PROBING: limits.probed,
            Kind.REPLAYS: limits.replays,
            Kind.REUSED: limits.reused,
        }

    def count(
        self, kind: Kind, tally: _Tally, event: Event, value: str, *, distinct: bool = False
    ) -> list[Alert]:
        alerts = self.end(kind, tally, event.time)
        _forget(tally, event.time - self._limits.window)
        is_new = _remember(tally, event, value, distinct=distinct)
        tally.last = (event.height, event.time)
        tally.total += is_new
        within, threshold = sum(entry.count for entry in tally.entries), self._thresholds[kind]
        if within < threshold:
            return alerts
        begins = not tally.until
        tally.until = event.time + self._limits.window
        if begins:
            tally.since, tally.total, tally.level = tally.entries[0].height, within, 0
            alerts.append(self._alert(kind, tally, "began", "warning", self._words(kind, tally)))
        elif tally.level < MAX_LEVEL and tally.total >= threshold * 10 ** (tally.level + 1):
            tally.level += 1
            alerts.append(self._alert(kind, tally, "grew", "critical", self._words(kind, tally)))
        return alerts

    def end(self, kind: Kind, tally: _Tally, now: int) -> list[Alert]:
        """A whole window passed without as much as the threshold."""
        if not 0 < tally.until < now:
            return []
        words = f"{self._whose} {_WHAT[kind]}: it is over, {tally.total} in all."
        alert = self._alert(kind, tally, "ended", "notice", words)
        tally.until = tally.total = tally.level = 0
        return [alert]

    def _alert(self, kind: Kind, tally: _Tally, phase: Phase, severity: Severity, words: str) -> Alert:
        subject = self._client or "unregistered keys"
        height, time = tally.last
        name = digest(
            "alert", kind.encode(), subject.encode(), phase.encode(), b"%d %d" % (tally.since, tally.level)
        )
        heights = sorted({tally.since, height, *(entry.height for entry in tally.entries)})
        return Alert(
            name.hex()[:32],
            kind,
            subject,
            self._client.partition("/")[0],
            phase,
            severity,
            tally.since,
            height,
            time,
            tally.total,
            words,
            tuple(heights[-MAX_EVIDENCE:]),
        )

    @property
    def _whose(self) -> str:
        return f"{self._client}," if self._client else "Keys that nobody registered,"

    def _words(self, kind: Kind, tally: _Tally) -> str:
        within = (
            f"within {self._limits.window / 1_000:g} s" if not tally.level else f"since height {tally.since}"
        )
        match kind:
            case Kind.REFUSALS:
                what = f"{tally.total} operations were refused {within} ({_commonest(tally)})"
            case Kind.PROBING:
                names = ", ".join(
                    repr(unsteering(entry.value[:40])) for entry in tally.entries[-MAX_EXAMPLES:]
                )
                what = f"{tally.total} topics were tried {within} that do not exist or are forbidden, such as {names}"
            case Kind.REPLAYS:
                what = (
                    f"{tally.total} batches came {within} that have no effect any more ({_commonest(tally)}): this client "
                    "repeats itself, or somebody who holds its batches does"
                )
            case _:
                what = f"{tally.total} batches {within} carry a sequence that another batch of its session has used"
        return f"{self._whose} {_WHAT[kind]}: {what}."


_WHAT = {
    Kind.REFUSALS: "a burst of refusals",
    Kind.PROBING: "probing of topics",
    Kind.REPLAYS: "replays",
    Kind.REUSED: "reused sequences",
}


def _forget(tally: _Tally, before: int) -> None:
    tally.entries = [entry for entry in tally.entries if entry.time > before]


def _remember(tally: _Tally, event: Event, value: str, *, distinct: bool) -> bool:
    """Whether it counts."""
    for place, entry in enumerate(tally.entries):
        if entry.value != value:
            continue
        if distinct:
            del tally.entries[place]
            tally.entries.append(_Entry(event.time, event.height, value, 1))
            return False
        if entry.height == event.height:
            entry.count += 1
            return True
    tally.entries.append(_Entry(event.time, event.height, value, 1))
    if len(tally.entries) > MAX_ENTRIES:
        oldest = tally.entries.pop(0)
        if not distinct:  # the sum stays right, and its oldest part is forgotten a little later
            tally.entries[0].count += oldest.count
    return True


def _commonest(tally: _Tally) -> str:
    counts: Counter[str] = Counter()
    for entry in tally.entries:
        counts[entry.value] += entry.count
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{value} {count}" for value, count in ranked[:MAX_EXAMPLES])
