"""Every member in turn: the scheme that needs no history, and the fallback of all others."""

from __future__ import annotations

from collections.abc import Iterable

from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.types import Header


class RoundRobin:
    """Member v mod n leads view v."""

    memory = 0

    def __init__(self, size: int) -> None:
        self._size = size

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int:
        del entered_by, ancestry
        return view % self._size
