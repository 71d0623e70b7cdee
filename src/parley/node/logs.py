"""The broker's diary: one line per event, with stable names, never with a key or a payload, never flooded.

Events are named in lower case with underscores; scripts may rely on them. Bytes are not logged: whatever needs to be
named by a hash is given as text by the caller, so nothing secret can slip in as a value.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor, WrappedLogger

from parley.node.config import Config, ConfigError

__all__ = ["Log", "Throttled", "open_log"]

MAX_VALUE = 2_000  # characters of one value
MAX_THROTTLED = 1_024  # subjects whose last line is remembered
QUIET_MS = 10_000  # between two lines about one subject

Log = FilteringBoundLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def open_log(config: Config) -> tuple[Log, TextIO]:
    """The log and the file that it goes to, which the caller closes unless it is standard error."""
    file = _open(config)
    render: Processor = (
        structlog.processors.JSONRenderer()
        if config.log.format == "json"
        else structlog.processors.KeyValueRenderer(key_order=["time", "level", "event"])
    )
    log = structlog.wrap_logger(
        structlog.WriteLogger(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            presentable,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.log.level]),
        broker=config.broker.name,
    )
    return cast("Log", log), file


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
    """Says a thing about a subject at most once in a while, and then how often it happened. Memory is bounded."""

    def __init__(self, quiet_ms: int = QUIET_MS) -> None:
        self._quiet_ms = quiet_ms
        self._last: OrderedDict[tuple[str, object], list[int]] = (
            OrderedDict()
        )  # (event, subject): [time, count]

    def count(self, event: str, subject: object, now: int) -> int:
        """How often it happened since it was said last, now included; 0: not to be said now."""
        entry = self._last.get((event, subject))
        if entry is None:
            self._last[event, subject] = [now, 0]
            if len(self._last) > MAX_THROTTLED:
                self._last.popitem(last=False)
            return 1
        entry[1] += 1
        if now - entry[0] < self._quiet_ms:
            return 0
        count, entry[0], entry[1] = entry[1], now, 0
        self._last.move_to_end((event, subject))
        return count


def _open(config: Config) -> TextIO:
    if config.log_file is None:
        return sys.stderr
    try:
        return config.log_file.open("a", buffering=1, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            config.path, "log.file", f"{config.log_file} cannot be written: {error.strerror}"
        ) from error
