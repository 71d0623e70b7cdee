"""The broker's end of the admin socket: HTTP/1.1 on aiohttp, a JSON object for each answer.

A client that may connect may use every action of the table. Aiohttp is imported when the first client comes.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct, json

from parley.node.admin.actions import Action, ActionRefused, Asked
from parley.node.admin.messages import JSON, MAX_BODY, Failed
from parley.node.logs import Log

if TYPE_CHECKING:
    from aiohttp import web

    from parley.node.http_server import HttpServer

MAX_CONNECTIONS = 8
SECONDS = 10.0  # for one connection, unless its action takes its time
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class AdminSocket:
    """An asynchronous context that serves a listening socket with a table of actions."""

    def __init__(
        self,
        listening: socket.socket,
        actions: Sequence[Action],
        log: Log,
        *,
        seconds: float = SECONDS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._listening = listening
        self._actions = {(action.method, f"/{action.name}"): action for action in actions}
        self._log = log
        self._seconds = seconds
        self._max_connections = max_connections
        self._started: asyncio.Task[None] | None = None
        self._http: HttpServer | None = None

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._listening, self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is None:
            asyncio.get_running_loop().remove_reader(self._listening)
            return
        await asyncio.wait([self._started])
        if self._http is not None:
            await self._http.close()

    def _start(self) -> None:
        """Start the server, because a first client waits."""
        asyncio.get_running_loop().remove_reader(self._listening)
        self._started = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            # In a thread: the loop must not stand still for as long as this takes.
            await asyncio.to_thread(import_module, "parley.node.http_server")
            from parley.node.http_server import HttpServer  # noqa: PLC0415

            self._http = HttpServer(
                self._answer,
                self._log,
                seconds=self._seconds,
                max_connections=self._max_connections,
                max_body=MAX_BODY,
            )
            await self._http.start(self._listening)
        except Exception as error:  # noqa: BLE001 - the broker goes on without its admin socket
            why = f"it could not be served: {error}"
            self._log.error("admin_failed", action="start", pid=None, uid=None, why=why, exc_info=error)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        pid, uid = _peer(request)
        path = request.raw_path.partition("?")[0]
        action, log = f"{request.method} {path}"[:100], self._log
        answer = _Answer(request)
        try:
            _require_owner(uid)
            result = await self._action(request.method, path).handle(
                Asked(_shard(request), await _body(request), answer.say, answer.take_time)
            )
        except ActionRefused as refused:
            log.warning("admin_refused", action=action, pid=pid, uid=uid, why=str(refused))
            return await answer.refused(refused.status, str(refused))
        except asyncio.CancelledError:
            log.info("admin", action=action, pid=pid, uid=uid, result="ended by the client, or by a stop")
            raise
        except Exception as error:  # noqa: BLE001 - a defect of one action must not end the broker
            self._log.error("admin_failed", action=action, pid=pid, uid=uid, why=str(error), exc_info=error)
            why = "The action failed because of a defect, which the broker's log describes: report it."
            return await answer.refused(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        log.info("admin", action=action, pid=pid, uid=uid, result="done")
        return await answer.done(result)

    def _action(self, method: str, path: str) -> Action:
        found = self._actions.get((method, path))
        if found is not None:
            return found
        known = ", ".join(f"{method} {path}" for method, path in self._actions)
        if methods := [one for one, known_path in self._actions if known_path == path]:
            raise ActionRefused(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{path} is asked for with {' or '.join(methods)}, not with {method}.",
            )
        raise ActionRefused(HTTPStatus.NOT_FOUND, f"There is no action {path}. There are: {known}.")


class _Answer:
    """What one question gets: a JSON object, or a stream with an object in each line if the action calls `say`."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._stream: web.StreamResponse | None = None

    def take_time(self) -> None:
        from parley.node.http_server import take_time  # noqa: PLC0415

        take_time(self._request)

    async def say(self, line: Struct) -> None:
        from parley.node.http_server import stream  # noqa: PLC0415

        if self._stream is None:
            self.take_time()
            self._stream = stream(JSON)
            await self._stream.prepare(self._request)
        await self._stream.write(json.encode(line) + b"\n")

    async def done(self, result: object) -> web.StreamResponse:
        return await self._end(HTTPStatus.OK, result)

    async def refused(self, status: HTTPStatus, why: str) -> web.StreamResponse:
        return await self._end(status, Failed(why))

    async def _end(self, status: HTTPStatus, result: object) -> web.StreamResponse:
        from parley.node.http_server import response  # noqa: PLC0415

        line = json.encode(result) + b"\n"
        if self._stream is None:
            return response(status, line, JSON)
        await self._stream.write(line)
        return self._stream


def _peer(request: web.BaseRequest) -> tuple[int | None, int | None]:
    """Process and user of the client, where the system tells them."""
    option = getattr(socket, "SO_PEERCRED", None)
    found = request.transport and request.transport.get_extra_info("socket")
    if option is None or not found:
        return None, None
    with suppress(OSError):
        pid, uid, _ = _CREDENTIALS.unpack(found.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
        return pid, uid
    return None, None


def _require_owner(uid: int | None) -> None:
    """Raises `ActionRefused` for other users. The rights of the socket keep them out, too, unless they were changed."""
    if uid not in (None, 0, os.geteuid()):
        raise ActionRefused(
            HTTPStatus.FORBIDDEN,
            f"User {uid} may not administer this broker. Ask as the user that runs it, {os.geteuid()}, or as root.",
        )


def _shard(request: web.BaseRequest) -> int | None:
    """The shard that the request names; None: it names none."""
    text = request.query.get("shard")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise ActionRefused(
            HTTPStatus.BAD_REQUEST, f"{text[:20]!r} is no shard; name one by its number, as in ?shard=0."
        )
    return int(text)


async def _body(request: web.BaseRequest) -> bytes:
    from aiohttp import web  # noqa: PLC0415

    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        why = f"A question has at most {MAX_BODY} bytes."
        raise ActionRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why) from None
