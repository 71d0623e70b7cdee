"""Staged batches, what of them waits to be numbered, and the writers that commit them (P23)."""

from __future__ import annotations

from typing import Any

from parley.application.bounds import Bound, counted, fixed, following
from parley.application.quotas import Quota
from parley.application.tables import (
    HASH,
    KEY,
    LARGE,
    NUMBER,
    POSITION,
    SESSION,
    TEXT,
    Reader,
    Record,
    Table,
    Visibility,
)
from parley.model.names import U32, U64, Hash, Key, Pairs, Position, Session
from parley.model.principals import Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.topics.tables import TOPICS

MAX_WRITERS = 131_072  # that the network remembers
MAX_STAGED = 1024 * 1024 * 1024  # bytes in the network, with what is committed and not yet numbered
LEAST = 4 * 1024  # bytes that a batch counts for, however small: its entries take as much
MAX_PART = 32 * 1024  # bytes of one entry, about: snapshots carry entries whole

WRITERS = Quota("writers")
STAGED_BYTES = Quota("staged")
# The same quota for those who have staged something themselves: what they can do about it is another thing.
OWN_STAGED_BYTES = Quota(STAGED_BYTES.what, "staged_own")


class StagedRecord(Record, frozen=True):
    """A staged batch, with all that numbering needs to know of it: its body may not be here then."""

    publisher: Key
    topic: str
    partition: U32
    writer: Session
    stage: U64
    count: U32
    size: U32  # bytes, as it was signed
    until: U64
    at: Position  # of its receipt
    parts: U32  # its `ContentRecord`s
    compared: U64  # comparisons that matching it took when it was staged
    weight: U64  # sum of the matching costs of all constraints ever opened on the topic, when it was staged


class ContentRecord(Record, frozen=True):
    """What matching needs of some messages of a staged batch."""

    leaves: bytes
    tags: tuple[tuple[U32, Pairs], ...]  # of so many messages in a row each


class StageRecord(Record, frozen=True):
    """The last stage that a writer has committed."""

    stage: U64
    at: Position  # the receipt of the commit
    digests: Hash  # of what it named, in its order: `digests_hash`
    pending: U32  # batches of this stage and earlier ones that wait to be numbered


class CommittedRecord(Record, frozen=True):
    """Some batches of a committed stage that wait to be numbered."""

    publisher: Key
    topic: str
    writer: Session
    digests: tuple[Hash, ...]


class PendingRecord(Record, frozen=True):
    """How many batches wait on a topic to be numbered, and what constraints may still be added.

    `room` is in comparisons that each of their messages may take more before one of the batches costs too much.
    """

    batches: U32
    room: U64


def _own(_reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    """A client sees what it has committed itself."""
    return None if key[1] == principal.key else PermissionDenied("hidden")


STAGES: Table[StageRecord, str, bytes, bytes] = Table(
    "stage",
    StageRecord,
    TEXT,
    KEY,
    SESSION,
    about="The last stage that a writer of a client has committed on a topic.",
    visible=Visibility(2, _own, "the client that committed"),
    expires=True,
    bound=counted(WRITERS, MAX_WRITERS),
)
STAGED: Table[StagedRecord, bytes] = Table(
    "staged",
    StagedRecord,
    HASH,
    about="A staged batch, by its digest.",
    expires=True,
    bound=counted(STAGED_BYTES, MAX_STAGED, each=LEAST, unit="bytes"),
)
CONTENTS: Table[ContentRecord, bytes, int] = Table(
    "content",
    ContentRecord,
    HASH,
    NUMBER,
    about="Leaves and tags of some messages of a staged batch.",
    bound=Bound(
        "one for each entry of `staged`, and one more for every 32 KiB that they count for",
        lambda extent: extent.of(STAGED) + MAX_STAGED // MAX_PART,
        follows=(STAGED,),
    ),
)
STAGING: Table[bytes, str, bytes, bytes, int, bytes] = Table(
    "staging",
    bytes,
    TEXT,
    KEY,
    SESSION,
    LARGE,
    HASH,
    about="A staged batch that was not committed, by topic, publisher, writer, stage and digest.",
    bound=following(1, STAGED),
)
COMMITTED: Table[CommittedRecord, Position, int] = Table(
    "committed",
    CommittedRecord,
    POSITION,
    NUMBER,
    about="Batches that wait to be numbered, by the position of their commit.",
    bound=following(1, STAGED),
)
OVER: Table[bytes, str, bytes, bytes] = Table(
    "over",
    bytes,
    TEXT,
    KEY,
    SESSION,
    about="A writer that has committed a stage, until what else it had staged up to there is dropped.",
    bound=following(1, STAGES),
)
PENDING: Table[PendingRecord, str] = Table(
    "pending",
    PendingRecord,
    TEXT,
    about="Committed batches of a topic that wait to be numbered.",
    bound=following(1, TOPICS),
)
PENDING_BATCHES: Table[int] = Table(
    "pending_batches", int, about="How many committed batches wait to be numbered.", bound=fixed(1)
)
WEIGHTS: Table[int, str] = Table(
    "weight",
    int,
    TEXT,
    about="The sum of the matching costs of all constraints ever opened on a topic: it never falls.",
    bound=following(1, TOPICS),
)
