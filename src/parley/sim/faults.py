"""What goes wrong in the fault phase: links that fail in one direction or both, bad weather, crashes at any effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from parley.consensus.committee import faults
from parley.ledger import layout
from parley.sim.chance import stream
from parley.sim.network import Link, Weather
from parley.sim.world import World

TEN_SECONDS = 10_000
# The entries of a store that may be damaged, by kind (ledger/layout.py).
DAMAGED = (b"c/", b"e/", b"r/", b"h/", b"b/", layout.HEAD, layout.STATE, layout.NODE, layout.INDEX)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How much goes wrong: milliseconds of faults, and how many of each kind in ten seconds."""

    duration: int = 30_000
    weathers: int = 4
    partitions: int = 3
    crashes: int = 6
    max_loss: float = 0.3
    max_duplication: float = 0.3
    max_straggling: float = 0.1
    max_downtime: int = 3000
    max_partition: int = 3000
    crash_within: int = 60  # effects from the decision to crash to the crash
    calm: int = 0  # ms at the beginning in which all goes well
    absences: int = 0  # in a run: replicas that are down for long
    min_absence: int = 4_000
    max_absence: int = 7_000
    # At as many replicas as liars leave room for:
    wipes: float = 0.0  # how likely the disk is lost once
    damages: int = 0  # entries of it that are damaged

    def times(self, chance: Random, often: int) -> list[int]:
        count = often * (self.duration - self.calm) // TEN_SECONDS
        return sorted(chance.randrange(self.calm, self.duration) for _ in range(count))


# Much happens to the order of the counter's batches, and less to pub/sub, so that there is a chain to fall behind of.
TROUBLES = {
    "counter": Trouble(),
    "pubsub": Trouble(
        duration=15_000,
        weathers=2,
        partitions=1,
        crashes=2,
        max_loss=0.1,
        max_straggling=0.03,
        calm=1_500,
        absences=1,
        wipes=0.5,
        damages=3,
    ),
}
# Shorter, because everything that an expensive client asks for is executed by all, and looked at by all checkers.
WITH_EXPENSIVE = replace(TROUBLES["pubsub"], duration=8_000, min_absence=2_000, max_absence=4_000, damages=1)


def stir(world: World, seed: int, trouble: Trouble) -> None:
    """Schedule every fault of the run; each kind draws from its own stream."""
    _stir_weather(world, stream(seed, "weather"), trouble)
    _stir_partitions(world, stream(seed, "partitions"), trouble)
    _stir_crashes(world, stream(seed, "crashes"), trouble)
    _stir_absences(world, stream(seed, "absences"), trouble)
    _stir_disks(world, stream(seed, "disks"), trouble)


def _stir_weather(world: World, chance: Random, trouble: Trouble) -> None:
    for at in [trouble.calm, *trouble.times(chance, trouble.weathers)]:
        weather = Weather(
            max_latency=chance.choice((20, 60, 60, 300)),
            loss=chance.choice((0.0, chance.uniform(0, trouble.max_loss))),
            duplication=chance.choice((0.0, chance.uniform(0, trouble.max_duplication))),
            straggling=chance.choice((0.0, chance.uniform(0, trouble.max_straggling))),
        )
        world.after(at, partial(setattr, world.network, "weather", weather))


def _stir_partitions(world: World, chance: Random, trouble: Trouble) -> None:
    if len(world.hosts) == 1:
        return
    for at in trouble.times(chance, trouble.partitions):
        links = _some_links(chance, len(world.hosts))
        world.after(at, partial(world.network.cut, links))
        world.after(at + chance.randint(100, trouble.max_partition), partial(world.network.mend, links))


def _stir_crashes(world: World, chance: Random, trouble: Trouble) -> None:
    for at in trouble.times(chance, trouble.crashes):
        host = chance.choice(world.correct)
        effects = chance.randrange(trouble.crash_within)
        world.after(at, partial(host.arm, effects, chance.randint(1, trouble.max_downtime)))


def _stir_absences(world: World, chance: Random, trouble: Trouble) -> None:
    for host in chance.sample(world.correct, min(trouble.absences, len(world.correct))):
        at = chance.randrange(trouble.calm, max(trouble.calm + 1, trouble.duration - trouble.max_absence))
        downtime = chance.randint(trouble.min_absence, trouble.max_absence)
        world.after(at, partial(host.arm, 0, downtime))
        world.happened["absences"] += 1


def _stir_disks(world: World, chance: Random, trouble: Trouble) -> None:
    """A replica whose disk fails counts among the faulty until it has recovered, so liars leave less room for it."""
    room = faults(len(world.hosts)) - (len(world.hosts) - len(world.correct))
    for host in chance.sample(world.correct, max(0, room)):
        if chance.random() < trouble.wipes:
            at = chance.randrange(trouble.calm, trouble.duration)
            world.after(at, partial(world.wipe, host.index))
            world.after(at + chance.randint(1, trouble.max_downtime), partial(world.start, host.index))
        for at in sorted(chance.randrange(trouble.calm, trouble.duration) for _ in range(trouble.damages)):
            world.after(at, partial(world.damage, host.index, chance.choice(DAMAGED)))


def _some_links(chance: Random, size: int) -> tuple[Link, ...]:
    """A cut between two sides, in both directions, one, or some links of it only."""
    members = list(range(size))
    chance.shuffle(members)
    side = chance.choice((1, 1, size // 2, chance.randrange(1, size)))
    inside, outside = members[:side], members[side:]
    there, back = tuple(links_between(inside, outside)), tuple(links_between(outside, inside))
    some = tuple(link for link in there + back if chance.random() < 0.5)
    return chance.choice((there, back, there + back, there + back, some))


def links_between(senders: list[int], receivers: list[int]) -> Iterator[Link]:
    return ((sender, receiver) for sender in senders for receiver in receivers)
