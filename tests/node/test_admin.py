"""The admin socket: its owner's alone from the first moment, and no client of it holds it up or makes it grow."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import uvloop
from structlog.testing import capture_logs
from tests.node.network import SECONDS
from tests.node.watching import Page, parse

from parley.node.admin import place
from parley.node.admin.actions import Action, ActionRefused, Asked
from parley.node.admin.client import AdminError, NotListening, reload
from parley.node.admin.messages import MAX_BODY, Failed, Reloaded
from parley.node.admin.place import LOCK, SOCKET, PlaceError, bound, dial, reachable
from parley.node.admin.server import AdminSocket

DEEP = "/".join(["a folder with a long name"] * 6)


def run(story: Coroutine[Any, Any, None]) -> None:
    """On the event loop that brokers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story, SECONDS))


@pytest.fixture(params=["short", "deep", "deep, without /proc"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also one whose path is longer than a socket's may be."""
    found = tmp_path if request.param == "short" else tmp_path / DEEP
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    if "without" in request.param:
        monkeypatch.setattr(place, "OPEN_FOLDERS", tmp_path / "nowhere")
    assert (len(os.fsencode(found / SOCKET)) > 107) == (request.param != "short")
    return found


# -- the socket as a file ---------------------------------------------------------------------------------------------


def test_a_socket_is_bound_and_dialled_wherever_its_folder_is(folder: Path) -> None:
    with bound(folder) as listening:
        listening.setblocking(True)
        with dial(folder, SECONDS) as client:
            client.sendall(b"x")
            with listening.accept()[0] as server:
                assert server.recv(1) == b"x"
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_it_is_its_owners_alone_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    class Socket(socket.socket):
        def bind(self, name: Any) -> None:  # noqa: ANN401 - an address of any family
            super().bind(name)
            with reachable(Path(name)) as short:
                made = Path(short).resolve()
            seen.append((stat.S_IMODE(made.parent.stat().st_mode), made.stat().st_uid))
            assert not (tmp_path / SOCKET).exists()

    monkeypatch.setattr(socket, "socket", Socket)
    before = os.umask(0)
    try:
        with bound(tmp_path):
            found = (tmp_path / SOCKET).stat()
            assert stat.S_IMODE(found.st_mode) == 0o600
            assert {path.name for path in tmp_path.iterdir()} == {SOCKET, LOCK}
            assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert seen == [(0o700, os.geteuid())]


KILLED = """
import os, sys
from pathlib import Path
from parley.node.admin.place import bound

with bound(Path(sys.argv[1])):
    os._exit(0)
"""


def test_the_socket_of_a_process_that_was_killed_is_replaced(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=True)
    stale = (folder / SOCKET).stat()
    (folder / place._NEW).mkdir()  # killed even earlier
    (folder / place._NEW / SOCKET).touch()
    with pytest.raises(NotListening, match="no broker listens"):
        reload(folder)
    with bound(folder) as listening:
        assert not os.path.samestat((folder / SOCKET).stat(), stale)
        dial(folder, SECONDS).close()
        listening.setblocking(True)
        listening.accept()[0].close()


def test_the_socket_of_a_process_that_lives_is_not_replaced(folder: Path) -> None:
    with bound(folder):
        before = (folder / SOCKET).stat()
        with pytest.raises(PlaceError, match="in use by another process"), bound(folder):
            raise AssertionError
        assert os.path.samestat((folder / SOCKET).stat(), before)
        dial(folder, SECONDS).close()


LOCKS = """
import fcntl, os, sys

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name in sys.argv[1:]:
    try:
        fcntl.flock(os.open(name, os.O_RDONLY), fcntl.LOCK_SH)
    except PermissionError:
        pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_who_may_read_the_folder_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    with bound(tmp_path):
        pass
    command = [sys.executable, "-c", LOCKS, str(tmp_path), str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"done\n"
        with bound(tmp_path):
            dial(tmp_path, SECONDS).close()
        stranger.communicate()
    assert stranger.returncode == 0


def test_another_socket_in_its_place_is_left_alone_at_the_end(tmp_path: Path) -> None:
    with bound(tmp_path):
        (tmp_path / SOCKET).unlink()
        (tmp_path / SOCKET).write_text("of another one")
    assert (tmp_path / SOCKET).exists()


def test_a_place_where_no_socket_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / SOCKET).mkdir()
    (tmp_path / SOCKET / "file").touch()
    with pytest.raises(PlaceError, match=r"admin\.sock cannot be made: .*Check the rights"), bound(tmp_path):
        raise AssertionError


def test_a_command_does_not_speak_to_what_another_user_put_there(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()
    with pytest.raises(AdminError, match="is not a socket of the owner"):
        reload(tmp_path)
    (tmp_path / SOCKET).unlink()
    if os.geteuid() != 0:
        pytest.skip("only root can give a socket to another user")
    with bound(tmp_path):
        os.chown(tmp_path / SOCKET, 65_534, -1)
        with pytest.raises(AdminError, match="is not a socket of the owner"):
            reload(tmp_path)


# -- questions and answers --------------------------------------------------------------------------------------------


class Done(msgspec.Struct):
    shard: int | None
    size: int


async def echo(asked: Asked) -> Done:
    return Done(asked.shard, len(asked.body))


async def refuse(_: Asked) -> Done:
    raise ActionRefused(HTTPStatus.CONFLICT, "It cannot be done now: wait.")


async def broken(_: Asked) -> Done:
    raise RuntimeError("a defect")


class Lasting:
    """An action that lasts until its client goes."""

    def __init__(self) -> None:
        self.going_on = 0

    async def __call__(self, asked: Asked) -> None:
        self.going_on += 1
        try:
            await asked.say(Done(asked.shard, self.going_on))
            await asyncio.get_running_loop().create_future()
        finally:
            self.going_on -= 1


TABLE = [Action("echo", "POST", echo), Action("echo", "GET", echo), Action("no", "POST", refuse)]
TABLE.append(Action("broken", "POST", broken))


@asynccontextmanager
async def served(
    folder: Path, *more: Action, seconds: float = SECONDS, max_connections: int = 8
) -> AsyncIterator[AdminSocket]:
    with bound(folder) as listening:
        log = structlog.get_logger()
        table = [*TABLE, *more]
        async with AdminSocket(
            listening, table, log, seconds=seconds, max_connections=max_connections
        ) as one:
            yield one


async def opened(folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(sock=await asyncio.to_thread(dial, folder, None))


async def ask(folder: Path, line: str, body: bytes = b"", headers: str = "") -> Page:
    reader, writer = await opened(folder)
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    try:
        writer.write(head.encode() + body)
        return parse(await rest(reader))
    finally:
        writer.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    found = b""
    with suppress(ConnectionResetError):
        while data := await reader.read(2**16):
            found += data
    return found


def said(page: Page) -> str:
    return msgspec.json.decode(page.body, type=Failed).error


def test_an_action_answers_in_json(folder: Path) -> None:
    async def story() -> None:
        async with served(folder):
            page = await ask(folder, "POST /echo?shard=3", b"hello")
            assert (page.status, page.headers["Content-Type"]) == (200, "application/json")
            assert msgspec.json.decode(page.body) == {"shard": 3, "size": 5}
            assert page.headers["Connection"] == "close"
            assert (await ask(folder, "GET /echo")).status == 200

    run(story())


@pytest.mark.parametrize(
    ("line", "status", "why"),
    [
        ("POST /no", 409, "It cannot be done now: wait."),
        ("POST /broken", 500, "which the broker's log describes"),
        ("POST /nothing", 404, "There is no action /nothing. There are: POST /echo, GET /echo"),
        ("DELETE /echo", 405, "asked for with POST or GET, not with DELETE"),
        ("POST /echo?shard=x", 400, "'x' is no shard"),
        ("POST /echo?shard=-1", 400, "'-1' is no shard"),
        ("POST /echo?shard=9999999999", 400, "is no shard"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path: Path, line: str, status: int, why: str) -> None:
    async def story() -> None:
        async with served(tmp_path):
            page = await ask(tmp_path, line)
            assert page.status == status
            assert why in said(page)

    run(story())


def test_who_did_what_is_in_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path):
            with capture_logs() as events:
                await ask(tmp_path, "POST /echo")
                await ask(tmp_path, "POST /no")
                await ask(tmp_path, "POST /broken")
        assert [(one["event"], one["action"]) for one in events] == [
            ("admin", "POST /echo"),
            ("admin_refused", "POST /no"),
            ("admin_failed", "POST /broken"),
        ]
        if hasattr(socket, "SO_PEERCRED"):
            assert {(one["pid"], one["uid"]) for one in events} == {(os.getpid(), os.geteuid())}
        assert [one.get("why") for one in events] == [None, "It cannot be done now: wait.", "a defect"]

    run(story())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_not_kept(tmp_path: Path, chunked: bool) -> None:
    async def story() -> None:
        async with served(tmp_path):
            assert (await ask(tmp_path, "POST /echo", bytes(MAX_BODY))).status == 200
            if chunked:
                reader, writer = await opened(tmp_path)
                writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
                writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                for _ in range(8):
                    writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                page = parse(await rest(reader))
                writer.close()
            else:
                page = await ask(tmp_path, "POST /echo", bytes(MAX_BODY + 1))
            assert page.status == 413
            assert said(page) == f"A question has at most {MAX_BODY} bytes."

    run(story())


@pytest.mark.parametrize(
    "beginning", [b"", b"POST /echo HT", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel"]
)
def test_a_client_that_says_nothing_more_is_dropped(tmp_path: Path, beginning: bytes) -> None:
    async def story() -> None:
        async with served(tmp_path, seconds=0.3):
            reader, writer = await opened(tmp_path)
            writer.write(beginning)
            assert await rest(reader) == b""
            writer.close()
            assert (await ask(tmp_path, "POST /echo")).status == 200

    run(story())


def test_no_flood_of_connections_makes_it_grow_or_keeps_others_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path, max_connections=3) as admin:
            held = [await opened(tmp_path) for _ in range(10)]
            assert (await ask(tmp_path, "POST /echo")).status == 200
            assert admin._http is not None
            assert len(admin._http._connections) <= 3
            for _, writer in held:
                writer.close()

    run(story())


def test_an_action_that_lasts_ends_with_its_client_and_not_for_another_one(tmp_path: Path) -> None:
    async def story() -> None:
        last = Lasting()
        async with served(tmp_path, Action("last", "POST", last), seconds=0.3, max_connections=2) as admin:
            reader, writer = await opened(tmp_path)
            writer.write(b"POST /last?shard=1 HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"chunked" in head
            assert b'{"shard":1,"size":1}\n' in await reader.readuntil(b"\n\r\n")
            for _ in range(4):  # more than have a place
                (await opened(tmp_path))[1].close()
                assert (await ask(tmp_path, "POST /echo")).status == 200
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.5)  # longer than others may take
            assert last.going_on == 1
            assert admin._http is not None
            ends = list(admin._http._lasting)
            writer.close()
            await asyncio.wait([*ends, *admin._http._handlers])
            assert last.going_on == 0

    run(story())


def test_closing_ends_what_is_going_on_before_it_returns(tmp_path: Path) -> None:
    async def story() -> None:
        last = Lasting()
        async with served(tmp_path, Action("last", "POST", last)):
            reader, writer = await opened(tmp_path)
            writer.write(b"POST /last HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert last.going_on == 1
        assert last.going_on == 0
        writer.close()
        with pytest.raises(NotListening):
            await asyncio.to_thread(reload, tmp_path)

    run(story())


def test_a_first_client_may_come_before_the_loop_turns_and_none_at_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path) as admin:
            assert admin._http is None
        with bound(tmp_path) as listening:
            early = await opened(tmp_path)
            early[1].write(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
            async with AdminSocket(listening, TABLE, structlog.get_logger()):
                assert b"200 OK" in await rest(early[0])
            early[1].close()

    run(story())


def test_a_broker_without_questions_does_without_aiohttp() -> None:
    """It takes 9 MB of memory, and a fifth of a start."""
    looks = "import sys, parley.node.__main__; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", looks], check=False).returncode == 0


STRANGER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setuid(65_534)
stranger = socket.socket(socket.AF_UNIX)
stranger.connect("admin.sock")
stranger.sendall(b"POST /echo HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
print(stranger.makefile().read())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not hasattr(socket, "SO_PEERCRED"), reason="only root becomes another user"
)
def test_another_user_is_refused_by_the_rights_and_even_if_these_were_changed(tmp_path: Path) -> None:
    async def story() -> None:
        async with served(tmp_path):
            command = [sys.executable, "-c", STRANGER, str(tmp_path)]
            asks = partial(subprocess.run, command, capture_output=True, text=True, check=False)
            await asyncio.to_thread(tmp_path.chmod, 0o711)
            assert "Permission denied" in (await asyncio.to_thread(asks)).stderr
            await asyncio.to_thread((tmp_path / SOCKET).chmod, 0o666)
            found = (await asyncio.to_thread(asks)).stdout
            assert "403 Forbidden" in found
            assert "User 65534 may not administer this broker" in found

    run(story())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"no HTTP\r\n\r\n",
        b'HTTP/1.1 200 OK\r\n\r\n{"pid": "x"}\n',
        b"HTTP/1.1 500 No\r\n\r\nnot JSON",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_what_to_do(tmp_path: Path, answer: bytes) -> None:
    def answered(listening: socket.socket) -> None:
        with listening.accept()[0] as connection:
            assert connection.recv(2**16).endswith(b"\r\n\r\n")
            connection.sendall(answer)

    with bound(tmp_path) as listening:
        listening.setblocking(True)
        server = threading.Thread(target=answered, args=(listening,))
        server.start()
        with pytest.raises(AdminError, match=r"has not answered as expected.*Look at its log"):
            reload(tmp_path)
        server.join()


def test_the_client_reads_what_the_broker_says(tmp_path: Path) -> None:
    async def answer(_: Asked) -> Reloaded:
        return Reloaded(1, certificate_changed=True, certificate_ends=2, faults=("lie",))

    async def story() -> None:
        async with served(tmp_path, Action("reload", "POST", answer)):
            assert await asyncio.to_thread(reload, tmp_path) == Reloaded(1, True, 2, ("lie",))

    run(story())
