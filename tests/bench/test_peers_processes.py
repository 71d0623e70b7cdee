"""Servers leave nothing behind, publishing processes say why they fail, and clients count acknowledgements rightly."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.bench.errors import Unavailable
from parley.bench.peers import client
from parley.bench.peers.nats_client import NatsPublisher
from parley.bench.peers.publishing import Job, batches, eventually, payloads
from parley.bench.peers.rabbitmq_client import Confirmations
from parley.bench.peers.servers import Servers
from parley.bench.peers.systems import Running, Variant
from parley.bench.usage import Usage

JOB = Job(system="nats", servers=[], target="t", size=128, messages=1_000, warm_up=10)
PUBLISHER = """
import sys
sys.stdin.readline()
print("ready", flush=True)
assert sys.stdin.readline() == "go\\n"
print('{"seconds": 0.5, "cpu_us": 3000}', flush=True)
"""
WAITING = [sys.executable, "-c", "import signal; signal.pause()"]


def measured(monkeypatch: pytest.MonkeyPatch, log: Path, program: str) -> client.Reading:
    monkeypatch.setattr(client, "COMMAND", (sys.executable, "-c", program))
    used = itertools.count(0, 5_000)
    running = Running(lambda: {"server": Usage(next(used), 0)}, lambda *_: JOB)
    return asyncio.run(client.measure(running, JOB, log))


def test_a_reading_is_of_what_counts_and_of_all_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = measured(monkeypatch, tmp_path / "log", PUBLISHER)
    assert found == client.Reading(
        messages_per_s=2_000.0, cpu_us_per_message=8.0, cpu_us_servers=5.0, cpu_us_client=3.0
    )


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("raise SystemExit('the stream refused')", "did not get ready. It said last: the stream refused"),
        (
            "print('ready', flush=True); raise SystemExit('lost')",
            "ended without a report. It said last: lost",
        ),
    ],
)
def test_a_publishing_process_that_fails_is_told_with_its_last_words(
    program: str, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match=problem):
        measured(monkeypatch, tmp_path / "log", program)


def test_servers_run_until_the_context_ends_whatever_ends_it(tmp_path: Path) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    async def work() -> None:
        async with Servers(tmp_path / "peer") as servers:
            servers.start("one", WAITING)
            servers.start("two", WAITING)
            processes.extend(servers._processes.values())
            assert servers.usage().keys() == {"one", "two"}
            assert all(process.poll() is None for process in processes)
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(work())
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)


def test_a_server_that_ends_by_itself_is_told_with_its_last_words(tmp_path: Path) -> None:
    async def work() -> None:
        async with Servers(tmp_path / "peer") as servers:
            servers.start("one", [sys.executable, "-c", "raise SystemExit('port in use')"])
            await servers.listening("127.0.0.1:1", 60.0)

    with pytest.raises(Unavailable, match=r"one ended by itself with code 1\. It said last: port in use"):
        asyncio.run(work())


def test_a_step_before_servers_start_must_succeed(tmp_path: Path) -> None:
    async def work(code: int) -> None:
        async with Servers(tmp_path / "peer") as servers:
            servers.start("format", [sys.executable, "-c", f"raise SystemExit({code})"])
            await servers.ended("format", 60.0)
            assert not servers.usage()

    asyncio.run(work(0))
    with pytest.raises(Unavailable, match="format ended with code 3"):
        asyncio.run(work(3))


def test_batches_hold_as_many_messages_as_were_asked_for() -> None:
    values = payloads(16)
    assert [len(batch) for batch in batches(values, 250, 100)] == [100, 100, 50]
    assert [len(batch) for batch in batches(values, 200, 100)] == [100, 100]
    assert all(len(value) == 16 for batch in batches(values, 10_000, 100) for value in batch)


def test_asking_goes_on_while_a_system_refuses_and_ends_with_any_other_error() -> None:
    answers: Iterator[Exception] = iter([OSError(), OSError()])

    async def ask() -> str:
        for answer in answers:
            raise answer
        return "ready"

    assert asyncio.run(eventually(ask, OSError)) == "ready"
    answers = iter([KeyError()])
    with pytest.raises(KeyError):
        asyncio.run(eventually(ask, OSError))


def test_confirmations_come_in_any_order_and_for_many_at_once() -> None:
    waiting = Confirmations()
    for _ in range(6):
        waiting.sent()
    waiting.confirmed(4, and_before=False)
    assert len(waiting) == 5
    waiting.confirmed(3, and_before=True)
    assert len(waiting) == 2
    waiting.confirmed(3, and_before=True)
    assert len(waiting) == 2, "what was confirmed before does not count again"
    waiting.sent()
    waiting.confirmed(7, and_before=True)
    assert len(waiting) == 0


@pytest.mark.parametrize(
    ("answer", "batch", "stored"),
    [
        (b'{"stream":"s","seq":7}', 0, True),
        (b'{"stream":"s","seq":7,"batch":"b","count":100}', 100, True),
        (
            b'{"stream":"s","seq":7}',
            100,
            False,
        ),  # a server that knows no batches stored only the last message
        (b'{"error":{"code":503,"description":"no"},"seq":7}', 0, False),
        (b"{}", 0, False),
    ],
)
def test_only_a_place_in_the_stream_is_an_acknowledgement(answer: bytes, batch: int, stored: bool) -> None:
    publisher = NatsPublisher(Variant("nats").job("nats", [], 128))
    assert (publisher._problem(answer, batch) is None) == stored
