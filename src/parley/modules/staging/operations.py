"""What a writer may ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from parley.application.operations import Operation
from parley.crypto.hashing import digest
from parley.model.batches import NO_TOPIC
from parley.model.names import U64, Hash, Position, Session, TopicName

MAX_STAGED_BATCHES = 16_384  # that one commit names: half a control batch


class Source(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a stage was made of, as far as its writer can say. A repetition is recognised by it (P23).

    Two fields, because the two hashes are never to be compared with each other. A writer that draws other rows at every
    attempt is known by its plan only; one that cannot read its plan, by its rows only.
    """

    plan: Hash | None = None  # of what says which input the stage takes
    rows: Hash | None = None  # of all that the stage publishes, in whatever order


UNNAMED = Source()  # of a writer that knows its commits by the batches alone


class CommitStage(Operation, frozen=True):
    """Number these staged batches of the asking client's writer: all of them or none, and each stage once (P23).

    The writer is that of one topic: of the one with this id.
    """

    topic: TopicName
    writer: Session
    stage: U64
    digests: Annotated[tuple[Hash, ...], Meta(max_length=MAX_STAGED_BATCHES)]
    source: Source = UNNAMED
    topic_id: Position = NO_TOPIC  # for which it is refused


def digests_hash(digests: Sequence[bytes]) -> bytes:
    """The hash by which a commit is recognised when it comes again."""
    return digest("stage/digests", *digests)


def is_repetition(commit: tuple[Source, bytes], first: tuple[Source, bytes]) -> bool:
    """Whether a commit repeats the first one of its stage. Each is given by its source and its `digests_hash`.

    Plans are compared if both have one, else rows if both have them, else everything. If the plans differ, equal rows are
    not enough: the rest of that plan may have gone to other topics and would be published twice.
    """
    (one, _), (other, _) = commit, first
    if one.plan is not None and other.plan is not None:
        return one.plan == other.plan
    if one.rows is not None and other.rows is not None:
        return one.rows == other.rows
    return commit == first


def commit_of(operation: Operation) -> CommitStage | None:
    """The operation, if it commits a stage."""
    return operation if isinstance(operation, CommitStage) else None
