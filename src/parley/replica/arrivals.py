"""Since when batches wait for order: for people who watch, never for a decision."""

from __future__ import annotations

from collections.abc import Iterable


class Arrivals:
    """When each waiting batch came, the oldest first. It holds as many as the pool, which limits them."""

    def __init__(self) -> None:
        self._came: dict[bytes, int] = {}

    def came(self, batches: Iterable[bytes], now: int) -> None:
        """Note when batches came. Those that waited before a restart come when it starts: when they came first is not stored."""
        for batch in batches:
            self._came.setdefault(batch, now)

    def gone(self, batches: Iterable[bytes]) -> None:
        for batch in batches:
            self._came.pop(batch, None)

    @property
    def oldest(self) -> int | None:
        """When the oldest one came; None: none waits."""
        return next(iter(self._came.values()), None)
