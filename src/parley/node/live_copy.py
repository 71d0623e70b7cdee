"""A copy of a store that may be in use: RocksDB's files, taken so that together they are one moment's.

RocksDB's own checkpoints need the process that has the store open. From outside it goes like this: a table or blob file never
changes, and no file that the manifest needs is deleted before a newer manifest is on disk. So if the manifest is the same
before and after all else was taken, nothing was missing; the log's last records may be, as after a crash at that moment.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from parley.node.backup_file import BackupError, is_stored

ROUNDS = 100  # each takes only what the one before has not
PAUSE_SECONDS = 0.05

_LASTING = (".sst", ".blob")  # numbered, and never changed once the manifest names them
_CHANGING = ("CURRENT", "MANIFEST-*", "*.log")  # taken with care


class _MovedOn(Exception):  # noqa: N818 - what happened, not an error
    """The store is not what it was when the round began."""


def copy_store(source: Path, target: Path) -> None:
    """Make `target`, a store as it was at some moment during this call; it is to be read, never to be opened for writing.

    Its tables are links where the disk allows that, some perhaps to files that the store's own process is still writing.
    """
    if not (source / "CURRENT").is_file():
        raise BackupError(f"{source} holds no store; check the path.")
    target.mkdir(mode=0o700)
    for _ in range(ROUNDS):
        if _taken(source, target):
            return
        time.sleep(PAUSE_SECONDS)
    raise BackupError(
        f"{source} was rewritten faster than it could be copied, {ROUNDS} times; try again when there is less to do."
    )


def _taken(source: Path, target: Path) -> bool:
    """One round; False: the store has moved on meanwhile."""
    try:
        before = _manifest(source)
        _take_all(source, target)
        if _manifest(source) != before:
            return False
    except (FileNotFoundError, _MovedOn):  # the store has tidied up or gone on between two of our steps
        return False
    name, size = before
    shutil.copyfile(source / name, target / name)
    os.truncate(target / name, size)
    (target / "CURRENT").write_text(f"{name}\n")
    return True


def _manifest(source: Path) -> tuple[str, int]:
    """Which one is in force, and its length: it only grows."""
    name = (source / "CURRENT").read_text().strip()
    return name, (source / name).stat().st_size


def _take_all(source: Path, target: Path) -> None:
    for old in (path for path in target.iterdir() if path.suffix not in _LASTING):
        old.unlink()
    for path in filter(is_stored, source.iterdir()):
        if path.suffix in _LASTING:
            _take_lasting(path, target / path.name)
        elif not any(path.match(pattern) for pattern in _CHANGING):
            shutil.copyfile(path, target / path.name)
    _take_logs(source, target)


def _take_logs(source: Path, target: Path) -> None:
    """The oldest first, from one listing: what is in one of them was written before what is in the next."""
    logs = sorted(filter(is_stored, source.glob("*.log")), key=lambda path: int(path.stem))
    for log in logs:
        shutil.copyfile(log, target / log.name)
    # The end of one came after the next one had begun.
    if any(log.stat().st_size != (target / log.name).stat().st_size for log in logs[:-1]):
        raise _MovedOn


def _take_lasting(file: Path, target: Path) -> None:
    # One that is still being written is not in the manifest yet: it is of no use, or it is taken again.
    if target.exists() and target.stat().st_size == file.stat().st_size:
        return
    target.unlink(missing_ok=True)
    with suppress(OSError):  # another file system, or one without links
        target.hardlink_to(file)
        return
    shutil.copyfile(file, target)
