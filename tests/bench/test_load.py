"""Load processes count what they should, hold back when they should, and never outlive whoever started them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import msgspec
import pytest

from parley.bench import workers
from parley.bench.errors import Unavailable
from parley.bench.jobs import Job, Report, Window
from parley.bench.traffic import Progress, PublishingLoad, _values, create_progress
from parley.bench.workers import COMMAND, Crew
from parley.client.errors import Busy

SECONDS = 30.0


def job(**changes: object) -> Job:
    plain = Job(
        role="publish", genesis="none", identities=["none"], topics=["t"], size=8, batch=4, in_flight=2
    )
    return msgspec.structs.replace(plain, **changes)


class Publisher:
    """Acknowledges, or fails, what it is given at once."""

    def __init__(self, failing: range = range(0)) -> None:
        self.batches: list[list[bytes]] = []
        self._failing = failing

    async def publish_many(self, values: list[bytes], **_others: object) -> list[list[bytes]]:
        self.batches.append(list(values))
        await asyncio.sleep(0)
        if len(self.batches) - 1 in self._failing:
            raise Busy("too much")
        return [values]


async def run_until(load: PublishingLoad, publisher: Publisher, batches: int) -> None:
    """Run the load until so many batches were handed over and answered."""
    load._publishers = [publisher]  # type: ignore[list-item]
    running = asyncio.create_task(load.run())
    try:
        async with asyncio.timeout(SECONDS):
            while len(load._times) + load._failed < batches:
                await asyncio.sleep(0.001)
                if running.done():
                    return running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def finished(load: PublishingLoad, begin: float, end: float) -> Report:
    return asyncio.run(load.finish(Window(begin, end)))


def test_only_what_is_acknowledged_within_the_window_counts() -> None:
    load = PublishingLoad(job())
    publisher = Publisher()
    asyncio.run(run_until(load, publisher, 10))
    times = list(load._times)
    assert len(times) >= 10
    assert all(len(batch) == 4 for batch in publisher.batches)
    everything = finished(load, 0.0, times[-1] + 1)
    assert everything.publications == 4 * len(times)
    assert len(everything.latencies_us) == len(times)
    assert everything.times == times
    within = [at for at in times if times[3] <= at < times[7]]
    some = finished(load, times[3], times[7])
    assert (some.publications, some.times) == (4 * len(within), within)


def test_a_batch_that_fails_is_counted_as_that_and_told() -> None:
    load = PublishingLoad(job())
    asyncio.run(run_until(load, Publisher(range(3, 5)), 10))
    report = finished(load, 0.0, float("inf"))
    assert report.failed == 2
    assert "too much" in report.problem
    assert report.publications == 4 * len(load._times)


def test_a_load_that_gets_nothing_published_ends_with_the_reason() -> None:
    with pytest.raises(Unavailable, match=r"Nothing can be published: .*too much"):
        asyncio.run(run_until(PublishingLoad(job()), Publisher(range(100)), 10))


def test_a_publisher_waits_for_the_slowest_subscriber(tmp_path: Path) -> None:
    path = create_progress(tmp_path / "progress", 2)
    slow, fast = Progress(str(path)), Progress(str(path))
    fast.tell(1, 1_000)
    slow.tell(0, 12)
    assert slow.least() == fast.least() == 12
    load = PublishingLoad(job(progress=str(path)))
    publisher = Publisher()
    # 12 messages are three batches, and two more may be in flight.
    asyncio.run(run_until(load, publisher, 5))
    assert len(publisher.batches) == 5
    assert load._handed_over == 20


@pytest.mark.parametrize(("size", "batch"), [(1, 1), (128, 100), (65_536, 10), (900_000, 1)])
def test_values_have_their_size_and_batches_theirs(size: int, batch: int) -> None:
    pool = _values(size, batch)
    assert pool
    assert all(len(values) == batch for values in pool)
    assert {len(value) for values in pool for value in values} == {size}
    assert len(pool) * batch * size <= 16 * 1024 * 1024


def test_a_load_process_ends_when_nobody_tells_it_anything_any_more() -> None:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0  # there was no job


def test_what_kept_a_load_process_from_its_work_is_told(tmp_path: Path) -> None:
    async def enter() -> None:
        async with Crew(tmp_path, [("client-1", job(genesis=str(tmp_path / "no-such-file")))]).running():
            pass

    with pytest.raises(Unavailable, match=r"client-1 did not get ready.\n.*no-such-file"):
        asyncio.run(enter())


def test_a_load_process_that_says_nothing_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "COMMAND", ("sleep", "600"))
    monkeypatch.setattr(workers, "READY_SECONDS", 0.2)
    monkeypatch.setattr(workers, "SECONDS_PER_CLIENT", 0.0)
    crew = Crew(tmp_path, [("client-1", job())])

    async def enter() -> None:
        async with crew.running():
            pass

    with pytest.raises(Unavailable, match="client-1 said nothing for 0 s"):
        asyncio.run(enter())
    process = crew.workers[0]._process
    assert process is not None
    assert process.returncode is not None
