"""The attackers' process as the runner sees it: it begins attacks, and records what came of them."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

import msgspec

from parley.chaos.expensive.jobs import MAX_LINE, Job, Told
from parley.chaos.history import Attacked, History

LEAVING_SECONDS = 5.0
LOG = "attackers.log"


class Crew:
    """From `start` to `stop`, which has to be called in every case."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._is_gone = False  # its process has ended by itself
        self._idle = asyncio.Event()  # no attack is under way
        self._idle.set()
        self._since: dict[str, float] = {}  # attacks that are not over

    async def start(self, job: Job) -> None:
        """Returns when the attackers are connected."""
        with (Path(job.directory) / LOG).open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "parley.chaos.expensive.process",
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                limit=MAX_LINE,
            )
        self._listening = asyncio.create_task(self._listen(self._process))
        await self._say(msgspec.json.encode(job))
        await self._ready.wait()

    async def begin(self, attack: str) -> None:
        self._idle.clear()
        self._since.setdefault(attack, self._history.now)
        await self._say(attack.encode())
        if self._is_gone:
            self._fail_all()

    async def finish(self, seconds: float) -> None:
        """Nothing new is begun; what the attackers are at gets so much time to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    async def stop(self) -> None:
        """The attackers leave; what they were at ends without an outcome."""
        process, self._process = self._process, None
        if process is None or self._listening is None:
            return
        assert process.stdin is not None, "it was made with pipes"
        process.stdin.close()
        try:
            async with asyncio.timeout(LEAVING_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await self._listening
        for attack in list(self._since):
            self._over(Told(attack, "not over when the attackers left"))

    async def _say(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with suppress(ConnectionError):  # that it has ended is told by its output
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None, "it was made with pipes"
        while line := await process.stdout.readline():
            told = msgspec.json.decode(line, type=Told)
            if not told.attack:
                self._ready.set()
            else:
                self._over(told)
        if self._process is not None:  # nobody has asked it to end
            self._is_gone = True
            self._ready.set()
            self._fail_all()

    def _fail_all(self) -> None:
        for attack in list(self._since):
            self._over(Told(attack, f"the attackers' process has ended; {LOG} says why", held=False))

    def _over(self, told: Told) -> None:
        since = self._since.pop(told.attack, self._history.now)
        self._history.add(Attacked(since, self._history.now, told.attack, told.outcome, told.held))
        if not self._since:
            self._idle.set()
