"""The processes of a peer: each with a session and a log of its own, stopped by its id."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from parley.bench.errors import Unavailable
from parley.bench.usage import Usage, usage
from parley.node.processes import last_lines

SHOWN_LINES = 3
POLL_SECONDS = 0.1


class Servers:
    """They run until the context ends. What they hold is thrown away then, so none is asked politely."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._commands: dict[str, tuple[Sequence[str | Path], Mapping[str, str] | None]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def __aenter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended by itself, with all that it started
                continue
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        self._commands[name] = (command, env)
        with self._log(name).open("ab") as sink:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - programs that were looked up by name
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self._directory,
                env=None if env is None else {**os.environ, **env},
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """With all that it started, as when its machine fails."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self, name: str) -> None:
        """One that was killed, with what it has left on the disk."""
        self.start(name, *self._commands[name])

    async def ended(self, name: str, seconds: float) -> None:
        """Wait for a process that does something and ends."""
        process = self._processes[name]
        try:
            code = await asyncio.to_thread(process.wait, seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{name} did not end within {seconds:.0f} s.{self._tail(name)}") from None
        if code:
            raise Unavailable(f"{name} ended with code {code}.{self._tail(name)}")
        del self._processes[name]

    async def listening(self, address: str, seconds: float) -> None:
        """Until somebody takes connections there."""
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self.require_running()
                    try:
                        _, writer = await asyncio.open_connection(host, int(port))
                    except OSError:
                        await asyncio.sleep(POLL_SECONDS)
                    else:
                        writer.close()
                        return
        except TimeoutError:
            raise Unavailable(f"Nobody listened at {address} within {seconds:.0f} s.") from None

    def usage(self) -> dict[str, Usage]:
        self.require_running()
        return {name: usage(process.pid) for name, process in self._processes.items()}

    def require_running(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise Unavailable(f"{name} ended by itself with code {process.returncode}.{self._tail(name)}")

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _tail(self, name: str) -> str:
        said = " / ".join(line.strip() for line in last_lines(self._log(name), SHOWN_LINES))
        return f" It said last: {said}" if said else ""
