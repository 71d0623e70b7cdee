"""What can be seen of a machine and of a broker's process and files from outside, without looking into any file of theirs."""

from __future__ import annotations

import os
import platform
import shutil
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import parley

MAX_FILES = 2_000  # of one folder
_PACKAGES = (
    "msgspec",
    "pynacl",
    "rich",
    "typer",
    "aiohttp",
    "cryptography",
    "prometheus-client",
    "rocksdict",
    "structlog",
    "uvloop",
)
_STATUS = ("State", "Threads", "VmPeak", "VmRSS", "VmHWM", "VmSwap", "FDSize")
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Facts = dict[str, object]


def machine() -> Facts:
    return {
        "parley": parley.__version__,
        "python": sys.version,
        "openssl": ssl.OPENSSL_VERSION,
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "memory": _fields(Path("/proc/meminfo"), ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def process(pid: int | None) -> Facts:
    """A broker's process: memory, descriptors, and what each thread does. Not its environment."""
    if pid is None:
        return {"running": False}
    here = Path("/proc") / str(pid)
    found: Facts = {"running": True, "pid": pid}
    found |= _fields(here / "status", (*_STATUS, *_SWITCHES))
    with suppress(OSError):
        found["descriptors"] = len(list((here / "fd").iterdir()))
        limits = (here / "limits").read_text().splitlines()
        found["limits"] = [line for line in limits if line.startswith(("Max open files", "Max processes"))]
    with suppress(OSError):
        found["threads"] = [
            _thread(task) for task in sorted((here / "task").iterdir(), key=lambda one: int(one.name))
        ]
    return found


def files(folder: Path) -> Facts:
    """Names, sizes and rights of what lies in a broker's folder; of its folders only how large they are."""
    listed = [_file(path) for path in sorted(folder.iterdir())[:MAX_FILES]]
    usage = shutil.disk_usage(folder)
    return {"disk": {"total": usage.total, "free": usage.free}, "files": listed}


def secret_files(home: Path) -> Facts:
    """How many files of keys there are, and how many of them others can read: no names of people."""
    found: Facts = {}
    for place in ("organisations", "identities"):
        paths = [path for path in (home / place).rglob("*") if path.is_file()]
        open_to_others = [path for path in paths if path.stat().st_mode & _OTHERS and path.suffix != ".crt"]
        found[place] = {"files": len(paths), "open_to_others": len(open_to_others)}
    return found


def _file(path: Path) -> Facts:
    try:
        found = path.lstat()
    except OSError as error:
        return {"name": _name(path), "problem": str(error.strerror)}
    facts: Facts = {
        "name": _name(path),
        "mode": stat.filemode(found.st_mode),
        "user": found.st_uid,
        "bytes": found.st_size,
        "changed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime)),
    }
    if stat.S_ISDIR(found.st_mode):
        sizes = list(_sizes(path))
        facts |= {"bytes": sum(sizes), "files": len(sizes)}
    return facts


def _name(path: Path) -> str:
    """In a form that can be written, whatever its bytes are."""
    return os.fsencode(path.name).decode(errors="replace")


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        with suppress(OSError):  # the store has tidied up meanwhile
            yield path.lstat().st_size


def _thread(task: Path) -> Facts:
    # The name may hold anything, in parentheses; the fields after it are counted from the state on.
    name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    return {"name": name, "state": fields[0], "user_ticks": int(fields[11]), "system_ticks": int(fields[12])}


def _fields(path: Path, names: tuple[str, ...]) -> Facts:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs if name in names}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
