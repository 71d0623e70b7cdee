"""The load processes as whoever measures sees them: started, told what to do, asked for their report, ended."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec

from parley.bench.errors import Unavailable
from parley.bench.jobs import BEGUN, GO, READY, Job, Report, Window
from parley.bench.usage import Usage, usage

READY_SECONDS = 60.0  # to connect and to subscribe, and
SECONDS_PER_CLIENT = 1.0  # more for each client
BEGUN_SECONDS = 60.0  # for the first receipt or delivery
REPORT_SECONDS = 60.0
MAX_REPORT = 64 * 1024 * 1024  # bytes
TAIL_BYTES = 4_096
COMMAND = (sys.executable, "-P", "-m", "parley.bench.load")


class Worker:
    """One load process. It ends by itself when its standard input does, so none is left over."""

    def __init__(self, name: str, job: Job, errors: Path) -> None:
        self.name = name
        self.job = job
        self._errors = errors
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> Process:
        assert self._process is not None, "it was started"
        return self._process

    async def start(self) -> None:
        with self._errors.open("wb") as sink:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=PIPE, stdout=PIPE, stderr=sink, start_new_session=True, limit=MAX_REPORT
            )
        self._tell(msgspec.json.encode(self.job) + b"\n")

    async def ready(self) -> None:
        seconds = READY_SECONDS + SECONDS_PER_CLIENT * len(self.job.identities)
        if await self._answer(seconds) != READY:
            raise self._failure("did not get ready")

    async def go(self) -> None:
        """Begin the load, and wait until it has an effect."""
        self._tell(GO)
        if await self._answer(BEGUN_SECONDS) != BEGUN:
            raise self._failure("ended at once")

    async def report(self, window: Window) -> Report:
        self._tell(msgspec.json.encode(window) + b"\n")
        try:
            return msgspec.json.decode(await self._answer(REPORT_SECONDS), type=Report)
        except msgspec.DecodeError:
            raise self._failure("ended without a report") from None

    async def end(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    def _tell(self, line: bytes) -> None:
        stdin = self._running.stdin
        assert stdin is not None
        stdin.write(line)

    async def _answer(self, seconds: float) -> bytes:
        stdout = self._running.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(seconds):
                return await stdout.readline()
        except TimeoutError:
            raise self._failure(f"said nothing for {seconds:.0f} s") from None

    def _failure(self, what: str) -> Unavailable:
        said = self._errors.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
        return Unavailable(f"The load process {self.name} {what}.\n{said or '  (it said nothing)'}")


class Crew:
    """All load processes of a measurement; they run within `running`."""

    def __init__(self, directory: Path, jobs: Sequence[tuple[str, Job]]) -> None:
        self.workers = [Worker(name, job, directory / f"{name}.log") for name, job in jobs]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        try:
            for worker in self.workers:
                await worker.start()
            await asyncio.gather(*(worker.ready() for worker in self.workers))
            yield self
        finally:
            await asyncio.gather(*(worker.end() for worker in self.workers))

    async def go(self) -> None:
        await asyncio.gather(*(worker.go() for worker in self.workers))

    def usage(self) -> dict[str, Usage]:
        return {worker.name: usage(worker.pid) for worker in self.workers}

    async def reports(self, window: Window) -> list[Report]:
        return await asyncio.gather(*(worker.report(window) for worker in self.workers))
