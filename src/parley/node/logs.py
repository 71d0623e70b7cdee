"""The broker's diary: one line per event, with stable names, never with a key or a payload, never flooded.

Events are named in lower case with underscores; scripts may rely on them. Bytes are not logged: whatever needs to be
named by a hash is given as text by the caller, so nothing secret can slip in as a value.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

# structlog draws tracebacks with rich where it finds it. A broker never does, and rich is an eighth of its start.
if "rich" not in sys.modules:
    sys.modules["rich"] = cast("ModuleType", None)
try:
    import structlog
    from structlog.typing import FilteringBoundLogger, Processor, WrappedLogger
finally:
    if cast("ModuleType | None", sys.modules["rich"]) is None:
        del sys.modules["rich"]

from parley.model.bounded import put
from parley.net.limits import TokenBucket
from parley.node.config import ConfigError, LogPlace

MAX_VALUE = 2_000  # characters of one value
MAX_THROTTLED = 1_024  # subjects whose last line is remembered
QUIET_MS = 10_000  # between two lines about one subject
FILE_BYTES, OLD_FILES = 16 * 1024 * 1024, 3  # of the log, and of what it was before
LINES_PER_SECOND, BURST_OF_LINES = 10, 100  # about new subjects

Log = FilteringBoundLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def open_log(place: LogPlace) -> tuple[Log, BinaryIO | RotatingFile]:
    """The log and the file that it goes to, which the caller closes unless it is standard error."""
    file = _open(place)
    render: Processor = (
        structlog.processors.JSONRenderer()
        if place.settings.format == "json"
        else structlog.processors.KeyValueRenderer(key_order=["time", "level", "event"])
    )
    log = structlog.wrap_logger(
        Lines(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            presentable,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[place.settings.level]),
        broker=place.broker,
    )
    return cast("Log", log), file


class Lines:
    """Writes lines where it can. A full disk must not turn every event into a fault of the node: the line is lost."""

    def __init__(self, file: BinaryIO | RotatingFile) -> None:
        self._file = file

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a file that was closed raises the latter
            self._file.write(line.encode(errors="replace") + b"\n")
            self._file.flush()

    debug = info = warning = error = critical = exception = msg


def presentable(
    _logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """No bytes, no long values."""
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"<{len(value)} bytes>"
        elif not isinstance(value, int | float | None):
            text = str(value)
            event[key] = text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "…"
    return event


class Throttled:
    """Says a thing about a subject at most once in a while, and then how often it happened. Memory and lines are bounded."""

    def __init__(self, quiet_ms: int = QUIET_MS) -> None:
        self._quiet_ms = quiet_ms
        self._last: OrderedDict[tuple[str, object], list[int]] = OrderedDict()  # when, how often since
        self._lines = TokenBucket(LINES_PER_SECOND, BURST_OF_LINES)

    def count(self, event: str, subject: object, now: int) -> int:
        """How often it happened since it was said last, now included; 0: not to be said now."""
        entry = self._last.get((event, subject))
        if entry is None:
            if not self._lines.take(1, now):  # somebody comes under ever new names
                return 0
            put(self._last, (event, subject), [now, 0], MAX_THROTTLED)
            return 1
        entry[1] += 1
        if now - entry[0] < self._quiet_ms:
            return 0
        count, entry[0], entry[1] = entry[1], now, 0
        self._last.move_to_end((event, subject))
        return count


class RotatingFile:
    """A file that begins anew when it is large; `log.1` is the newest of the few older ones that are kept."""

    def __init__(self, path: Path, max_bytes: int = FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._file = path.open("ab", buffering=0)  # what cannot be written must not be kept

    def write(self, data: bytes, /) -> None:
        if self._file.tell() + len(data) > self._max_bytes:
            with suppress(OSError):  # or it goes on in the same file
                self._rotate()
        self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        for age in range(OLD_FILES, 0, -1):
            newer = self._old(age - 1) if age > 1 else self._path
            if newer.exists():
                newer.replace(self._old(age))
        fresh = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = fresh

    def _old(self, age: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{age}")


def _open(place: LogPlace) -> BinaryIO | RotatingFile:
    if place.file is None:
        return sys.stderr.buffer
    try:
        return RotatingFile(place.file)
    except OSError as error:
        raise ConfigError(
            place.path, "log.file", f"{place.file} cannot be written: {error.strerror}"
        ) from error
