"""Folders of files: names that are on disk, and whole folders that go to their place."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

COPIED_BYTES = 1024 * 1024  # at a time


def sync_directory(path: Path) -> None:
    """Force the names in a directory to disk: what was made or renamed in it is there on return."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def move_folder(folder: Path, path: Path) -> None:
    """Bring a folder of files to its place, also on another file system: whole or not at all, on disk on return."""
    folder.chmod(0o700)
    try:
        folder.rename(path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(folder, path)
    sync_directory(path.parent)


def _copy(folder: Path, path: Path) -> None:
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed meanwhile
    try:
        partial.mkdir(mode=0o700)
        for file in folder.iterdir():
            with file.open("rb") as source, (partial / file.name).open("xb") as target:
                shutil.copyfileobj(source, target, COPIED_BYTES)
                target.flush()
                os.fsync(target.fileno())
        sync_directory(partial)
        partial.rename(path)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
