"""The admin socket as a file: made for its owner alone, in place of a stale one, and reached where its path is too long."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

SOCKET = "admin.sock"
BACKLOG = 16
MAX_PATH = 100  # bytes. Systems take 104 to 108 with the zero at the end
OPEN_FOLDERS = Path("/proc/self/fd")  # where Linux shows them under short paths

LOCK = ".admin.lock"  # it stays: a lock on a file that is removed and made again keeps no other process out
_NEW = ".admin.new"  # a folder of its own, in which a socket is made


class PlaceError(Exception):
    """The socket cannot be made or must not be used; the message says why and what to do."""


@contextmanager
def bound(folder: Path) -> Iterator[socket.socket]:
    """A socket that listens in a broker's folder, for as long as this lasts. Raises `PlaceError`.

    A lock says that the broker of the folder runs. A socket without this lock is stale and is replaced. The lock is on a file
    that only its owner can open: all who may read a folder may lock it, and could keep its broker from starting.
    """
    with ExitStack() as closing:
        try:
            _lock(folder, closing)
            listening = closing.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            own = _bind(folder, listening)
            closing.callback(_remove_own, folder / SOCKET, own)
            listening.listen(BACKLOG)
            listening.setblocking(False)
        except OSError as error:
            raise PlaceError(
                f"the admin socket {folder / SOCKET} cannot be made: {error.strerror or error}. Check the rights of the folder and "
                f"the free space of its disk."
            ) from error
        yield listening


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name of this path that is short enough for a socket."""
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
    elif OPEN_FOLDERS.is_dir():
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"{OPEN_FOLDERS / str(descriptor)}/{path.name}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory(prefix="parley-") as short:
            link = Path(short) / "f"
            link.symlink_to(path.parent.absolute(), target_is_directory=True)
            yield str(link / path.name)


def dial(folder: Path, seconds: float | None) -> socket.socket:
    """A connection to the broker of this folder. Raises `OSError` if none listens, `PlaceError` if another user may have made the socket."""
    path = folder / SOCKET
    found, owner = path.lstat(), folder.stat().st_uid
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid not in (owner, os.geteuid()):
        raise PlaceError(
            f"{path} is not a socket of the owner of {folder}, so another program may listen there. Look who put it there and "
            f"remove it; the broker makes a new one when it starts again."
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        with reachable(path) as short:
            connection.connect(short)
    except BaseException:
        connection.close()
        raise
    return connection


def _lock(folder: Path, closing: ExitStack) -> None:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    closing.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PlaceError(
            f"The folder {folder} is in use by another process that runs its broker. Stop that one first: a broker runs once."
        ) from None


def _bind(folder: Path, listening: socket.socket) -> os.stat_result:
    """Bind in a folder that only the owner may enter, set the socket's mode, and move it to its place."""
    new = folder / _NEW
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed meanwhile
    new.mkdir(mode=0o700)
    try:
        with reachable(new / SOCKET) as short:
            listening.bind(short)
        (new / SOCKET).chmod(0o600)
        own = (new / SOCKET).stat()
        (new / SOCKET).replace(folder / SOCKET)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return own


def _remove_own(path: Path, own: os.stat_result) -> None:
    """Remove this socket, but not another one that is there because the folder was replaced."""
    with suppress(OSError):
        if os.path.samestat(path.lstat(), own):
            path.unlink()
