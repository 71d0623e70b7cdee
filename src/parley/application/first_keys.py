"""Remembers the first key of some tables between blocks: a scan of the store takes as long as executing a batch."""

from __future__ import annotations

from collections.abc import Iterable

from parley.application.state import State
from parley.application.tables import AnyTable


class FirstKeys:
    """The first key of each table, looked up once and then kept up to date. For tables that are mostly empty or not due."""

    def __init__(self, tables: Iterable[AnyTable]) -> None:
        self._tables = {table.name.encode(): table for table in tables}
        self.known: dict[AnyTable, bytes | None] = {}  # None: the table has no entry

    def of(self, state: State, table: AnyTable) -> bytes | None:
        """The first key of the table, as it was before the block of this state."""
        if table not in self.known:
            self.known[table] = next(iter(state.stored_keys(table.prefix(), 1)), None)
        return self.known[table]

    def follow(self, state: State) -> None:
        """Bring the known first keys up to date with what the block of this state has written."""
        for key, is_there in state.written():
            table = self._tables.get(key.partition(b"/")[0])
            if table is None or table not in self.known:
                continue
            first = self.known[table]
            if is_there:
                self.known[table] = key if first is None else min(first, key)
            elif key == first:
                del self.known[table]  # the next block looks it up

    def forget(self) -> None:
        self.known.clear()
