"""What a replica knows besides what is on its disk: writes that are on their way there, and what it has in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Protocol

from parley.consensus.machine import Machine
from parley.consensus.types import Block, Roots
from parley.consensus.verify import Verifier
from parley.crypto.merkle import MountainRange
from parley.mempool.pool import Pool
from parley.replica.progress import Progress
from parley.replica.records import Trusted
from parley.store.interface import StoreReader


class Overlay:
    """The store as it will be once the effects of this step are executed; `clear` when they have been."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self._written: dict[bytes, bytes | None] = {}

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._written.update(entries)

    def clear(self) -> None:
        self._written.clear()

    def get(self, key: bytes) -> bytes | None:
        return self._written[key] if key in self._written else self._store.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix`, in key order, from the key `start` on, read as they are asked for."""
        new = {key: value for key, value in self._written.items() if key >= start and key.startswith(prefix)}
        stored = (entry for entry in self._store.scan(prefix, start) if entry[0] not in new)
        both = merge(sorted(new.items()), stored, key=itemgetter(0))
        return ((key, value) for key, value in both if value is not None)


class Executing(Protocol):
    """A replica, as far as it has executed the chain."""

    @property
    def executed_height(self) -> int: ...

    @property
    def history(self) -> MountainRange:
        """The history of the executed blocks."""


@dataclass(frozen=True)
class Memory:
    """Fixed things, and parts of the replica that answer as of now without its disk, which may be wrong."""

    genesis: Block
    verifier: Verifier
    replica: Executing
    roots: Mapping[int, Roots]  # of the last few executed blocks
    pool: Pool
    machine: Machine
    progress: Progress

    @property
    def executed(self) -> int:
        return self.replica.executed_height

    def body(self, digest: bytes) -> bytes | None:
        """The body of a batch that waits."""
        return self.pool.body(digest)

    def block(self, id_: bytes) -> Block | None:
        """A block that is not executed yet."""
        return self.machine.block(id_)

    def all_near(self) -> bool:
        """Whether no member that may come back by blocks is far behind."""
        return self.progress.all_near()

    def trusted(self) -> Trusted:
        """The history as of now."""
        return Trusted(self.executed, self.replica.history.root())

    def state_root(self) -> bytes:
        """Of the state after the last executed block."""
        roots = self.roots.get(self.executed)
        assert roots is not None, "the results of the last executed block are known"
        return roots.state
