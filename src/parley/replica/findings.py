"""What the caretaker found wrong in the local store, and how each of it can be put right."""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.types import Block
from parley.ledger import layout
from parley.replica.ports import Found

MAX_OPEN = 32  # repairs at a time; the search for more waits until some are done
MAX_BODIES = 24  # of them: if nobody has a body any more, the search must not wait for it


@dataclass(frozen=True, slots=True)
class Put:
    """The right value is known here; None: nothing belongs there."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class FromRecord:
    """From the block of this height and its receipts, which others have."""

    height: int


@dataclass(frozen=True, slots=True)
class FromBody:
    """The body of a batch of this executed block, which others have."""

    block: Block
    name: bytes


@dataclass(frozen=True, slots=True)
class FromPeers:
    """An entry of the state, whose hash is known here."""

    key: bytes


@dataclass(frozen=True, slots=True)
class FromMap:
    """A node of the state map, from what lies below it."""

    path: bytes


Remedy = Put | FromRecord | FromBody | FromPeers | FromMap


@dataclass(frozen=True, slots=True)
class Finding:
    entry: bytes
    what: str
    remedy: Remedy


class Findings:
    """Every finding is told once when it is found and once when it is mended."""

    def __init__(self) -> None:
        self._open: dict[bytes, Finding] = {}

    @property
    def is_full(self) -> bool:
        return len(self._open) >= MAX_OPEN

    def open(self) -> list[Finding]:
        return list(self._open.values())

    def note(self, finding: Finding) -> list[Found]:
        """Nothing, if it is known or there are too many: what is not noted now is met again."""
        if finding.entry in self._open or self.is_full:
            return []
        bodies = sum(isinstance(other.remedy, FromBody) for other in self._open.values())
        if isinstance(finding.remedy, FromBody) and bodies >= MAX_BODIES:
            return []
        self._open[finding.entry] = finding
        return [Found(layout.name(finding.entry), finding.what, mended=False)]

    def mended(self, entry: bytes) -> list[Found]:
        finding = self._open.pop(entry, None)
        return [] if finding is None else [Found(layout.name(entry), finding.what, mended=True)]

    def drop(self, entry: bytes) -> None:
        """It was right after all: something else was wrong."""
        self._open.pop(entry, None)
