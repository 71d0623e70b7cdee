"""Brokers as forks of one process that has imported what they need: importing it takes as long as all else at a start.

Each is a process of its own, with its own id and signals, and ends as one that was started by its command does. What
differs: its command line is not that of a broker, and it hashes as all others of these tests do. So tests that look for
either, and all in `make test-long`, start brokers by their command.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from parley.node import __main__ as command

__all__ = ["Forked", "run_broker"]


class Forked:
    """A process that calls a function of a module and exits with what it gives; used like a `subprocess.Popen`."""

    def __init__(self, function: Callable[[list[str]], int], arguments: list[str]) -> None:
        mask = os.umask(0)
        os.umask(mask)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([command.__name__])
        surroundings = (dict(os.environ), Path.cwd(), mask)
        # A daemon: it is not waited for if the tests end without stopping it, but stopped.
        self._process = context.Process(target=_call, args=(function, arguments, *surroundings), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self._process.join(seconds)
        code = self.poll()
        if code is None:
            assert seconds is not None
            raise subprocess.TimeoutExpired(str(self.pid), seconds)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_broker(arguments: list[str]) -> int:
    """What `python -m parley.node` does."""
    return sys.modules[command.__name__].main(arguments)  # type: ignore[no-any-return]


def _call(
    function: Callable[[list[str]], int],
    arguments: list[str],
    environment: dict[str, str],
    directory: Path,
    mask: int,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    os.umask(mask)
    sys.exit(function(arguments))
