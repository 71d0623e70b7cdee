"""Timers of what runs besides consensus; like all timers they are never cancelled, and late ones are ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Job = Literal["scrub", "erasure", "repair", "rebuild", "backfill"]  # what the caretaker does


@dataclass(frozen=True, slots=True)
class CareTimer:
    """The caretaker's next step, and the job that it goes on with. Without a delay: as soon as there is time."""

    round: int
    job: Job


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Runs while an answer about a snapshot is awaited."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecoveryTimer:
    """Runs while a broker that lost its safety record waits for the certificates of others (P10)."""

    attempt: int
