"""The file that holds the safety record: what the replica has signed is on disk before the signature leaves (T16-T19).

Two slots of two copies, each in a region of its own size that is overwritten in place. A record goes into one copy of its
slot, and when that is on disk into the other: a crash tears at most one of the two. So when both are damaged, no crash did
it, and the replica stays stopped (consensus/record.py). The copies of a slot do not lie side by side.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from parley.consensus.errors import SafetyRecordError
from parley.consensus.record import COPIES, MAX_RECORD, SLOTS
from parley.store.folders import sync_directory

SIZE = SLOTS * COPIES * MAX_RECORD

_ADVICE = (
    "Without it this replica could sign twice in one view, so it stays stopped. Do not restore one from a backup: repair "
    "the disk, or if the record is gone for good, run `parley node recover`."
)
_STOP = "Nothing more is signed. Stop the broker, check the disk, then start it again."


class SafetyFileError(SafetyRecordError):
    """The safety file cannot be made, opened, read or written: the replica must not sign."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"The safety file {path} {what}")
        self.path = path


class SafetyFileDamaged(SafetyFileError):  # noqa: N818 - the condition, not an error of the caller
    """What the file held cannot be read any more, whatever is done about paths, rights and other processes."""


class SafetyFile(AbstractContextManager["SafetyFile"]):
    """Made by `SafetyFile.open`. One process at a time has it open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._broken = False

    @staticmethod
    def create(path: Path, records: Sequence[bytes]) -> None:
        """A new file with a first record for each slot; it is there complete or not at all."""
        assert len(records) == SLOTS, "a new replica has a record in each slot"
        assert all(0 < len(record) <= MAX_RECORD for record in records), "a record fits its slot"
        try:
            _create(path, b"".join(record.ljust(MAX_RECORD, b"\0") for record in records) * COPIES)
        except FileExistsError:
            raise SafetyFileError(
                path, "exists already and is never overwritten: what it says was signed stays signed."
            ) from None
        except OSError as error:
            raise SafetyFileError(path, f"cannot be made: {error.strerror}. Check the disk.") from error

    @classmethod
    def open(cls, path: Path) -> Self:
        try:
            # Every write is on disk when it returns. The file keeps its size, so its data is all there is to sync.
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC)
        except FileNotFoundError:
            raise SafetyFileError(path, f"is missing. {_ADVICE}") from None
        except OSError as error:
            raise SafetyFileError(
                path, f"cannot be opened: {error.strerror}. Check path and rights."
            ) from error
        try:
            _lock(path, descriptor)
            _require_in_place(path, descriptor)
            _require_size(path, os.fstat(descriptor).st_size)
        except SafetyFileError:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def read(self) -> list[list[bytes]]:
        """The copies of each slot, as `recover_record` takes them; what follows a record in its region is left over."""
        return [[self._region(slot, copy) for copy in range(COPIES)] for slot in range(SLOTS)]

    def persist(self, slot: int, record: bytes) -> None:
        """Both copies of the record are on disk when this returns; if it raises, nothing may be signed under it."""
        assert 0 <= slot < SLOTS, "there is such a slot"
        assert 0 < len(record) <= MAX_RECORD, "a record fits its slot"
        for copy in range(COPIES):
            self.write(slot, copy, record)

    def write(self, slot: int, copy: int, record: bytes) -> None:
        """One copy of a record is on disk when this returns."""
        # After a failed sync a second one may succeed without having written anything: nothing is retried.
        if self._broken:
            raise SafetyFileError(self._path, f"takes no record since writing one failed. {_STOP}")
        self._broken = True
        try:
            if os.pwrite(self._descriptor, record, _offset(slot, copy)) != len(record):
                raise SafetyFileError(self._path, f"took only a part of a record. {_STOP}")
        except OSError as error:
            raise SafetyFileError(self._path, f"could not be written: {error.strerror}. {_STOP}") from error
        self._broken = False

    def stat(self) -> os.stat_result:
        """Of the file that is open, wherever its name leads now."""
        return os.fstat(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _region(self, slot: int, copy: int) -> bytes:
        try:
            return os.pread(self._descriptor, MAX_RECORD, _offset(slot, copy))
        except OSError as error:
            if error.errno == errno.EIO:  # a bad sector: the other copy is made for that
                return b""
            raise SafetyFileError(self._path, f"cannot be read: {error.strerror}. {_ADVICE}") from error


def _offset(slot: int, copy: int) -> int:
    return (copy * SLOTS + slot) * MAX_RECORD


def _lock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SafetyFileError(
            path, "is in use by another process. Stop that one first: two with one record would sign twice."
        ) from None
    except OSError as error:
        raise SafetyFileError(
            path, f"cannot be locked: {error.strerror}. Put it on a local disk, where locks work."
        ) from error


def _require_in_place(path: Path, descriptor: int) -> None:
    """What was moved aside between opening and locking is a record that another one stands in for (P10)."""
    try:
        there, here = path.stat(), os.fstat(descriptor)
    except OSError as error:
        raise SafetyFileError(path, f"was moved away: {error.strerror}. Start again.") from error
    if (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino):
        raise SafetyFileError(path, "was replaced while it was opened. Start again.")


def _require_size(path: Path, size: int) -> None:
    if size != SIZE:
        raise SafetyFileDamaged(path, f"has {size} bytes instead of {SIZE}, so it is damaged. {_ADVICE}")


def _create(path: Path, content: bytes) -> None:
    # Under another name first, so that a crash does not leave half a file that must never be deleted.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # readable by its owner only
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)
    finally:
        Path(name).unlink()
    sync_directory(path.parent)
