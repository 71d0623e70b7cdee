"""What was read and decoded is kept for the next who asks, within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The least recently used goes first. A value that is above the whole budget is not kept at all; none is None."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.cost = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, make: Callable[[], tuple[V, int]]) -> V:
        """The kept value, or a new one from `make`, which also says what it costs."""
        if (found := self.find(key)) is not None:
            return found
        value, cost = make()
        self.put(key, value, cost)
        return value

    def find(self, key: K) -> V | None:
        """The kept value, if there is one."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, cost: int) -> None:
        if cost > self._budget:
            return
        _, before = self._kept.pop(key, (None, 0))
        self._kept[key] = (value, cost)
        self.cost += cost - before
        while self.cost > self._budget:
            _, (_, freed) = self._kept.popitem(last=False)
            self.cost -= freed
