"""What processes have used, as the kernel counts it: CPU time and resident memory, children included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Places in /proc/PID/stat behind the name, which may hold anything.
CPU = slice(11, 15)  # user and system time, its own with all threads, and that of children which have ended
RSS = 21


class Usage(NamedTuple):
    cpu_us: int
    rss: int  # bytes


def is_available() -> bool:
    """Whether this system tells: Linux does."""
    return (PROC / "self" / "stat").exists()


def usage(pid: int) -> Usage:
    """Of a process and all its descendants since they began; what has ended just now counts nothing."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        children = {
            int(child)
            for task in (PROC / str(pid) / "task").iterdir()
            for child in (task / "children").read_text().split()
        }
    except (FileNotFoundError, ProcessLookupError):
        return Usage(0, 0)
    own = Usage(sum(map(int, fields[CPU])) * TICK_US, int(fields[RSS]) * PAGE)
    below = [usage(child) for child in children]
    return Usage(own.cpu_us + sum(one.cpu_us for one in below), own.rss + sum(one.rss for one in below))


def used(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> dict[str, int]:
    """CPU microseconds of each process between two readings."""
    return {name: after[name].cpu_us - before[name].cpu_us for name in after}


def filesystem(path: Path) -> str:
    """The kind of file system that a folder lies on: on some of them a synced write costs nothing."""
    place = path.resolve()
    mounts = [line.split()[1:3] for line in (PROC / "self" / "mounts").read_text().splitlines()]
    holding = [(where, kind) for where, kind in mounts if place.is_relative_to(where)]
    return max(holding, key=lambda one: len(one[0]), default=("", "unknown"))[1]
