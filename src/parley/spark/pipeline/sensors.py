"""What devices on wards and in homes would send: a daily rhythm, drift, noise, drop-outs, late and damaged readings.

Nothing here is a measurement of anybody. The same seed, beginning and pace give the same bytes, so that a run of the
pipeline can be repeated, and its outcome be foretold.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from parley.spark.pipeline.tenants import AIR, VITALS, Tenant

BEDS = 8  # of a ward
ROOMS = 6  # of a building
DEVICES = BEDS * len(VITALS.places) + ROOMS * len(AIR.places)

DROP_OUT = 0.004  # the chance, at each reading, that a device falls silent
SILENCE = (3, 12)  # readings that it then leaves out
LATE = 0.03  # the chance that a reading waits in a gateway
DELAY = (1, 4)  # steps that it waits
EPISODE = 0.003  # the chance that a patient gets worse for a while
EPISODE_STEPS = (3, 9)

# What damages a reading; each is a reason for which the pipeline sets a row aside, under the same words.
FLAWS = (
    "not UTF-8",
    "not a JSON object",
    "missing field",
    "wrong type",
    "out of range",
    "unknown place",
    "contradiction",
)

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Pace:
    """When devices begin and how far apart their readings are; the share of readings that arrive damaged."""

    start: datetime
    interval: timedelta = timedelta(minutes=10)
    malformed: float = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """One message. `flaw` says what is wrong with it, for those who check what becomes of it."""

    topic: str
    device: str
    place: str
    value: bytes
    flaw: str | None


@dataclass
class _Device:
    """The state of one device: `drift` is how far it, or whom it measures, has moved from the ordinary."""

    tenant: Tenant
    name: str
    place: str
    subject: str
    chance: random.Random
    measure: Callable[[_Device, float], Fields]
    base: dict[str, float] = field(default_factory=dict)
    drift: float = 0.0
    silent: int = 0
    episode: int = 0

    def step(self, time: datetime) -> Fields | None:
        """What it measures now; nothing while it is silent."""
        chance = self.chance
        self.drift = max(-1.0, min(1.0, self.drift + chance.gauss(0, 0.03)))
        self.episode = max(0, self.episode - 1) or (
            chance.randint(*EPISODE_STEPS) if chance.random() < EPISODE else 0
        )
        if self.silent or chance.random() < DROP_OUT:
            self.silent = self.silent - 1 if self.silent else chance.randint(*SILENCE)
            return None
        hour = time.hour + time.minute / 60
        return {
            "device": self.name,
            self.tenant.place: self.place,
            self.tenant.subject: self.subject,
            "taken": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            **self.measure(self, hour),
        }


def readings(seed: int, pace: Pace) -> Iterator[Reading]:
    """In the order in which they arrive, without end."""
    devices, chance = _devices(seed), _chance(seed, "gateway")
    waiting: list[tuple[int, int, Reading]] = []
    number = 0
    for step in itertools.count():
        time = pace.start + step * pace.interval
        arriving = []
        for device in devices:
            fields = device.step(time.astimezone(UTC))
            if fields is None:
                continue
            reading = _send(device, fields, chance, pace.malformed)
            if chance.random() < LATE:
                heapq.heappush(waiting, (step + chance.randint(*DELAY), number, reading))
                number += 1
            else:
                arriving.append(reading)
        while waiting and waiting[0][0] <= step:
            arriving.append(heapq.heappop(waiting)[2])
        chance.shuffle(arriving)
        yield from arriving


def _chance(*of: object) -> random.Random:
    """Each device has its own, so that one more device changes nothing of the others."""
    return random.Random("/".join(map(str, of)))  # noqa: S311 - made up, not secret


# -- devices ---------------------------------------------------------------------------------------------------------


def _devices(seed: int) -> list[_Device]:
    made = []
    for place in VITALS.places:
        older = 8.0 if place == "geriatrics" else 0.0
        for bed in range(1, BEDS + 1):
            chance = _chance(seed, place, bed)
            base = {
                "heart_rate": chance.uniform(62, 84),
                "systolic": chance.uniform(108, 132) + older,
                "diastolic": chance.uniform(66, 82),
            }
            patient = f"p-{chance.randrange(10**6):06d}"  # a pseudonym
            made.append(_Device(VITALS, f"{place}-bed-{bed}", place, patient, chance, _vitals, base))
    for number, place in enumerate(AIR.places):
        for room in range(1, ROOMS + 1):
            chance = _chance(seed, place, room)
            base = {
                "temperature": chance.uniform(20, 22),
                "humidity": chance.uniform(40, 50),
                "co2": chance.uniform(420, 480),
                "pm25": chance.uniform(4, 8) + 7 * number,  # the roads outside differ
            }
            made.append(_Device(AIR, f"{place}-room-{room}", place, f"room-{room}", chance, _air, base))
    return made


def _vitals(device: _Device, hour: float) -> Fields:
    """People are calmest before dawn; an episode is a fast heart under high pressure."""
    wave = math.cos((hour - 16) / 24 * math.tau)
    worse = 1.0 if device.episode else 0.0
    noise, base = device.chance.gauss, device.base
    return {
        "heart_rate": round(base["heart_rate"] + 6 * wave + 8 * device.drift + 45 * worse + noise(0, 2)),
        "systolic": round(base["systolic"] + 7 * wave + 10 * device.drift + 40 * worse + noise(0, 3)),
        "diastolic": round(base["diastolic"] + 4 * wave + 5 * device.drift + 10 * worse + noise(0, 2)),
    }


def _air(device: _Device, hour: float) -> Fields:
    """Rooms warm up until the afternoon, people breathe in them at night, and cook three times a day."""
    warm = math.cos((hour - 15) / 24 * math.tau)
    asleep = 0.5 + 0.5 * math.cos((hour - 3) / 24 * math.tau)
    cooking = sum(math.exp(-(((hour - meal) / 0.9) ** 2)) for meal in (7.5, 12.5, 19))
    noise, base = device.chance.gauss, device.base
    temperature = base["temperature"] + 2.2 * warm + 0.8 * device.drift + noise(0, 0.2)
    return {
        "temperature": round(temperature, 1),
        "humidity": round(min(95.0, max(15.0, base["humidity"] - 1.7 * (temperature - 21) + noise(0, 1))), 1),
        "co2": round(base["co2"] + 520 * asleep + 150 * cooking + abs(noise(0, 30))),
        "pm25": round(max(0.0, base["pm25"] * (1 + 0.3 * device.drift) + 9 * cooking + noise(0, 1)), 1),
    }


# -- damage ----------------------------------------------------------------------------------------------------------


def _send(device: _Device, fields: Fields, chance: random.Random, malformed: float) -> Reading:
    flaw, value = None, _encoded(fields)
    if chance.random() < malformed:
        known = FLAWS if device.tenant is VITALS else FLAWS[:-1]  # nothing in the air contradicts itself
        flaw = chance.choice(known)
        value = _damaged(flaw, device.tenant, fields, chance)
    return Reading(device.tenant.topic, device.name, device.place, value, flaw)


def _damaged(flaw: str, tenant: Tenant, fields: Fields, chance: random.Random) -> bytes:
    number = chance.choice(tenant.numbers)
    match flaw:
        case "not UTF-8":
            return b"\xff\xfe" + _encoded(fields)
        case "not a JSON object":
            whole = _encoded(fields)
            return chance.choice((whole[: len(whole) // 2], b"", b"ERR 17 sensor not ready", b"[1, 2, 3]"))
        case "missing field":
            left_out = chance.choice(tenant.fields)
            return _encoded({name: value for name, value in fields.items() if name != left_out})
        case "wrong type":
            return _encoded(
                fields | chance.choice(({number.name: "n/a"}, {number.name: True}, {"taken": "noon"}))
            )
        case "out of range":
            return _encoded(fields | {number.name: chance.choice((number.low - 999, number.high + 999))})
        case "unknown place":
            return _encoded(fields | {tenant.place: "basement"})
        case _:  # a contradiction: the cuff was read the wrong way round
            return _encoded(fields | {"systolic": fields["diastolic"], "diastolic": fields["systolic"]})


def _encoded(fields: Fields) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
