"""Files that hold keys: created so that no moment and no crash leaves them readable by others, refused if they are."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path

from parley.store.folders import sync_directory

MAX_SECRET = 64 * 1024  # bytes; keys are far smaller
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class SecretError(Exception):
    """A file cannot be used as a secret; the message says why and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def write_secret(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Create the file for its owner alone, whole or not at all. An existing one stays, unless it is to be replaced."""
    if len(data) > MAX_SECRET:
        raise SecretError(path, f"a secret has at most {MAX_SECRET} bytes, not {len(data)}")
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 600
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)  # unlike a rename, this fails when there is a file already
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)
    except FileExistsError:
        raise SecretError(
            path, "exists already and may be the only copy of a key; move it away first"
        ) from None
    except OSError as error:
        raise SecretError(path, f"cannot be written: {error.strerror}") from error


def read_secret(path: Path) -> bytes:
    """The file's content, if nobody but its owner can read or change it."""
    try:
        # Not blocking: a pipe in place of the file would make the node wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _require_private(path, os.fstat(descriptor))
            data = os.read(descriptor, MAX_SECRET + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SecretError(path, f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_SECRET:
        raise SecretError(path, f"is larger than {MAX_SECRET} bytes, so it is no key")
    return data


def _require_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SecretError(path, "is not a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise SecretError(path, "belongs to another user, who can read and change it; use a key of your own")
    if found.st_mode & _OTHERS:
        raise SecretError(path, f"is open to other users; run: chmod 600 {shlex.quote(str(path))}")
