"""What expensive clients may cost the others: the figures of a history, and the bars below which they have to stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from parley.chaos.facts import Facts
from parley.chaos.history import Attacked, Waited
from parley.chaos.nemesis import EXPENSIVE

TIMES_QUIET = 3  # a bystander's p99 is below so many times its quiet one,
LEAST_WAIT_S = 2.0  # or below this, whichever is larger
MEMORY_BYTES = 512_000_000
EXECUTION_S = 0.25
LOOP_S = 0.05
RECEIPTS_BYTES = 8 * 1024 * 1024


class Waiting(Struct, frozen=True):
    """How long a bystander waited, in seconds; None where nothing was begun."""

    begun: int
    unanswered: int
    p50: float | None
    p99: float | None
    longest: float | None


class AttackFigures(Struct, frozen=True):
    """One attack, and how long what a bystander began in its time took, up to the next attack."""

    attack: str
    at: float
    seconds: float
    outcome: str
    held: bool | None
    waiting: dict[str, Waiting]


class BrokerFigures(Struct, frozen=True):
    """None: it does not tell."""

    memory_bytes: int | None
    execution_s: float | None
    loop_s: float | None
    receipts_bytes: int | None
    job: str  # that held the loop so long


class Expense(Struct, frozen=True):
    """Of all attacks; `quiet` is what a bystander waited before the first of them."""

    quiet: dict[str, Waiting]
    attacked: dict[str, Waiting]
    attacks: list[AttackFigures]
    brokers: dict[str, BrokerFigures]


def expense(facts: Facts) -> Expense | None:
    """None if nobody attacked."""
    if not facts.attacks:
        return None
    first = facts.attacks[0].at
    return Expense(
        _by_kind(one for one in facts.waited if one.at + one.seconds <= first),
        _by_kind(one for one in facts.waited if one.at >= first),
        [_attack(facts, place) for place in range(len(facts.attacks))],
        {
            one.broker: BrokerFigures(
                one.memory_bytes, one.execution_s, one.loop_s, one.receipts_bytes, one.job
            )
            for one in facts.measured
        },
    )


def _attack(facts: Facts, place: int) -> AttackFigures:
    one: Attacked = facts.attacks[place]
    until = facts.attacks[place + 1].at if place + 1 < len(facts.attacks) else float("inf")
    waited = _by_kind(each for each in facts.waited if one.at <= each.at < until)
    return AttackFigures(one.attack, one.at, round(one.end - one.at, 1), one.outcome, one.held, waited)


def _by_kind(waited: Iterable[Waited]) -> dict[str, Waiting]:
    found: dict[str, list[Waited]] = {}
    for one in waited:
        found.setdefault(one.what, []).append(one)
    return {what: _waiting(of_kind) for what, of_kind in sorted(found.items())}


def _waiting(waited: Sequence[Waited]) -> Waiting:
    times = sorted(one.seconds for one in waited)
    unanswered = sum(not one.answered for one in waited)
    return Waiting(
        len(times), unanswered, quantile(times, 50), quantile(times, 99), times[-1] if times else None
    )


def quantile(times: Sequence[float], percent: int) -> float | None:
    """The smallest of these sorted times that so many percent do not exceed."""
    return times[-(-len(times) * percent // 100) - 1] if times else None


# -- checks --------------------------------------------------------------------------------------------------------------


def fair_latency(facts: Facts) -> Iterator[str]:
    """Others hardly wait longer while somebody is expensive. Where brokers are killed as well, waiting is no wonder."""
    found = expense(facts)
    if found is None or facts.began is None or not only_expensive(facts.began.faults):
        return
    for what, waiting in found.attacked.items():
        quiet = found.quiet.get(what)
        bar = max(
            LEAST_WAIT_S, TIMES_QUIET * (quiet.p99 if quiet is not None and quiet.p99 is not None else 0.0)
        )
        if waiting.p99 is not None and waiting.p99 >= bar:
            yield f"of a bystander's {what}s one in a hundred took {waiting.p99:.1f} s, and {bar:.1f} s are allowed"
        if waiting.unanswered:
            yield f"{waiting.unanswered} of a bystander's {waiting.begun} {what}s had no answer"


def attacks_fail(facts: Facts) -> Iterator[str]:
    """What an attack looks for by itself does not come about."""
    if facts.began is not None and is_expensive(facts.began.faults) and facts.ended and not facts.attacks:
        yield "no attack was made, though attacks were asked for"
    for one in facts.attacks:
        if one.held is False:
            yield f"{one.attack}: {one.outcome}"


def bounded_memory(facts: Facts) -> Iterator[str]:
    for one in facts.measured:
        if one.memory_bytes is not None and one.memory_bytes >= MEMORY_BYTES:
            yield f"{one.broker} took {one.memory_bytes / 1e6:.0f} MB of memory, and {MEMORY_BYTES / 1e6:.0f} are allowed"


def bounded_execution(facts: Facts) -> Iterator[str]:
    for one in facts.measured:
        if one.execution_s is not None and one.execution_s >= EXECUTION_S:
            yield f"{one.broker} executed a block for {one.execution_s * 1_000:.0f} ms, and {EXECUTION_S * 1_000:.0f} are allowed"


def free_loop(facts: Facts) -> Iterator[str]:
    for one in facts.measured:
        if one.loop_s is not None and one.loop_s >= LOOP_S:
            yield (
                f"{one.broker}: the job {one.job!r} held the loop for {one.loop_s * 1_000:.0f} ms, and "
                f"{LOOP_S * 1_000:.0f} are allowed"
            )


def bounded_receipts(facts: Facts) -> Iterator[str]:
    for one in facts.measured:
        if one.receipts_bytes is not None and one.receipts_bytes >= RECEIPTS_BYTES:
            yield (
                f"{one.broker} has a block with {one.receipts_bytes / 2**20:.1f} MiB of receipts, and "
                f"{RECEIPTS_BYTES / 2**20:.0f} are allowed"
            )


def only_expensive(faults: Sequence[str]) -> bool:
    """Whether attacks were asked for, and no other faults."""
    return bool(faults) and all(one.partition(":")[0] == EXPENSIVE for one in faults)


def is_expensive(faults: Sequence[str]) -> bool:
    return any(one.partition(":")[0] == EXPENSIVE for one in faults)
