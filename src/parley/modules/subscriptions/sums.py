"""Sums of what was added at heights, of which the part since a height is asked: quickly, however many heights there are."""

from __future__ import annotations

_BITS = 4  # of a height, that one level tells apart
_LEVELS = 64 // _BITS
_LAST = (1 << _BITS) - 1


class SumsByHeight:
    """A trie of sums over heights: adding takes a step on each level, asking a few. It follows from what it holds alone."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        # By height, then without its last digit, and so on: the sum of all heights that begin like this.
        self._levels: tuple[dict[int, int], ...] = tuple({} for _ in range(_LEVELS))

    def __eq__(self, other: object) -> bool:
        return self._levels == other._levels if isinstance(other, SumsByHeight) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def add(self, height: int, by: int) -> None:
        for sums in self._levels:
            total = sums.get(height, 0) + by
            if total:
                sums[height] = total
            else:
                sums.pop(height, None)
            height >>= _BITS

    def since(self, height: int) -> int:
        """The sum of what was added at this height or later."""
        if not self._levels[-1]:
            return 0
        total = self._levels[0].get(height, 0)
        for sums in self._levels:
            total += sum([sums.get(later, 0) for later in range(height + 1, (height | _LAST) + 1)])
            height >>= _BITS
        return total
