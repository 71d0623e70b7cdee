"""Where f crashed members sit decides whether chained consensus commits at all, unless votes travel again with timeouts (T9, T15).

Votes go to the leader of the next view, so a crashed leader takes the certificate of the view before with it. With
round-robin and depth 3, four live leaders in a row are needed then, and some placements never have four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import combinations

from msgspec.structs import replace

from parley.consensus.committee import faults
from parley.consensus.events import Message, VerifiedQC, VerifiedTC
from parley.consensus.leader.round_robin import RoundRobin
from parley.consensus.safety import SafetyRules
from parley.consensus.types import Timeout
from parley.sim.ensemble import Ensemble, Seat, Settings

VIEWS = 12  # for each member: how long a placement has time to commit
LATENCY = 10  # ms, on every link
Placement = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placements:
    """How many placements of f crashed members commit, and which do not."""

    nodes: int
    chain: int
    placements: int
    with_repair: int
    without_repair: int
    stuck_with_repair: tuple[Placement, ...]
    stuck_without_repair: tuple[Placement, ...]


def every(nodes: int) -> tuple[Placement, ...]:
    """All ways to choose f crashed members."""
    return tuple(combinations(range(nodes), faults(nodes)))


def try_all(nodes: int, depth: int, advance: Callable[[int], None] = lambda _: None) -> Placements:
    """Run every placement with the vote in the timeout and without it."""
    stuck: dict[bool, list[Placement]] = {True: [], False: []}
    for crashed in every(nodes):
        for repaired, rules in ((True, nullcontext()), (False, without_repair())):
            with rules:
                if not commits(nodes, depth, crashed):
                    stuck[repaired].append(crashed)
            advance(1)
    count = len(every(nodes))
    return Placements(
        nodes=nodes,
        chain=depth,
        placements=count,
        with_repair=count - len(stuck[True]),
        without_repair=count - len(stuck[False]),
        stuck_with_repair=tuple(stuck[True]),
        stuck_without_repair=tuple(stuck[False]),
    )


def commits(nodes: int, depth: int, crashed: Sequence[int]) -> bool:
    """Whether every live member commits a block within VIEWS views for each member."""
    settings = Settings(nodes, depth=depth)
    ensemble = Ensemble(settings, range(nodes), RoundRobin(nodes), _Even())
    live = [seat for seat in ensemble.seats if seat.member not in crashed]
    for seat in live:
        ensemble.start(seat)

    def committed() -> bool:
        return all(len(seat.chain) > 1 for seat in live)

    def over() -> bool:
        return committed() or min(seat.view for seat in live) > VIEWS * nodes

    # No view lasts longer than a timeout and the way of the messages that end it.
    ensemble.run(VIEWS * nodes * (settings.view_timeout + 10 * LATENCY), over)
    return committed()


def modelled(nodes: int, depth: int) -> int:
    """T9's model of how many placements commit without the repair: those with depth + 1 live leaders in a row."""

    def row(crashed: Placement, first: int) -> bool:
        return all((first + i) % nodes not in crashed for i in range(depth + 1))

    return sum(any(row(crashed, first) for first in range(nodes)) for crashed in every(nodes))


@contextmanager
def without_repair() -> Iterator[None]:
    """Nobody sends its vote again with a timeout, for as long as this lasts. For this experiment only."""
    repaired = SafetyRules.timeout

    def timeout(
        rules: SafetyRules, view: int, high_qc: VerifiedQC, high_tc: VerifiedTC | None
    ) -> Timeout | None:
        signed = repaired(rules, view, high_qc, high_tc)
        return None if signed is None else replace(signed, vote=None)  # no signature covers it

    SafetyRules.timeout = timeout  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        SafetyRules.timeout = repaired  # type: ignore[method-assign]


class _Even:
    """Every message takes the same time."""

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        del sender, receiver, message
        return LATENCY

    def fetch_delay(self, receiver: Seat, donor: Seat) -> int | None:
        del receiver
        return None if donor.machine is None else 2 * LATENCY
