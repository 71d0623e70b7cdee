"""Whether a broker's files still lie where it opened them: what it writes to others is gone when it stops (P10).

A file that is removed or moved stays open and takes every write and sync without an error. So after each sync, and before
anything is signed or acknowledged on the strength of it, the names are looked up again. That is one `stat` for the record
and one for the store, some microseconds beside a sync. It comes after the sync and not before it: a folder that goes away
while the sync lasts is noticed, too. A broker that has nothing to write looks once in a while.

Of the store it is the lock file that is looked up: it is made once and never replaced, and it is gone when the folder is,
when the folder is emptied, and when another one is put or mounted in its place. It is never opened: closing it again would
give up the store's lock, because locks of this kind belong to the process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Identity = tuple[int, int]  # device and inode


class DisplacedError(Exception):
    """A file that the broker has open is not under its name any more. It must not sign, acknowledge or write anything."""

    def __init__(self, path: Path, problem: str, command: str) -> None:
        super().__init__(
            f"{path} {problem}: it was removed, moved or replaced under the running broker, which has stopped and signs and "
            f"acknowledges nothing more. If the old one was moved, put that very one back, together with what belongs to it, "
            f"and start the broker. If it is lost, run `parley node recover` (here: {command}). Never start the broker with a "
            f"copy or a backup of its safety record: if one lies there now, run `{command} --stale-record`."
        )
        self.path = path


class Placement:
    """Files by name, each as it was when it was opened; `command` is the way back if one of them is lost."""

    def __init__(self, files: Mapping[Path, os.stat_result], command: str) -> None:
        self._files = {path: identity(found) for path, found in files.items()}
        self._command = command

    def require(self) -> None:
        """Raises `DisplacedError`, also if it cannot be told."""
        for path, opened in self._files.items():
            try:
                found = path.stat()
            except OSError as error:
                raise DisplacedError(
                    path, f"cannot be found any more ({error.strerror})", self._command
                ) from error
            if identity(found) != opened:
                raise DisplacedError(path, "is another file now", self._command)


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
