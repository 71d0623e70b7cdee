"""Timers of what runs besides consensus; like all timers they are never cancelled, and late ones are ignored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CareTimer:
    """The caretaker's next round."""

    round: int


@dataclass(frozen=True, slots=True)
class JoinTimer:
    """Runs while an answer about a snapshot is awaited."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RecoveryTimer:
    """Runs while a broker that lost its safety record waits for the certificates of others (P10)."""

    attempt: int
