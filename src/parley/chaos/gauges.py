"""What brokers weigh and tell of themselves: their memory, as the kernel counts it, and their metrics, as they export them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from parley.chaos.history import Measured

SAMPLE_SECONDS = 1.0
ANSWER_SECONDS = 5.0  # for one look at a broker's metrics: one that is busy is asked again later
MAX_ANSWER = 4 * 1024 * 1024  # bytes
# The metrics that have a bar, and under which names brokers may tell them: the first that is there counts.
EXECUTION = ("parley_block_execution_max_seconds", "parley_largest_execution_seconds")
LOOP = (
    "parley_loop_held_max_seconds",
    "parley_loop_held_seconds",
    "parley_longest_hold_seconds",
    "parley_loop_lag_seconds",
)
RECEIPTS = ("parley_block_receipts_max_bytes", "parley_largest_receipts_bytes")

N = TypeVar("N", int, float)


async def scrape(address: str) -> dict[str, float]:
    """A broker's metrics, by name with labels; none if it does not answer."""
    host, _, port = address.rpartition(":")
    text = b""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                while len(text) < MAX_ANSWER and (more := await reader.read(64 * 1024)):
                    text += more
            finally:
                writer.transport.abort()
    return parse(text.decode(errors="replace"))


def parse(text: str) -> dict[str, float]:
    """The samples in what a broker answers; whatever else is there is passed over."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("parley_"):
            with suppress(ValueError):
                found[name] = float(value)
    return found


def largest(samples: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The largest sample, with whatever labels, of the first of these metrics that is there."""
    for name in names:
        values = [value for sample, value in samples.items() if sample.partition("{")[0] == name]
        if values:
            return max(values)
    return None


def peak_memory(pid: int) -> int | None:
    """The most bytes that a process has had in memory, None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


@dataclass
class Peaks:
    """The largest of what was seen of each broker."""

    _seen: dict[str, Measured] = field(default_factory=dict)

    def note(self, broker: str, memory: int | None, samples: Mapping[str, float]) -> None:
        before = self._seen.get(broker, Measured(0.0, broker, None, None, None, None))
        self._seen[broker] = Measured(
            0.0,
            broker,
            _more(before.memory_bytes, memory),
            _more(before.execution_s, largest(samples, EXECUTION)),
            _more(before.loop_s, largest(samples, LOOP)),
            _more(before.receipts_bytes, largest(samples, RECEIPTS)),
        )

    def records(self, at: float) -> list[Measured]:
        return [
            Measured(at, one.broker, one.memory_bytes, one.execution_s, one.loop_s, one.receipts_bytes)
            for one in self._seen.values()
        ]


def _more(first: N | None, second: N | None) -> N | None:
    known = [one for one in (first, second) if one is not None]
    return max(known, default=None)
