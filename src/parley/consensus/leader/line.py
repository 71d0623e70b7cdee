"""An ancestry by height, and answers by block: what the schemes with a memory share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from parley.consensus.types import Header
from parley.crypto.qc import voters

REMEMBERED = 256  # blocks: the uncommitted ones with their forks, and far more than a record refers back to

T = TypeVar("T")


class Line:
    """The headers from a parent downwards, read no further than the lowest height asked for."""

    def __init__(self, ancestry: Iterable[Header]) -> None:
        self._rest = iter(ancestry)
        self._headers = list(islice(self._rest, 1))
        self.height = self._headers[0].height if self._headers else 0

    def header(self, height: int) -> Header:
        depth = self.height - height
        if depth >= len(self._headers):
            self._read(depth + 1)
        return self._headers[depth]

    def id(self, height: int) -> bytes:
        """The id of the block at a height below the parent's, as its child names it: nothing is hashed."""
        return self.header(height + 1).parent

    def voters(self, height: int, size: int) -> tuple[int, ...]:
        """Who voted for the block at a height below the parent's, as its child shows, in ascending order."""
        return embedded_voters(self.header(height + 1), size)

    def proposers(self, height: int, count: int) -> list[int]:
        """Of the `count` blocks from a height downwards, newest first; nobody proposed block 0."""
        start = self.height - height
        end = start + min(count, height)
        self._read(end)
        return [header.proposer for header in self._headers[start:end]]

    def _read(self, count: int) -> None:
        self._headers += islice(self._rest, max(0, count - len(self._headers)))
        # A scheme that went on with less would elect somebody else than the others do.
        assert len(self._headers) >= count, "the ancestry is as long as `memory` says"


def embedded_voters(header: Header, size: int) -> tuple[int, ...]:
    """The signers of the QC in a header: votes for its parent."""
    return voters(header.justify.votes.bitmap, size) or ()


def remember(answers: dict[bytes, T], block: bytes, answer: T) -> T:
    """Keep a pure answer and forget the oldest one: that costs time when it is asked for again, nothing else."""
    answers[block] = answer
    if len(answers) > REMEMBERED:
        del answers[next(iter(answers))]
    return answer
