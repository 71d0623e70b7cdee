"""Which constraints on a topic a publication matches, without evaluating each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from parley.model.expressions import Comparison, Constant, Constraint, Group, Node, Not, Value
from parley.modules.subscriptions.sums import SumsByHeight

MAX_UNGUARDED = 64  # constraints on a topic that are evaluated for every publication
MAX_WAITING = 1_024  # constraints on a topic that wait under one equality
HEAD = 64  # comparisons that take as long as writing the head of an order

# With the type of the value, because Python holds 1 == True and hashes both alike.
Equality = tuple[str, type, Value]
Guard = tuple[Equality, ...]  # each once, in the order of the state


class Burden(NamedTuple):
    """What constraints add to the cost of a batch, in comparisons, at most: for each message, and once."""

    message: int
    batch: int

    @classmethod
    def of(cls, constraint: Constraint, guard: Guard | None) -> Burden:
        """A message has one value of each tag, and all messages together meet every place of the guard at most."""
        names = {name for name, _, _ in guard or ()}
        return cls(_weight(constraint) * max(1, len(names)), HEAD * max(1, len(guard or ())))

    def times(self, messages: int) -> int:
        """For a batch of so many messages."""
        return messages * self.message + self.batch


class MatchingIndex:
    """The distinct constraints on one topic; how many there may be is the application's limit.

    Each constraint waits under a guard: equalities of which one holds whenever the constraint does. For a publication
    only those are evaluated that wait under one of its tags, so its cost grows with the tags and with the constraints
    whose guard it meets, not with all there are. These are the matches and the near misses: `a == 1 and b == 2` may wait under
    `a == 1`, whatever `b` is. Of several guards the least crowded is chosen, once, for as long as the constraint lives;
    that decides the cost, never the result. But the cost is limited (`budget`), so all replicas must have chosen alike:
    the choice is an entry of the state. Constraints without a guard, such as `a != 1` or `a == 1 or b != 2`, are
    evaluated for every message: they match nearly all of them.
    """

    __slots__ = (
        "_constraints",
        "_guarded",
        "_guards",
        "_heights",
        "_named",
        "_opened",
        "_unguarded",
        "_weights",
    )

    def __init__(self) -> None:
        self._constraints: dict[bytes, Constraint] = {}
        self._guards: dict[bytes, Guard | None] = {}
        self._heights: dict[bytes, int] = {}  # at which each was opened
        # Of what each adds: to a message, to a batch.
        self._opened = (SumsByHeight(), SumsByHeight())
        # The ids are keys: the collector looks at every set again and again, but not at such dictionaries.
        self._guarded: dict[Equality, dict[bytes, None]] = {}
        self._unguarded: set[bytes] = set()
        self._named = 0
        # Of what waits in each place; None: without a guard.
        self._weights: Counter[Equality | None] = Counter()

    def __len__(self) -> int:
        return len(self._constraints)

    def __eq__(self, other: object) -> bool:
        """Whether the same constraints wait under the same guards, and all that follows from these is the same."""
        if not isinstance(other, MatchingIndex):
            return NotImplemented
        derived = self._guarded, self._unguarded, self._named, self._weights, self._opened
        others = other._guarded, other._unguarded, other._named, other._weights, other._opened
        return (self._guards, self._heights, derived) == (other._guards, other._heights, others)

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, constraint_id: object) -> bool:
        return constraint_id in self._constraints

    @property
    def needs_tags(self) -> bool:
        """Whether the tags of a publication make a difference; without, `match({})` says the same."""
        return self._named > 0

    def choose(self, constraint: Constraint) -> Guard | None:
        """The least crowded guard of a constraint that is to be added; None if it has none."""
        return self._guard(constraint.formula)

    def has_room(self, guard: Guard | None) -> bool:
        if guard is None:
            return len(self._unguarded) < MAX_UNGUARDED
        return all(len(self._guarded.get(equality, _NONE)) < MAX_WAITING for equality in guard)

    def add(self, constraint: Constraint, guard: Guard | None, height: int = 0) -> None:
        """Add a constraint that was opened at a height. Adding it again changes nothing."""
        if constraint.id in self._constraints:
            return
        self._constraints[constraint.id] = constraint
        self._guards[constraint.id] = guard
        self._heights[constraint.id] = height
        self._burden(height, Burden.of(constraint, guard))
        self._named += bool(constraint.names)
        self._weigh(guard, _weight(constraint))
        if guard is None:
            self._unguarded.add(constraint.id)
            return
        for equality in guard:
            self._guarded.setdefault(equality, {})[constraint.id] = None

    def remove(self, constraint_id: bytes) -> None:
        """Raises `KeyError` for a constraint that is not here."""
        constraint = self._constraints.pop(constraint_id)
        guard = self._guards.pop(constraint_id)
        message, batch = Burden.of(constraint, guard)
        self._burden(self._heights.pop(constraint_id), Burden(-message, -batch))
        self._named -= bool(constraint.names)
        self._weigh(guard, -_weight(constraint))
        if guard is None:
            self._unguarded.remove(constraint_id)
            return
        for equality in guard:
            waiting = self._guarded[equality]
            del waiting[constraint_id]
            if not waiting:
                del self._guarded[equality]

    def cost(self, messages: Iterable[tuple[int, Mapping[str, Value]]]) -> int:
        """What a batch takes, in comparisons, at most; without evaluating anything.

        `messages` has (number of messages, their tags). Each constraint that may match one of them counts for the head of
        its order as well, which is written once.
        """
        weight, always = self._weights.get, self._weights.get(None, 0)
        compared, met = 0, set[Equality]()
        for count, tags in messages:
            places = [(name, type(value), value) for name, value in tags.items()]
            compared += count * (always + sum([weight(place, 0) for place in places]))
            met.update(places)
        waiting = sum([len(self._guarded[place]) for place in met if place in self._guarded])
        return compared + HEAD * (len(self._unguarded) + waiting)

    def opened_since(self, height: int) -> Burden:
        """What the live constraints that were opened at this height or later add, at most."""
        return Burden(*(sums.since(height) for sums in self._opened))

    def match(self, tags: Mapping[str, Value]) -> list[bytes]:
        """The ids of the constraints that hold, sorted: the same on every replica, in whatever order they were added."""
        candidates = set(self._unguarded)
        for name, value in tags.items():
            candidates.update(self._guarded.get((name, type(value), value), _NONE))
        constraints = self._constraints
        return sorted([one for one in candidates if constraints[one].predicate.holds(tags)])

    def _burden(self, height: int, more: Burden) -> None:
        for sums, by in zip(self._opened, more, strict=True):
            sums.add(height, by)

    def _weigh(self, guard: Guard | None, weight: int) -> None:
        for place in (None,) if guard is None else guard:
            self._weights[place] += weight
            if not self._weights[place]:
                del self._weights[place]

    def _guard(self, node: Node) -> Guard | None:
        """Equalities of which one holds whenever the formula does; None if there are none."""
        match node:
            case Constant(value=value):
                return None if value else ()
            case Comparison(operator="==" | "in"):
                return _ordered((node.name, type(value), value) for value in node.values)
            case Comparison() | Not():
                return None
            case Group(word="and"):
                guards = [guard for guard in map(self._guard, node.parts) if guard is not None]
                return min(guards, key=self._load, default=None)
            case Group():
                return _union(map(self._guard, node.parts))

    def _load(self, guard: Guard) -> tuple[int, int]:
        """How crowded the guard's places are, then how many there are.

        A geometric mean, so that one place that all share (`kind == 1 and (mine == 7 or urgent)`) does not drive
        all of them to the other guard, under which nearly every publication would evaluate them in vain. In integers, because
        logarithms differ between machines.
        """
        crowds = [1 + len(self._guarded.get(equality, _NONE)) for equality in guard]
        logarithms = sum((crowd**_PRECISION).bit_length() for crowd in crowds)
        return (logarithms << _PRECISION) // len(crowds), len(crowds)


_NONE: dict[bytes, None] = {}
LEAST = 8  # comparisons that evaluating and numbering is worth, however short the constraint
_PRECISION = 16  # of logarithms: parts of a power of two


def _weight(constraint: Constraint) -> int:
    return max(LEAST, _size(constraint.formula))


def _size(node: Node) -> int:
    """The comparisons of a formula, and one for each group: what evaluating it takes, at most."""
    match node:
        case Group():
            return 1 + sum(map(_size, node.parts))
        case Not():
            return _size(node.operand)
        case _:
            return 1


def _union(guards: Iterable[Guard | None]) -> Guard | None:
    united = set[Equality]()
    for guard in guards:
        if guard is None:
            return None
        united.update(guard)
    return _ordered(united)


def _ordered(equalities: Iterable[Equality]) -> Guard:
    """By name, then by type: Python does not order strings among numbers."""
    return tuple(sorted(equalities, key=lambda equality: (equality[0], equality[1].__name__, equality[2])))
