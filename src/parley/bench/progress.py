"""How far each subscribing process is, in a file that all of them map: the publisher waits for the slowest one."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_COUNT = struct.Struct("<Q")


def create_progress(path: Path, processes: int) -> Path:
    path.write_bytes(bytes(_COUNT.size * processes))
    return path


class Progress:
    """One number for each process: the messages that the slowest of its subscribers has got."""

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def tell(self, place: int, messages: int) -> None:
        _COUNT.pack_into(self._map, place * _COUNT.size, messages)

    def least(self) -> int:
        counts: list[int] = [count for (count,) in _COUNT.iter_unpack(self._map)]
        return min(counts)
