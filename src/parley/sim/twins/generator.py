"""Where scenarios come from: drawn by a seed, or all of them up to renaming what is alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from random import Random

from parley.consensus.committee import quorum
from parley.sim.chance import stream
from parley.sim.twins.scenario import Partition, Scenario, View, normal, whole

# Sampled scenarios lean towards what makes trouble; every scenario of the shape keeps a chance.
TORN = 0.5  # of the scenarios: a twin leads every view and its copies never meet
TWIN_LEADS = 0.7  # in the others, per view
CALM = 0.15  # a view without a partition
ONE_PARTITION = 0.3  # timeouts under the same partition as proposals
RESTART = 0.05  # per view
LATE = 0.2  # what a partition keeps from the others reaches them after the view instead of never


@dataclass(frozen=True, slots=True)
class Shape:
    """What the scenarios of a campaign have in common."""

    nodes: int = 4
    twins: int = 1
    views: int = 8
    depth: int = 2
    partitions: int = 2

    @property
    def seats(self) -> int:
        return self.nodes + self.twins


def sample(shape: Shape, seed: int, number: int) -> Scenario:
    """The scenario of that number; none depends on any other."""
    chance = stream(seed, "twins", number)
    # Of several lengths, so that the turns of leaders after the script begin with each of them.
    length = shape.views - chance.randrange(min(shape.nodes, shape.views))
    draw = _draw_torn if shape.twins and chance.random() < TORN else _draw_view
    views = tuple(draw(shape, chance) for _ in range(length))
    return Scenario(shape.nodes, shape.twins, shape.depth, views)


def exhaustive(shape: Shape) -> Iterator[Scenario]:
    """Every leader and partition in every view, once up to renaming correct members, twins, and the copies of a twin.

    Timeouts share the proposals' partition here, and nobody restarts: sampling covers the rest.
    """
    symbols = tuple(product(range(shape.nodes), partitions(shape.seats, shape.partitions)))
    index = {symbol: number for number, symbol in enumerate(symbols)}
    renamings = tuple(
        tuple(index[renaming[leader] % shape.nodes, _renamed(groups, renaming)] for leader, groups in symbols)
        for renaming in _renamings(shape)
    )
    for choice in _orbits(len(symbols), renamings, shape.views):
        views = tuple(View(symbols[at][0], symbols[at][1], symbols[at][1]) for at in choice)
        yield Scenario(shape.nodes, shape.twins, shape.depth, views)


@cache
def partitions(seats: int, most: int) -> tuple[Partition, ...]:
    """All ways to split the seats into at most so many groups."""
    return tuple(sorted({normal(groups) for groups in product(range(most), repeat=seats)}))


@cache
def living(shape: Shape) -> tuple[Partition, ...]:
    """Those that leave a quorum of members in one group: timeouts under any other end the script early."""
    members = (*range(shape.nodes), *range(shape.twins))

    def lives(groups: Partition) -> bool:
        sizes = [
            len({member for member, at in zip(members, groups, strict=True) if at == group})
            for group in set(groups)
        ]
        return max(sizes) >= quorum(shape.nodes)

    return tuple(groups for groups in partitions(shape.seats, shape.partitions) if lives(groups))


@cache
def _apart(shape: Shape) -> tuple[tuple[Partition, bool], ...]:
    """The partitions that keep the copies of member 0 from each other, and whether each leaves a quorum somewhere."""
    split = [p for p in partitions(shape.seats, shape.partitions) if p[0] != p[shape.nodes]]
    return tuple((groups, groups in living(shape)) for groups in split)


def _draw_torn(shape: Shape, chance: Random) -> View:
    """The copies of member 0 live in different worlds, between which the others wander."""
    apart = _apart(shape)
    propose = chance.choice([groups for groups, _ in apart])
    timeout = chance.choice([groups for groups, lives in apart if lives])
    return View(0, propose, timeout, late=chance.random() < LATE)


def _draw_view(shape: Shape, chance: Random) -> View:
    twin_leads = shape.twins and chance.random() < TWIN_LEADS
    leader = chance.randrange(shape.twins if twin_leads else shape.nodes)
    restart = (chance.randrange(shape.seats),) if chance.random() < RESTART else ()
    if chance.random() < CALM:
        calm = whole(shape.seats)
        return View(leader, calm, calm, restart)
    late = chance.random() < LATE
    timeout = chance.choice(living(shape))
    if chance.random() < ONE_PARTITION:
        return View(leader, timeout, timeout, restart, late=late)
    propose = chance.choice(partitions(shape.seats, shape.partitions))
    return View(leader, propose, timeout, restart, late=late)


def _renamings(shape: Shape) -> Iterator[tuple[int, ...]]:
    """What may be renamed to what, as the new number of each seat."""
    for correct in permutations(range(shape.twins, shape.nodes)):
        for twins in permutations(range(shape.twins)):
            for swapped in product((False, True), repeat=shape.twins):
                seats = [*twins, *correct, *(shape.nodes + twin for twin in twins)]
                for twin, swap in enumerate(swapped):
                    if swap:
                        first, second = twin, shape.nodes + twin
                        seats[first], seats[second] = seats[second], seats[first]
                yield tuple(seats)


def _renamed(groups: Partition, renaming: Sequence[int]) -> Partition:
    new = [0] * len(groups)
    for seat, group in enumerate(groups):
        new[renaming[seat]] = group
    return normal(tuple(new))


def _orbits(symbols: int, renamings: Sequence[Sequence[int]], length: int) -> Iterator[tuple[int, ...]]:
    """The smallest of each set of choices that renaming makes equal."""
    if length == 0:
        yield ()
        return
    for first in range(symbols):
        if all(renaming[first] >= first for renaming in renamings):
            fixing = [renaming for renaming in renamings if renaming[first] == first]
            for rest in _orbits(symbols, fixing, length - 1):
                yield (first, *rest)
