"""Advertisements by topic and client."""

from __future__ import annotations

from parley.application.bounds import following
from parley.application.tables import KEY, TEXT, Record, Table
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.tables import TO_DESCRIBERS

MAX_ADVERTISED = 64  # topics of one client


class AdvertisementRecord(Record, frozen=True):
    client: str  # "organisation/name"
    text: str


class AdvertiserRecord(Record, frozen=True):
    topics: tuple[str, ...]


ADVERTISEMENTS: Table[AdvertisementRecord, str, bytes] = Table(
    "ad",
    AdvertisementRecord,
    TEXT,
    KEY,
    about="What a client says that it publishes on a topic.",
    visible=TO_DESCRIBERS,
    listed=1,
    bound=following(MAX_ADVERTISED, CLIENTS),
)
ADVERTISERS: Table[AdvertiserRecord, bytes] = Table(
    "advertiser",
    AdvertiserRecord,
    KEY,
    about="The topics on which a client advertises; none: no entry.",
    bound=following(1, CLIENTS),
)
