"""Measurements of brokers: their memory, as the kernel counts it, and their metrics, as they export them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from parley.chaos.history import Measured

SAMPLE_SECONDS = 1.0
ANSWER_SECONDS = 5.0  # for one look at a broker's metrics: one that is busy is asked again later
MAX_ANSWER = 4 * 1024 * 1024  # bytes
# The metrics that have a bar. Those of a block's execution and of its receipts may be missing in older brokers, which
# tell only how late the loop was in the last minute.
EXECUTION, RECEIPTS = "parley_block_execution_max_seconds", "parley_block_receipts_max_bytes"
HELD, LAG = "parley_loop_held_max_seconds", "parley_loop_lag_seconds"
# The job that executes blocks has a bar of its own, and a broker that starts has no connections yet.
NOT_JUDGED = (f'{HELD}{{job="execution"}}', f'{HELD}{{job="start"}}')
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


def longest_hold(samples: Mapping[str, float]) -> tuple[float, str] | None:
    """The longest hold of the event loop and its job, without those that are not judged. None: not reported."""
    held = [
        (value, name.partition('"')[2].rstrip('"}'))
        for name, value in samples.items()
        if name.startswith(HELD) and name not in NOT_JUDGED
    ]
    return max(held, default=(samples[LAG], "any") if LAG in samples else None)


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
        receipts = samples.get(RECEIPTS)
        after = replace(
            before,
            memory_bytes=_more(before.memory_bytes, memory),
            execution_s=_more(before.execution_s, samples.get(EXECUTION)),
            receipts_bytes=_more(before.receipts_bytes, None if receipts is None else int(receipts)),
        )
        hold = longest_hold(samples)
        if hold is not None and (before.loop_s is None or hold[0] > before.loop_s):
            after = replace(after, loop_s=hold[0], job=hold[1])
        self._seen[broker] = after

    def records(self, at: float) -> list[Measured]:
        return [replace(one, at=at) for one in self._seen.values()]


def _more(first: N | None, second: N | None) -> N | None:
    known = [one for one in (first, second) if one is not None]
    return max(known, default=None)
