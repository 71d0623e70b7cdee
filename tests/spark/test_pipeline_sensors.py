"""Readings that look real, and are the same for everybody who has the seed."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from statistics import mean

import pytest

from parley.spark.pipeline.sensors import DEVICES, FLAWS, Pace, Reading, readings
from parley.spark.pipeline.tenants import TENANTS

START = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = {tenant.topic: tenant for tenant in TENANTS}


def some(count: int, seed: int = 1, malformed: float = 0.0) -> list[Reading]:
    return list(islice(readings(seed, Pace(START, malformed=malformed)), count))


def test_the_same_seed_gives_the_same_bytes_and_another_one_gives_others() -> None:
    first, again, other = some(2_000, malformed=0.1), some(2_000, malformed=0.1), some(2_000, seed=2)
    assert first == again
    assert {reading.value for reading in first}.isdisjoint(reading.value for reading in other)


def test_every_sound_reading_has_its_fields_within_what_a_device_can_measure() -> None:
    for reading in some(5_000):
        tenant, found = TENANT[reading.topic], json.loads(reading.value)
        assert list(found) == list(tenant.fields)
        assert found[tenant.place] in tenant.places
        assert all(number.low <= found[number.name] <= number.high for number in tenant.numbers)


def test_bodies_and_rooms_have_a_daily_rhythm() -> None:
    night: defaultdict[str, list[float]] = defaultdict(list)
    day: defaultdict[str, list[float]] = defaultdict(list)
    for reading in some(7_000):
        found = json.loads(reading.value)
        hour = datetime.fromisoformat(found["taken"]).hour
        part = night if 2 <= hour < 6 else day if 13 <= hour < 18 else None
        if part is not None:
            for number in TENANT[reading.topic].numbers:
                part[number.name].append(found[number.name])
    assert mean(day["heart_rate"]) > mean(night["heart_rate"]) + 5
    assert mean(day["temperature"]) > mean(night["temperature"]) + 2
    assert mean(day["humidity"]) < mean(night["humidity"])
    assert mean(day["co2"]) < mean(night["co2"])  # people sleep with their windows closed


def test_some_readings_come_late_and_some_devices_fall_silent() -> None:
    taken = defaultdict(list)
    for reading in some(7_000):
        taken[reading.device].append(datetime.fromisoformat(json.loads(reading.value)["taken"]))
    assert len(taken) == DEVICES
    late = sum(later < earlier for times in taken.values() for earlier, later in pairwise(times))
    silences = sum(
        later - earlier >= timedelta(minutes=40)
        for times in taken.values()
        for earlier, later in pairwise(sorted(times))
    )
    assert late > 20
    assert silences > 5
    assert all(len(times) == len(set(times)) for times in taken.values())  # late, but not twice


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_readings_are_damaged_at_the_chosen_rate_and_in_every_way(share: float) -> None:
    flaws = [reading.flaw for reading in some(4_000, malformed=share)]
    damaged = [flaw for flaw in flaws if flaw is not None]
    assert abs(len(damaged) / len(flaws) - share) < 0.03
    assert set(damaged) == (set(FLAWS) if share else set())
