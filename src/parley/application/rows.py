"""Ledger tables that a module adds: what operations that took effect changed, as rows with typed columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from parley.application.operations import Operation

LEDGER_TABLES = ("blocks", "operations", "receipts", "votes")  # of every application
EVIDENCE = "evidence"  # of what brokers hold against each other, which is not in the ledger
ColumnType = Literal["text", "bytes", "int", "long", "flag", "pairs", "texts", "longs"]


@dataclass(frozen=True)
class ChangeTable:
    """A ledger table. `row` gives the values of one operation by column, None if it changes nothing here.

    A row begins with its place in the ledger, who asked for it, the name of the operation and the organisation.
    """

    name: str
    columns: Mapping[str, ColumnType]
    row: Callable[[Operation], Mapping[str, Any] | None]
