"""The ages of topic partitions with a retention, and the bodies that wait to be erased."""

from __future__ import annotations

from parley.application.bounds import following
from parley.application.tables import NUMBER, TEXT, Record, Table
from parley.model.names import U64
from parley.modules.topics.tables import HEADS


class AgesRecord(Record, frozen=True):
    """The granules of a topic partition with a retention, oldest first; none: no entry.

    Each is its first offset, and a time before which all of it was published.
    """

    granules: tuple[tuple[U64, U64], ...]


class LogToErase(Record, frozen=True):
    """The bodies from the offset `start` up to `end`, some blocks after `height` (P21)."""

    start: U64
    end: U64
    height: U64


AGES: Table[AgesRecord, str, int] = Table(
    "age",
    AgesRecord,
    TEXT,
    NUMBER,
    about="When the messages of a topic partition were published.",
    bound=following(1, HEADS),
)
LOGS_TO_ERASE: Table[LogToErase, str, int] = Table(
    "erase_log",
    LogToErase,
    TEXT,
    NUMBER,
    about="The offsets of a topic partition whose bodies have to be erased.",
    index=True,
    passing=True,
    bound=following(1, HEADS),
)
