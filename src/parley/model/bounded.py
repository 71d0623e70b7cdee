"""Tables and counters that stay as small as they have to be, whatever strangers send."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put(table: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Add an entry; if that makes more than `most`, the oldest goes."""
    table[key] = value
    if len(table) > most:
        table.popitem(last=False)


def take_off(counter: Counter[K], key: K) -> None:
    """Count one out of a key that was counted in; a key with none left is deleted."""
    assert counter[key] > 0, "only what was counted in is counted out"
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
