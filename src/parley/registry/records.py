"""The part of the replicated state that the registry reads and writes."""

from __future__ import annotations

from typing import Protocol, TypeVar

from msgspec import Struct

__all__ = ["Records"]

T = TypeVar("T", bound=Struct)


class Records(Protocol):
    """Entries of the state: typed records, bytes and counts."""

    def get(self, kind: type[T], key: bytes) -> T | None: ...

    def get_bytes(self, key: bytes) -> bytes | None: ...

    def put(self, key: bytes, record: Struct | bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def count(self, key: bytes) -> int: ...

    def add(self, key: bytes, by: int) -> None: ...
