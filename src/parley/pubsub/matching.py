"""Which constraints on a topic a publication matches, without asking each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum, log

from parley.model.expressions import Comparison, Constant, Constraint, Group, Node, Not, Value

__all__ = ["MatchingIndex"]

# With the type of the value, because Python holds 1 == True and hashes both alike.
_Equality = tuple[str, type, Value]
_Guard = frozenset[_Equality]


class MatchingIndex:
    """The distinct constraints on one topic; how many there may be is the application's limit.

    Each constraint waits under a guard: equalities of which one holds whenever the constraint does. A publication asks
    only those that wait under one of its tags, so its cost grows with the tags and with the constraints whose guard
    it meets, not with all there are. These are the matches and the near misses: `a == 1 and b == 2` may wait under
    `a == 1`, whatever `b` is. Of several guards the least crowded is taken, once, when the constraint is added; that
    decides the cost, never the result. Constraints without a guard, such as `a != 1` or `a == 1 or b != 2`, are asked
    every time: they match nearly everything, which is what they ask for.
    """

    __slots__ = ("_constraints", "_guarded", "_guards", "_named", "_unguarded")

    def __init__(self) -> None:
        self._constraints: dict[bytes, Constraint] = {}
        self._guards: dict[bytes, _Guard | None] = {}
        self._guarded: dict[_Equality, set[bytes]] = {}
        self._unguarded: set[bytes] = set()
        self._named = 0

    def __len__(self) -> int:
        return len(self._constraints)

    def __contains__(self, constraint_id: object) -> bool:
        return constraint_id in self._constraints

    @property
    def needs_tags(self) -> bool:
        """Whether the tags of a publication make a difference; without, `match({})` says the same."""
        return self._named > 0

    def add(self, constraint: Constraint) -> None:
        """Adding a constraint again changes nothing."""
        if constraint.id in self._constraints:
            return
        guard = self._guard(constraint.formula)
        self._constraints[constraint.id] = constraint
        self._guards[constraint.id] = guard
        self._named += bool(constraint.names)
        if guard is None:
            self._unguarded.add(constraint.id)
            return
        for equality in guard:
            self._guarded.setdefault(equality, set()).add(constraint.id)

    def remove(self, constraint_id: bytes) -> None:
        """Raises `KeyError` for a constraint that is not here."""
        constraint = self._constraints.pop(constraint_id)
        guard = self._guards.pop(constraint_id)
        self._named -= bool(constraint.names)
        if guard is None:
            self._unguarded.remove(constraint_id)
            return
        for equality in guard:
            waiting = self._guarded[equality]
            waiting.remove(constraint_id)
            if not waiting:
                del self._guarded[equality]

    def match(self, tags: Mapping[str, Value]) -> list[bytes]:
        """The ids of the constraints that hold, sorted: the same on every replica, whatever was added when."""
        asked = set(self._unguarded)
        for name, value in tags.items():
            asked |= self._guarded.get((name, type(value), value), _NOBODY)
        constraints = self._constraints
        return sorted(identity for identity in asked if constraints[identity].matches(tags))

    def _guard(self, node: Node) -> _Guard | None:
        """Equalities of which one holds whenever the formula does; None if there are none."""
        match node:
            case Constant(value=value):
                return None if value else frozenset()
            case Comparison(operator="==" | "in"):
                return frozenset((node.name, type(value), value) for value in node.values)
            case Comparison() | Not():
                return None
            case Group(word="and"):
                guards = [guard for guard in map(self._guard, node.parts) if guard is not None]
                return min(guards, key=self._load, default=None)
            case Group():
                return _union(map(self._guard, node.parts))

    def _load(self, guard: _Guard) -> tuple[float, int]:
        """How crowded the guard's places are, then how many there are.

        A geometric mean, so that one place that all share (`kind == 1 and (mine == 7 or urgent)`) does not drive
        everybody to the other guard, under which nearly every publication would ask them in vain.
        """
        crowds = [1 + len(self._guarded.get(equality, _NOBODY)) for equality in guard]
        return fsum(map(log, crowds)) / len(crowds), len(crowds)


_NOBODY: frozenset[bytes] = frozenset()


def _union(guards: Iterable[_Guard | None]) -> _Guard | None:
    united: _Guard = frozenset()
    for guard in guards:
        if guard is None:
            return None
        united |= guard
    return united
