"""Flame graphs of running processes by py-spy, and the same as text: what costs most by itself, and with what it calls."""

from __future__ import annotations

import asyncio
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from parley.bench.errors import Unavailable

RATE = 200  # samples per second
TOP = 40  # lines of each list
LATE_SECONDS = 60.0  # that drawing may take


def find_profiler() -> str | None:
    """The command, from the environment of this interpreter or the path, if it is installed."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")


class Profiler:
    """Records some processes for `seconds`: one half for the flame graphs, the other for the lists."""

    def __init__(self, command: str, directory: Path, seconds: float) -> None:
        self._command = command
        self._directory = directory
        self._seconds = max(1, round(seconds / 2))

    async def record(self, pids: Mapping[str, int]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        await asyncio.gather(
            *(self._sample(name, pid, "flamegraph", self._path(name, "svg")) for name, pid in pids.items())
        )
        await asyncio.gather(
            *(self._sample(name, pid, "raw", self._path(name, "raw")) for name, pid in pids.items())
        )
        for name in pids:
            raw = self._path(name, "raw")
            self._path(name, "txt").write_text(summary(name, raw.read_text().splitlines()))
            raw.unlink()

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{name}.{suffix}"

    async def _sample(self, name: str, pid: int, form: str, path: Path) -> None:
        """Without --nonblocking: a stack that changes while it is read is wrong. Functions, not lines, are what costs."""
        words = ["record", "--pid", str(pid), "--duration", str(self._seconds), "--rate", str(RATE)]
        words += ["--format", form, "--output", str(path), "--function", "--subprocesses"]
        process = await asyncio.create_subprocess_exec(
            self._command, *words, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        try:
            async with asyncio.timeout(self._seconds + LATE_SECONDS):
                _, said = await process.communicate()
        except TimeoutError:
            raise Unavailable(f"py-spy did not come to an end with {name}.") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise Unavailable(
                f"py-spy could not look into {name}: {said.decode(errors='replace').strip()}\n"
                "It needs the right to trace other processes: run as root, or set kernel.yama.ptrace_scope to 0."
            )


def summary(name: str, stacks: Iterable[str]) -> str:
    """Two lists from collapsed stacks, each line `frame;frame;... samples`."""
    alone: Counter[str] = Counter()
    together: Counter[str] = Counter()
    for line in stacks:
        stack, _, samples = line.rpartition(" ")
        frames = stack.split(";")
        alone[frames[-1]] += int(samples)
        for frame in set(frames):
            together[frame] += int(samples)
    total = alone.total() or 1
    parts = [f"{name}: {alone.total()} samples, {RATE} a second while it runs\n"]
    for title, counts in (("by itself", alone), ("with all it calls", together)):
        parts.append(f"\n{title}\n")
        parts += [f"{count / total:7.1%}  {frame}\n" for frame, count in counts.most_common(TOP)]
    return "".join(parts)
