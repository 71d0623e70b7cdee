"""The interface of leader schemes. A verifier computes the leader from the proposal alone, so all agree (R1-R4)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from parley.consensus.types import Header


class EnteredBy(Enum):
    """Which certificate of the view before opened the view."""

    QC = "qc"
    TC = "tc"


class LeaderScheme(Protocol):
    """The leader of `view` over a parent whose headers, newest first, are `ancestry`."""

    @property
    def memory(self) -> int:
        """How many headers of the ancestry it may read; they are kept when blocks are committed."""

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int: ...
