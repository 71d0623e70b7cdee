"""The two tenants of the pipeline: a hospital and a provider of home devices share a network, and trust nobody in it.

They are those of "BPS", section 5.1. Each has a topic, a client that publishes what its devices measure, and a client
that its pipeline reads as; neither may touch the other's topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.model.genesis import Genesis

PARTITIONS = 2
SENSOR, ANALYST = "sensor", "analyst"  # the roles that the rules of a topic look at


@dataclass(frozen=True, slots=True)
class Number:
    """A measured value and what a device can measure at all: outside of that the device is broken."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tenant:
    """Names of its parts, and what one of its readings consists of."""

    name: str
    topic: str
    publisher: str
    reader: str
    place: str  # the field that says where
    places: tuple[str, ...]
    subject: str  # the field that says of whom or what
    numbers: tuple[Number, ...]
    gold: str

    @property
    def texts(self) -> tuple[str, ...]:
        return ("device", self.place, self.subject, "taken")

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.texts, *(number.name for number in self.numbers))

    @property
    def bronze(self) -> str:
        return f"{self.topic}_bronze"

    @property
    def silver(self) -> str:
        return f"{self.topic}_silver"

    @property
    def dead(self) -> str:
        return f"{self.topic}_dead_letters"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.bronze, self.silver, self.dead, self.gold)


VITALS = Tenant(
    name="hospital",
    topic="vitals",
    publisher="ward-sensors",
    reader="ward-pipeline",
    place="ward",
    places=("cardiology", "surgery", "maternity", "geriatrics"),
    subject="patient",
    numbers=(
        Number("heart_rate", 20, 250),  # per minute
        Number("systolic", 50, 280),  # mmHg
        Number("diastolic", 20, 180),
    ),
    gold="vitals_per_ward",
)
AIR = Tenant(
    name="homes",
    topic="air",
    publisher="home-sensors",
    reader="home-pipeline",
    place="building",
    places=("garden-street-3", "harbour-road-12", "mill-lane-7"),
    subject="room",
    numbers=(
        Number("temperature", -30, 60),  # °C
        Number("humidity", 0, 100),  # %
        Number("co2", 200, 10_000),  # parts per million
        Number("pm25", 0, 1_000),  # µg of fine dust in a cubic metre
    ),
    gold="air_per_building",
)
TENANTS = (VITALS, AIR)


class UnfitNetwork(Exception):  # noqa: N818 - a condition, not a fault of ours
    """The network cannot have these two tenants."""


def organisation_of(tenant: Tenant, genesis: Genesis) -> str:
    """Tenants are the first organisations of a network, in the order of its genesis file."""
    if len(genesis.organisations) < len(TENANTS):
        raise UnfitNetwork(
            f"the network {genesis.network} has {len(genesis.organisations)} organisation, and two tenants need one each; "
            "make one with `parley up --orgs 4 --dir DIR`"
        )
    return genesis.organisations[TENANTS.index(tenant)].name
