"""A Spark job in processes of its own, which are killed while a batch is under way: between Spark's notes of plan and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyspark

__all__ = ["Running", "last_noted", "spark_home", "until"]

SECONDS = 240.0  # longer than anything takes: running out of it is a failure
LOOK = 0.01  # seconds between two looks at what another process has written
EXECUTOR = b"CoarseGrainedExecutorBackend"


def until(condition: Callable[[], bool], what: str) -> None:
    """Other processes tell nobody what they have written, so it is looked for again and again."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"it never came to this: {what}"
        time.sleep(LOOK)


def last_noted(checkpoint: str, notes: str) -> int:
    """The highest batch in the `offsets` or `commits` of a checkpoint, -1 if there is none."""
    names = [path.name for path in Path(checkpoint, notes).glob("[0-9]*")]
    return max((int(name) for name in names if name.isdigit()), default=-1)


def spark_home(folder: Path) -> Path:
    """The installed Spark under another path: a local cluster writes its executors' files beside it."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


class Running:
    """A job that runs. Use it as a context, so that none of its processes is left over."""

    def __init__(self, script: Path, config: str, log: Path, home: Path) -> None:
        self._log = log
        root = Path(__file__).parents[2]
        environment = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(root)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(script), config],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=log.parent,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            assert self.runs, f"the job ended before this: {what}\n{self._tail()}"
            return condition()

        until(looked, what)

    def executors(self) -> list[int]:
        return [pid for pid in self._family() if EXECUTOR in _command(pid)]

    def kill_executors(self) -> list[int]:
        """All of them, as when their machines fail; the driver gets new ones."""
        found = self.executors()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def kill(self) -> None:
        """The driver, its Java, the executors and all their workers, as when the power fails."""
        family = [self._process.pid, *self._family()]
        for pid in family:
            with suppress(ProcessLookupError):  # it may have ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        until(lambda: not any(map(_lives, family)), "all processes of a job have gone")

    def _family(self) -> list[int]:
        """All that it has started, and what those have."""
        parents = _parents()
        found = [self._process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-40:])


def _parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _fields(entry):
            found[int(entry.name)] = int(fields[1])
    return found


def _lives(pid: int) -> bool:
    fields = _fields(Path(f"/proc/{pid}"))
    return bool(fields) and fields[0] != "Z"


def _fields(entry: Path) -> Sequence[str]:
    """The state, the parent and so on, which come after the name; nothing if the process has gone."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (ProcessLookupError, FileNotFoundError):
        return ()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, FileNotFoundError):
        return b""
