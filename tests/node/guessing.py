"""Keys of every declared table, put together from names that are known and from guesses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from parley.application.tables import HASH, LARGE, NUMBER, POSITION, REST, SESSION, TEXT, AnyTable, Part
from parley.applications import DATA_SHARD
from parley.model.names import Position


@dataclass(frozen=True)
class Guesses:
    """What is put into keys, by the kind of their parts. `hashes` are constraints and keys of clients."""

    texts: tuple[str, ...]
    hashes: tuple[bytes, ...]
    numbers: tuple[int, ...]
    larges: tuple[int, ...]
    positions: tuple[Position, ...]
    sessions: tuple[bytes, ...] = (bytes(16),)
    rests: tuple[bytes, ...] = (b"",)

    def entries(self) -> list[bytes]:
        """Whole keys of entries."""
        return [
            table.key(*key)
            for table in DATA_SHARD.tables.values()
            for key in self._tuples(table, len(table.parts))
        ]

    def lists(self) -> list[tuple[bytes, bytes]]:
        """Prefixes of keys, and where the list begins: with the prefix, or after any key that is guessed."""
        return [
            (prefix, after)
            for table in DATA_SHARD.tables.values()
            for prefix in self._prefixes(table)
            for after in (b"", *self._places(table, prefix))
        ]

    def _prefixes(self, table: AnyTable) -> Iterator[bytes]:
        for parts in range(len(table.parts) + 1):
            for leading in self._tuples(table, parts):
                yield table.prefix(*leading)

    def _places(self, table: AnyTable, prefix: bytes) -> Iterator[bytes]:
        """Nothing of a table that is never listed depends on the place: one is enough."""
        if table.listed is None:
            yield prefix
            return
        yield prefix + b"\xff"
        for key in self._tuples(table, len(table.parts)):
            if (packed := table.key(*key)).startswith(prefix):
                yield packed

    def _tuples(self, table: AnyTable, parts: int) -> Iterator[tuple[object, ...]]:
        return product(*(self._of(part) for part in table.parts[:parts]))

    def _of(self, part: Part) -> tuple[object, ...]:
        values: dict[int, tuple[object, ...]] = {
            id(TEXT): self.texts,
            id(HASH): self.hashes,
            id(NUMBER): self.numbers,
            id(LARGE): self.larges,
            id(POSITION): self.positions,
            id(SESSION): self.sessions,
            id(REST): self.rests,
        }
        assert id(part) in values, "keys of a new kind need values to guess"
        return values[id(part)]
