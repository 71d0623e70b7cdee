"""Worker processes that check batches ahead of the broker's loop, for machines with cores to spare.

What a worker vouches for, the loop only decodes. All else the loop checks itself, as if there were no workers: what a
worker finds wrong, so that the loop says how, and what comes while none is there or none has time. So the answer to a
batch never depends on workers, and nothing waits for one longer than `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import msgspec

from parley.mempool.messages import BatchMessage
from parley.net.frames import ConnectionLost, FrameError, FrameStream, reason_of
from parley.net.messages import Submit
from parley.node.clock import monotonic
from parley.node.logs import Log, Throttled
from parley.node.verifier import MAX_BODIES, READY, decode_digests, encode

START_SECONDS = 60.0  # that a worker may take to be ready
PATIENCE_SECONDS = 5.0  # that it may take to answer; then it is replaced
LOOK_SECONDS = 1.0  # between two looks at that
AGAIN_SECONDS = 1.0  # from the end of a worker to the next one
SIGNATURE_COST = 4 * 1024  # bytes of small messages that take as long to hash as a signature takes to check
MIN_COST = 8 * 1024  # below it, asking costs the loop about as much as checking
MAX_WAITING = 1024 * 1024  # of one worker; what comes beyond that is checked here meanwhile
MAX_ANSWER = 64 * MAX_BODIES
# All that a worker needs of the broker's environment: how Python finds this package and its libraries.
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
COMMAND = (sys.executable, "-P", "-m", "parley.node.verifier")  # -P: not from the working directory

Ahead = Callable[[Sequence[bytes]], Awaitable[None]]
Vouch = Callable[[bytes, bytes], None]  # a body and its digest


class Workers:
    """`count` processes while it runs; `vouch` is told of every batch that one of them found valid."""

    def __init__(self, count: int, chain: bytes, vouch: Vouch, log: Log) -> None:
        self._count = count
        self._chain = chain
        self._vouch = vouch
        self._log = log
        self._throttled = Throttled()
        self._ready: list[_Worker] = []

    @property
    def pids(self) -> list[int]:
        """Of those that can be asked now."""
        return [worker.pid for worker in self._ready]

    async def run(self) -> None:
        """Until it is cancelled; then no process is left."""
        async with asyncio.TaskGroup() as group:  # unlike gather, it waits for all to have ended
            for _ in range(self._count):
                group.create_task(self._keep())
            group.create_task(self._watch())

    async def ahead(self, bodies: Sequence[bytes]) -> None:
        """Return when every body was vouched for or given up."""
        if not self._ready or sum(map(_cost, bodies)) < MIN_COST:
            return
        shares: dict[_Worker, list[bytes]] = {}
        for body in bodies[:MAX_BODIES]:
            worker = min(self._ready, key=_load)
            if worker.load and worker.load + _cost(body) > MAX_WAITING:
                break
            worker.load += _cost(body)
            shares.setdefault(worker, []).append(body)
        for answered in [worker.ask(share) for worker, share in shares.items()]:
            await answered

    async def _keep(self) -> None:
        """One worker, and another one whenever it has ended."""
        while True:
            why = await self._employ()
            if count := self._throttled.count("worker_ended", None, monotonic()):
                self._log.warning("worker_ended", why=why, count=count)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _employ(self) -> str:
        """Why it has ended."""
        try:
            worker = await _Worker.start(self._chain)
        except OSError as error:
            return f"it cannot be started: {reason_of(error)}"
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker.ready()
            self._ready.append(worker)
            self._log.info("worker_started", pid=worker.pid)
            await worker.listen(self._vouch)
        except TimeoutError:
            return f"it was not ready after {START_SECONDS:g} s"
        except ConnectionLost:
            pass
        except (FrameError, _Nonsense) as error:
            return str(error)
        finally:
            with suppress(ValueError):
                self._ready.remove(worker)
            await worker.end()
        return "it answered too late" if worker.late else "it ended by itself"

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for worker in [worker for worker in self._ready if worker.late]:
                self._ready.remove(worker)
                worker.kill()


class _Nonsense(Exception):  # noqa: N818 - it names what was heard
    """What a worker says does not fit what it was asked."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    bodies: list[bytes]
    answered: asyncio.Future[None]
    since: float


class _Worker:
    """One process. It answers questions in their order."""

    def __init__(self, process: subprocess.Popen[bytes], stream: FrameStream) -> None:
        self._process = process
        self.pid = process.pid
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._asked: deque[_Asked] = deque()
        self.load = 0  # the cost of what it was asked and has not answered

    @classmethod
    async def start(cls, chain: bytes) -> Self:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                # Not by way of the loop, whose kind gives its open files away. Of its own session: Ctrl-C is meant for
                # the broker, which still needs it then.
                process = subprocess.Popen(  # noqa: ASYNC220, S603 - it takes no time, and it is our own module
                    [*COMMAND, chain.hex()],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                    start_new_session=True,
                )
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        return cls(process, FrameStream(reader, writer, limit=MAX_ANSWER))

    @property
    def late(self) -> bool:
        return bool(self._asked) and self._loop.time() - self._asked[0].since > PATIENCE_SECONDS

    async def ready(self) -> None:
        if await self._stream.read() != READY:
            raise _Nonsense("it ended before it was ready, or said something else first")

    def ask(self, bodies: list[bytes]) -> asyncio.Future[None]:
        answered = self._loop.create_future()
        self._asked.append(_Asked(bodies, answered, self._loop.time()))
        self._stream.write(encode(bodies))
        return answered

    async def listen(self, vouch: Vouch) -> None:
        """Until it ends."""
        while frames := await self._stream.read_many():
            for frame in frames:
                self._take(frame, vouch)

    def kill(self) -> None:
        self._process.kill()

    async def end(self) -> None:
        """Kill it, and release all that wait for it."""
        self.kill()
        for asked in self._asked:
            _release(asked.answered)
        await self._stream.wait_closed()
        await asyncio.to_thread(self._process.wait)

    def _take(self, frame: bytes, vouch: Vouch) -> None:
        try:
            digests = decode_digests(frame)
        except msgspec.DecodeError as error:
            raise _Nonsense(f"it answered what is no list of digests: {error}") from None
        if not self._asked or len(digests) != len(self._asked[0].bodies):
            raise _Nonsense("it answered what it was not asked")
        asked = self._asked.popleft()
        for body, digest in zip(asked.bodies, digests, strict=True):
            self.load -= _cost(body)
            if digest is not None:
                vouch(body, digest)
        _release(asked.answered)


def announced(frames: Iterable[bytes]) -> list[bytes]:
    """The batches among messages of another broker, as far as a glance tells: each is still decoded with all checks."""
    return [body for frame in frames if frame.startswith(_BATCH) and (body := _binary(frame, len(_BATCH)))]


def submitted(frames: Iterable[bytes]) -> list[bytes]:
    """The batches among a client's questions, in the same way."""
    return [
        body
        for frame in frames
        if frame.startswith(_SUBMIT) and (body := _binary(frame, len(_SUBMIT) + _number_size(frame)))
    ]


def _binary(frame: bytes, at: int) -> bytes:
    """What follows the head of a msgpack binary at the end of a frame; empty: there is none."""
    head = _BINARY_HEADS.get(frame[at : at + 1])
    return b"" if head is None else frame[at + head :]


def _number_size(frame: bytes) -> int:
    """Bytes of the msgpack number after the tag of a question."""
    return _NUMBERS.get(frame[len(_SUBMIT) : len(_SUBMIT) + 1], 1)


def _cost(body: bytes) -> int:
    return SIGNATURE_COST + len(body)


def _load(worker: _Worker) -> int:
    return worker.load


def _release(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():  # whoever waited may have gone
        waiting.set_result(None)


_BATCH = encode([BatchMessage.__struct_config__.tag, None])[:-1]
_SUBMIT = encode([Submit.__struct_config__.tag, None, None])[:-2]
_BINARY_HEADS = {b"\xc4": 2, b"\xc5": 3, b"\xc6": 5}
_NUMBERS = {b"\xcc": 2, b"\xcd": 3, b"\xce": 5}
