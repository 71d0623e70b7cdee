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
from parley.modules.registry.tables import CLIENTS
from parley.modules.staging.operations import UNNAMED, Source
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
    topic_id: Position
    partition: U32
    writer: Session
    stage: U64
    count: U32
    size: U32  # bytes, as it was signed
    until: U64
    at: Position  # of its receipt
    parts: U32  # its `ContentRecord`s
    compared: U64  # comparisons of matching it, when it was staged or last passed over


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
    source: Source = UNNAMED  # what it was made of


class Room(Record, frozen=True):
    """What matching some batches may cost more before one of them costs too much: for each message, and once.

    What was opened at height `since` or later is to be taken off, for as long as it lives.
    """

    message: U64
    batch: U64
    since: U64

    def meet(self, other: Room) -> Room:
        """What both leave."""
        return Room(
            min(self.message, other.message), min(self.batch, other.batch), min(self.since, other.since)
        )


class CommittingRecord(Record, frozen=True):
    """A commit that is too much for one block: how far it has been looked at. The same commit goes on from there."""

    topic: str
    topic_id: Position
    writer: Session
    stage: U64
    digests: Hash  # `digests_hash`
    listed: U64  # the height at which its room goes, or all of it if it has none, unless it is ordered again
    reserves: bool  # whether constraints that would make the checked batches too costly wait for it
    checked: U32  # how many of the batches, in its order
    until: U64  # when the first of these expires
    expiring: Hash  # which one that is
    room: Room  # since the height at which it began


class CommittedRecord(Record, frozen=True):
    """Some batches of a committed stage that wait to be numbered."""

    topic: str
    topic_id: Position
    writer: Session
    at: Position  # the receipt of the commit
    digests: tuple[Hash, ...]


class QueueRecord(Record, frozen=True):
    """The entries of a client that wait to be numbered: `first` up to, not with, `next`; and when it is their turn."""

    first: U64
    next: U64
    tag: U64  # grows with what is numbered: of those who wait, the lowest comes next


class WaitingRecord(Record, frozen=True):
    """The turn of an organisation whose clients wait, as those of its clients; `last` is the highest tag of these."""

    clients: U32
    tag: U64
    last: U64


class PendingHalf(Record, frozen=True):
    """Committed batches of a topic that wait, and what constraints may be added meanwhile."""

    batches: U32
    room: Room


class PendingRecord(Record, frozen=True):
    """All committed batches that wait on a topic, in two halves, so that what limits one ends with it.

    What was committed below height `turn` belongs to the older half. A commit that is still looked at counts as a batch.
    """

    turn: U64
    older: PendingHalf
    newer: PendingHalf


class OverRecord(Record, frozen=True):
    """What a writer has staged up to this stage, and is staged still, was not committed."""

    stage: U64


Writer = tuple[str, Position, bytes, bytes]  # topic and its id, publisher, writer


def _own(_reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    """A client sees what it has committed itself."""
    return None if key[2] == principal.key else PermissionDenied("hidden")


STAGES: Table[StageRecord, str, Position, bytes, bytes] = Table(
    "stage",
    StageRecord,
    TEXT,
    POSITION,
    KEY,
    SESSION,
    about="The last stage that a writer of a client has committed on a topic, by name and id.",
    visible=Visibility(3, _own, "the client that committed"),
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
STAGING: Table[bytes, str, Position, bytes, bytes, int, bytes] = Table(
    "staging",
    bytes,
    TEXT,
    POSITION,
    KEY,
    SESSION,
    LARGE,
    HASH,
    about="A staged batch that was not numbered, by topic and its id, publisher, writer, stage and digest.",
    bound=following(1, STAGED),
)
COMMITTING: Table[CommittingRecord, bytes] = Table(
    "committing",
    CommittingRecord,
    KEY,
    about="A client's commit that is too much for one block; there is one at a time.",
    bound=following(1, CLIENTS),
    expires=True,
)
COMMITTED: Table[CommittedRecord, bytes, int] = Table(
    "committed",
    CommittedRecord,
    KEY,
    LARGE,
    about="Batches of a client that wait to be numbered, in the order of its commits.",
    bound=following(1, STAGED),
)
QUEUES: Table[QueueRecord, bytes] = Table(
    "queue",
    QueueRecord,
    KEY,
    about="Which entries of a client wait to be numbered, and its turn.",
    bound=following(1, STAGED),
)
TURNS: Table[bytes, str, int, bytes] = Table(
    "turn",
    bytes,
    TEXT,
    LARGE,
    KEY,
    about="A client with batches that wait to be numbered, by its organisation and its turn among these.",
    bound=following(1, QUEUES),
)
WAITING: Table[WaitingRecord, str] = Table(
    "waiting",
    WaitingRecord,
    TEXT,
    about="An organisation with batches that wait to be numbered, and its turn.",
    bound=Bound("one for each organisation", lambda extent: len(extent.genesis.organisations)),
)
OVER: Table[OverRecord, str, str, Position, bytes, bytes] = Table(
    "over",
    OverRecord,
    TEXT,
    TEXT,
    POSITION,
    KEY,
    SESSION,
    about="A writer of an organisation whose commits are all numbered, until what else it had staged is dropped.",
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
