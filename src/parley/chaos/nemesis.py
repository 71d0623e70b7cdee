"""Who does the damage: a schedule of faults that depends on a seed alone, and the hand that carries it out.

At most f brokers lie at a time. Everything else may hit any number of them: then nothing gets done until it is over, and
nothing may be lost either.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parley.chaos.history import Full, History, Span
from parley.consensus.committee import faults as bearable
from parley.localnet.proxy import Flow

if TYPE_CHECKING:  # it needs the extra `node`, and plans are made without
    from parley.chaos.expensive.crew import Crew
    from parley.chaos.network import Network

KILL, PAUSE, PARTITION, DISK, BYZANTINE = KINDS = ("kill", "pause", "partition", "disk", "byzantine")
# Clients that keep every rule and try to make others wait. Not among the kinds that come unasked: what it finds depends
# on the machine, and others' waiting says nothing while brokers are killed as well.
EXPENSIVE = "expensive"
ALL_KINDS = (*KINDS, EXPENSIVE)

# The ways in which each kind of fault comes; every one of them once before any of them again.
WAYS = {
    KILL: ("one", "several", "all"),
    PAUSE: ("one", "several", "all"),
    PARTITION: ("alone", "split", "one-way", "ring", "slow", "clients"),
    DISK: ("full",),
    BYZANTINE: ("equivocate", "withhold", "drop", "forge", "lie", "stale", "delay", "censor"),
    EXPENSIVE: (
        "alter",
        "revoke",
        "subscribe",
        "stage",
        "commit",
        "matching",
        "busy",
        "sequences",
        "sessions",
    ),
}
# How broker states look in the timeline.
STATES = {KILL: "killed", PAUSE: "paused", PARTITION: "cut", DISK: "full", BYZANTINE: "lying"}

SHORT_RUN = 60.0  # seconds of faults up to which they come quickly
LEAST = {DISK: 5.0, BYZANTINE: 3.0}  # seconds; these need some time to have an effect
SLOWEST = 0.4  # seconds by which a slow link is late
SHORTEST_ATTACK, LONGEST_ATTACK = 0.5, 120.0  # seconds between the beginnings of two
LAST_ATTACK = 60.0  # seconds that attacks under way get to end when the others heal
LITTLE_ROOM = 64 * 1024  # bytes that a store may grow before it is full


@dataclass(frozen=True)
class Fault:
    """One fault from its beginning to its end, in seconds since the first could come."""

    kind: str
    way: str
    brokers: tuple[str, ...]
    begin: float
    end: float
    flow: Flow = Flow.REFUSED
    delay: float = 0.0

    @property
    def state(self) -> str:
        return "slow" if self.way == "slow" else STATES.get(self.kind, self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.way}: {', '.join(self.brokers) or 'clients'}"


def plan(seed: int, faults: Sequence[str], seconds: float, names: Sequence[str]) -> tuple[Fault, ...]:
    """The same for the same arguments. Liars have a schedule of their own, so they meet all other faults.

    `faults` are kinds, or ways of one, such as `partition:ring`.
    """
    chance = random.Random(seed)
    ways = _chosen(faults)
    lanes = [
        [kind for kind in ways if kind not in {BYZANTINE, EXPENSIVE}],
        [BYZANTINE] * (BYZANTINE in ways),
    ]
    found = [fault for lane in lanes if lane for fault in _lane(chance, lane, ways, seconds, names)]
    if EXPENSIVE in ways:
        found += _attacks(chance, ways[EXPENSIVE], seconds)
    return tuple(sorted(found, key=lambda fault: fault.begin))


def _chosen(faults: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The ways of each kind that may come."""
    return {
        kind: tuple(way for way in WAYS[kind] if kind in faults or f"{kind}:{way}" in faults)
        for kind in ALL_KINDS
        if any(fault.partition(":")[0] == kind for fault in faults)
    }


def _attacks(chance: random.Random, ways: Sequence[str], seconds: float) -> list[Fault]:
    """One attack after the other, evenly over the time; one that takes longer meets the next."""
    length = min(max(seconds / len(ways), SHORTEST_ATTACK), LONGEST_ATTACK)
    draw, slots = _deck(chance, ways), max(1, int(seconds / length + 0.001))
    return [
        Fault(EXPENSIVE, draw(), (), round(slot * length, 3), min(round((slot + 1) * length, 3), seconds))
        for slot in range(slots)
    ]


def _lane(
    chance: random.Random,
    kinds: Sequence[str],
    ways: Mapping[str, Sequence[str]],
    seconds: float,
    names: Sequence[str],
) -> list[Fault]:
    """One fault after the other, with some time to recover between them."""
    short = seconds <= SHORT_RUN
    kind_of, way_of = _deck(chance, kinds), {kind: _deck(chance, ways[kind]) for kind in kinds}
    found: list[Fault] = []
    at = chance.uniform(0.2, 0.8)
    while True:
        kind = kind_of()
        way = way_of[kind]()
        length = max(chance.uniform(1.5, 3.0) if short else chance.uniform(2.0, 12.0), LEAST.get(kind, 0.0))
        if at + length > seconds:
            return found
        found.append(_fault(chance, kind, way, (at, at + length), names))
        at += length + (chance.uniform(0.8, 1.6) if short else chance.uniform(2.0, 8.0))


def _fault(
    chance: random.Random, kind: str, way: str, when: tuple[float, float], names: Sequence[str]
) -> Fault:
    if kind == BYZANTINE:
        number = chance.randint(1, max(1, bearable(len(names))))
    elif way in {"all", "ring"}:
        number = len(names)
    elif way in {"several", "split"}:
        number = chance.randint(2, max(2, len(names) - 1)) if way == "several" else len(names) // 2
    else:
        number = 1
    brokers = tuple(sorted(chance.sample(list(names), min(number, len(names)))))
    flow = chance.choice([Flow.REFUSED, Flow.SWALLOWED])
    delay = chance.uniform(0.05, SLOWEST) if way == "slow" else 0.0
    return Fault(kind, way, brokers, round(when[0], 3), round(when[1], 3), flow, round(delay, 3))


def _deck(chance: random.Random, cards: Sequence[str]) -> Callable[[], str]:
    """Draws every card once, in some order, before any of them again."""
    left: list[str] = []

    def draw() -> str:
        if not left:
            left.extend(chance.sample(list(cards), len(cards)))
        return left.pop()

    return draw


@dataclass(eq=False)
class Nemesis:
    """Carries a plan out and records what was wrong when. `victim` is the client that censors choose."""

    _network: Network
    _history: History
    _victim: str
    _crew: Crew | None = None
    doomed: set[str] = field(default_factory=set)  # brokers that are meant to end by themselves

    async def run(self, faults: Sequence[Fault]) -> None:
        begin = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._one(fault, begin))

    async def heal(self) -> None:
        """Whatever is still wrong."""
        network = self._network
        network.heal_links()
        for name in network.names:
            network.resume(name)
            await network.lie(name, ())
        network.start()
        self.doomed.clear()
        if self._crew is not None:
            await self._crew.finish(LAST_ATTACK)
            await self._crew.stop()

    async def _one(self, fault: Fault, begin: float) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(begin + fault.begin - clock())
        since = self._history.now
        try:
            await self._do(fault)
            await asyncio.sleep(begin + fault.end - clock())
            await self._undo(fault)
        finally:
            for name in fault.brokers:
                self._history.add(Span(since, self._history.now, name, fault.state, str(fault)))

    async def _do(self, fault: Fault) -> None:
        network = self._network
        match fault.kind:
            case "kill":
                for name in fault.brokers:
                    network.kill(name)
            case "pause":
                for name in fault.brokers:
                    network.pause(name)
            case "partition":
                self._cut(fault)
            case "disk":
                for name in fault.brokers:
                    self.doomed.add(name)
                    network.kill(name)
                    network.limit(name, network.size(name) + LITTLE_ROOM)
                    network.start(name)
            case "expensive":
                assert self._crew is not None, "who plans attacks has somebody to make them"
                await self._crew.begin(fault.way)
            case _:
                lie = f"{fault.way}:{self._victim}" if fault.way == "censor" else fault.way
                await asyncio.gather(*(network.lie(name, [lie]) for name in fault.brokers))

    async def _undo(self, fault: Fault) -> None:
        network = self._network
        match fault.kind:
            case "kill":
                network.start(*fault.brokers)
            case "pause":
                for name in fault.brokers:
                    network.resume(name)
            case "partition":
                network.heal_links()
            case "disk":
                for name in fault.brokers:
                    if await network.until_ended(name, LEAST[DISK]):
                        self._history.add(Full(self._history.now, name))
                    network.kill(name)
                    network.limit(name, None)
                    network.start(name)
                    self.doomed.discard(name)
            case "expensive":
                pass  # it goes on until it is over, or everything heals
            case _:
                await asyncio.gather(*(network.lie(name, ()) for name in fault.brokers))

    def _cut(self, fault: Fault) -> None:
        network, names = self._network, self._network.names
        hit = set(fault.brokers)
        for (source, target), proxy in network.links.items():
            apart = abs(names.index(source) - names.index(target)) % (len(names) - 1) > 1
            match fault.way:
                case "alone" | "split" if (source in hit) != (target in hit):
                    proxy.cut(fault.flow)
                case "one-way" if source in hit:
                    proxy.cut(fault.flow)
                case "ring" if apart:
                    proxy.cut(fault.flow)
                case "slow" if source in hit or target in hit:
                    proxy.delay = fault.delay
                case _:
                    pass
        for (_, target), proxy in network.doors.items():
            if target in hit and fault.way == "clients":
                proxy.cut(fault.flow)
            elif target in hit and fault.way == "slow":
                proxy.delay = fault.delay
