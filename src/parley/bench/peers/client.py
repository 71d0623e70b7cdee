"""A publishing process as whoever measures sees it, and one measurement with it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec

from parley.bench.errors import Unavailable
from parley.bench.jobs import GO, READY
from parley.bench.peers.publishing import Job, Report
from parley.bench.peers.systems import Running
from parley.bench.usage import used

COMMAND = (sys.executable, "-P", "-m", "parley.bench.peers.worker")
READY_SECONDS = 180.0  # to become ready, and
SLOWEST = 200  # messages per second that a system must reach: one that does not is given up
TAIL_BYTES = 4_096


class Reading(msgspec.Struct, frozen=True):
    """One run of one variant."""

    messages_per_s: float
    cpu_us_per_message: float
    cpu_us_servers: float
    cpu_us_client: float


async def measure(running: Running, job: Job, log: Path) -> Reading:
    """Everything but the messages that count happens before the first reading."""
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=PIPE, stdout=PIPE, stderr=sink, start_new_session=True
        )
    try:
        _tell(process, msgspec.json.encode(job) + b"\n")
        if await _answer(process, READY_SECONDS + job.warm_up / SLOWEST) != READY:
            running.usage()  # says it if a server has ended
            raise Unavailable(f"The publishing client did not get ready.{_tail(log)}")
        before = running.usage()
        _tell(process, GO)
        line = await _answer(process, READY_SECONDS + job.messages / SLOWEST)
        servers = sum(used(before, running.usage()).values())
        try:
            report = msgspec.json.decode(line, type=Report)
        except msgspec.DecodeError:
            raise Unavailable(f"The publishing client ended without a report.{_tail(log)}") from None
        return Reading(
            messages_per_s=round(job.messages / report.seconds, 1),
            cpu_us_per_message=round((servers + report.cpu_us) / job.messages, 2),
            cpu_us_servers=round(servers / job.messages, 2),
            cpu_us_client=round(report.cpu_us / job.messages, 2),
        )
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _tell(process: Process, line: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(line)


async def _answer(process: Process, seconds: float) -> bytes:
    """An empty line if there is none in time; the process is ended then."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            return await process.stdout.readline()
    except TimeoutError:
        return b""


def _tail(log: Path) -> str:
    lines = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip().splitlines()
    return (
        f" It said last: {lines[-1].strip()}"
        if lines
        else f" It said nothing in {READY_SECONDS:.0f} s or more."
    )
