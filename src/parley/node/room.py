"""How full the disk is: a broker with little room takes no publications, and one without stops before a write fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from parley.model.refusals import Busy

NEARLY_PERCENT = 90  # of what is allowed
LOW_BYTES = 64 * 1024 * 1024  # free on the file system, below which it is nearly full
FULL_BYTES = 16 * 1024 * 1024  # and below which it is full: the store has to tidy up with it
MIB = 1024 * 1024


def _free(path: Path) -> int:
    return shutil.disk_usage(path).free


class Room:
    """What the store takes of the `max_bytes` that it may take, 0 for any, and what its file system has left."""

    def __init__(self, data: Path, max_bytes: int, free: Callable[[Path], int] = _free) -> None:
        self._data = data
        self.max_bytes = max_bytes
        self._find_free = free
        self._used = 0
        self.free = LOW_BYTES
        self.look()

    def look(self) -> None:
        """Measure again. What cannot be measured now is as it was."""
        with suppress(OSError):
            if self.max_bytes:  # a large store has many files, and only a limit asks for them
                self._used = bytes_in(self._data)
            self.free = self._find_free(self._data)

    @property
    def refusal(self) -> Busy | None:
        """Why publications are refused; None: they are taken."""
        if not self._is_beyond(NEARLY_PERCENT) and self.free >= LOW_BYTES:
            return None
        free, path = _mib(self.free), str(self._data)
        if not self.max_bytes:
            return Busy("disk", free=free, path=path)
        return Busy("disk_limit", free=free, path=path, used=_mib(self._used), limit=_mib(self.max_bytes))

    @property
    def full(self) -> str:
        """Why this broker must not go on; empty: it may."""
        if not self._is_beyond(100) and self.free >= FULL_BYTES:
            return ""
        return (
            f"The disk of this broker is full ({self._measured()}), so it does not run: its store would fail in the middle of a "
            f"write. What it has promised is on disk. Free space or raise storage.max_bytes in its configuration, and start it."
        )

    @property
    def note(self) -> str:
        """What an operator should know, if anything."""
        if (refusal := self.refusal) is None:
            return ""
        why = refusal.detail
        return f"{why[0].upper()}{why[1:]}."

    def _is_beyond(self, percent: int) -> bool:
        return bool(self.max_bytes) and self._used * 100 >= self.max_bytes * percent

    def _measured(self) -> str:
        free = f"{_mib(self.free)} MiB are free in {self._data}"
        if not self.max_bytes:
            return free
        return f"{_mib(self._used)} of {_mib(self.max_bytes)} MiB of storage.max_bytes are in use, {free}"


def _mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def bytes_in(path: Path) -> int:
    """The bytes of all files in a folder. A file with several names counts once: a copy that is being made shares files with the store."""
    found, linked = 0, dict[tuple[int, int], int]()
    for file in _files(path):
        if file.st_nlink > 1:
            linked[file.st_dev, file.st_ino] = file.st_size
        else:
            found += file.st_size
    return found + sum(linked.values())


def _files(path: Path) -> Iterator[os.stat_result]:
    with os.scandir(path) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # the store has tidied up meanwhile
                if entry.is_dir(follow_symlinks=False):
                    yield from _files(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)
