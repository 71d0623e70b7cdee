"""The folder beside a store in which a backup has its copy of it, and who may use that folder: one backup at a time.

The process that makes the copy has an exclusive lock on the folder, and then shares it with the process that reads the copy. The last
of the two removes the folder. If they were killed, the next backup or the next start of the broker does.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DATA = "data"  # the folder of a store, here and in a backup
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class BackupError(Exception):
    """A backup cannot be made, is not whole, or cannot be put back here; the message says why and what to do."""


class Workshop:
    """The folder of one backup, by an open descriptor that can lock it."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor

    @property
    def data(self) -> Path:
        """The path of the copy."""
        return self._folder / DATA

    def share(self) -> None:
        """Let others read the copy."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Remove the folder, unless another one reads in it or it is a newer one."""
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(self._folder.lstat(), os.fstat(self._descriptor)):
                shutil.rmtree(self._folder)


@contextmanager
def opened(data: Path, broker: str) -> Iterator[Workshop]:
    """An empty workshop for the copy of a broker's store. Raises `BackupError` while another backup is made."""
    folder = _beside(data)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, _FOLDER)
    except OSError as error:
        raise BackupError(
            f"the backup needs {folder}, which cannot be made: {error.strerror}. Check rights and free space."
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another backup of {broker} is being made; let it finish.") from None
        workshop = Workshop(folder, descriptor)
        try:
            shutil.rmtree(workshop.data, ignore_errors=True)  # of one that was interrupted
            yield workshop
        finally:
            workshop.leave()
    finally:
        os.close(descriptor)


@contextmanager
def reading(copy: Path) -> Iterator[None]:
    """A context in which a copy that a broker has made stays, even if the broker ends. At its end the copy is removed."""
    descriptor = os.open(copy.parent, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            yield
        finally:
            shutil.rmtree(copy.parent, ignore_errors=True)
    finally:
        os.close(descriptor)


def copy_of(data: Path) -> Path:
    """Where a backup has its copy of the store that lies in `data`."""
    return _beside(data) / DATA


def remove_left_over(data: Path) -> None:
    """Remove what a backup that was killed left beside a store, unless another one is being made."""
    folder = _beside(data)
    with suppress(OSError):
        descriptor = os.open(folder, _FOLDER)
        try:
            Workshop(folder, descriptor).leave()
        finally:
            os.close(descriptor)


def _beside(data: Path) -> Path:
    data = data.resolve()
    return data.with_name(f".{data.name}.backup")
