"""The command's end of the admin socket: one question to a broker that runs on this machine."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import MsgspecError, Struct, json

from parley.node.admin.messages import (
    BACKUP,
    FAULTS,
    JSON,
    MAX_LINE,
    RELOAD,
    Copied,
    Failed,
    Faults,
    Reloaded,
    SetFaults,
)
from parley.node.admin.place import SOCKET, PlaceError, dial
from parley.node.faults.settings import write_faults
from parley.node.faults.switches import checked
from parley.node.processes import LocalBroker

SECONDS = 30.0  # for an answer, except for that to a backup

S = TypeVar("S", bound=Struct)


class AdminError(Exception):
    """The broker has refused, or its answer cannot be used; the message says why and what to do."""


class NotListening(AdminError):  # noqa: N818 - the condition
    """No broker listens in this folder: it does not run, or has just begun to start."""


def reload(folder: Path) -> Reloaded:
    """Have the broker of this folder read its certificate and its faults again."""
    return _ask(folder, "POST", RELOAD, Reloaded)


def set_faults(folder: Path, faults: tuple[str, ...]) -> Faults:
    """Have the broker of this folder show these faults and no others, now and from its next start on."""
    return _ask(folder, "PUT", FAULTS, Faults, SetFaults(faults))


def switch_faults(broker: LocalBroker, faults: Sequence[str]) -> bool:
    """Set the faults of a broker of this machine, and return whether it runs. Raises `FaultError` or `AdminError`."""
    wanted = checked(faults)
    for _ in range(
        2
    ):  # a broker that has begun to listen meanwhile may have read the file before it was written
        try:
            set_faults(broker.folder, wanted)
        except NotListening:
            write_faults(broker.config, wanted)
        else:
            return True
    return broker.pid() is not None


@contextmanager
def copied_store(folder: Path, shard: int = 0) -> Iterator[Path]:
    """A copy of the store of the broker of this folder; as long as this lasts the broker keeps it."""
    with _asked(folder, "POST", f"{BACKUP}?shard={shard}", None, seconds=None) as answer:
        yield Path(_line(folder, answer, Copied).data)


def _ask(folder: Path, method: str, name: str, type_: type[S], body: Struct | None = None) -> S:
    with _asked(folder, method, name, body, SECONDS) as answer:
        return _line(folder, answer, type_)


@contextmanager
def _asked(
    folder: Path, method: str, name: str, body: Struct | None, seconds: float | None
) -> Iterator[http.client.HTTPResponse]:
    """The answer to one question. Raises `NotListening` or `AdminError`."""
    with _dialled(folder, seconds) as connection:
        question = http.client.HTTPConnection("localhost")
        question.sock = connection
        try:
            question.request(method, f"/{name}", json.encode(body) if body else None, {"Content-Type": JSON})
            answer = question.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise _broken(folder, error) from error
        with answer:
            if answer.status != http.client.OK:
                raise AdminError(_line(folder, answer, Failed).error)
            yield answer


@contextmanager
def _dialled(folder: Path, seconds: float | None) -> Iterator[socket.socket]:
    try:
        connection = dial(folder, seconds)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotListening(
            f"no broker listens at {folder / SOCKET}: it does not run, or has just begun to start."
        ) from None
    except PlaceError as error:
        raise AdminError(str(error)) from error
    except OSError as error:
        raise AdminError(
            f"{folder / SOCKET} cannot be reached: {error.strerror or error}. Ask as the user that runs the broker, or as root."
        ) from error
    with connection:
        yield connection


def _line(folder: Path, answer: http.client.HTTPResponse, type_: type[S]) -> S:
    try:
        return json.decode(answer.readline(MAX_LINE), type=type_)
    except (OSError, http.client.HTTPException, MsgspecError) as error:
        raise _broken(folder, error) from error


def _broken(folder: Path, error: Exception) -> AdminError:
    return AdminError(
        f"the broker of {folder} has not answered as expected ({str(error).strip() or type(error).__name__}): it has ended meanwhile, is "
        f"of another version, or stands still. Look at its log, and try again."
    )
