"""What a writer may ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from parley.application.operations import Operation
from parley.crypto.hashing import digest
from parley.model.names import U64, Hash, Session, TopicName

MAX_STAGED_BATCHES = 16_384  # that one commit names: half a control batch


class CommitStage(Operation, frozen=True):
    """Number these staged batches of the asking client's writer: all of them or none, and each stage once (P23)."""

    topic: TopicName
    writer: Session
    stage: U64
    digests: Annotated[tuple[Hash, ...], Meta(max_length=MAX_STAGED_BATCHES)]


def digests_hash(digests: Sequence[bytes]) -> bytes:
    """The hash by which a commit is recognised when it comes again."""
    return digest("stage/digests", *digests)


def commit_of(operation: Operation) -> CommitStage | None:
    """The operation, if it commits a stage."""
    return operation if isinstance(operation, CommitStage) else None
