"""What the state holds of staged batches: enough to number them later without their bodies, within limits (P23)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parley.application.block import BlockContext
from parley.application.expiry import MAX_SWEPT, cancel, look_again
from parley.application.quotas import HELD, Quota
from parley.application.state import State
from parley.crypto.hashing import DIGEST_SIZE
from parley.model.batches import Message, decode_message_header, encode, leaves_of
from parley.model.names import Pairs, Position, Value
from parley.model.principals import ClientRecord
from parley.model.refusals import Field, LimitExceeded
from parley.modules.registry.tables import CLIENTS
from parley.modules.staging.tables import (
    CONTENTS,
    LEAST,
    MAX_PART,
    MAX_STAGED,
    OWN_STAGED_BYTES,
    STAGED,
    STAGED_BYTES,
    STAGES,
    STAGING,
    ContentRecord,
    StagedRecord,
    Writer,
)
from parley.modules.topics.tables import TopicRecord

MAX_STAGED_PER_CLIENT = 256 * 1024 * 1024
PER_MESSAGE = 64  # bytes that each message counts for besides its own: its leaf stays in the state
# That housekeeping may drop in a block: brokers keep what it deletes in memory for a while, and all that a network has staged
# may be over at one height.
DROPPED_BYTES = 32 * 1024 * 1024

_ENTRIES = 5  # that hold a batch, besides its parts
_LOOKED_AT = 8  # batches, in search of one that expires


def charge(size: int, count: int) -> int:
    """What a batch takes of the room for staged ones."""
    return max(LEAST, size + PER_MESSAGE * count)


def work_of(record: StagedRecord) -> int:
    """What forgetting a batch, or numbering it, touches besides matching."""
    return _ENTRIES + record.parts


def require_room(block: BlockContext, client: ClientRecord, topic: TopicRecord, more: int) -> None:
    held = HELD.count(block.state, STAGED_BYTES.what, client.key)
    if held + more <= MAX_STAGED_PER_CLIENT and STAGED_BYTES.fits(
        block, client.organisation, MAX_STAGED, more
    ):
        return  # without looking for what expires first, which searches the store
    until = _first_expiry(block.state, client.key, topic.name, topic.created)
    own: dict[str, Field] = {} if until is None else {"until": until}
    if held + more > MAX_STAGED_PER_CLIENT:
        raise LimitExceeded(
            "staged_bytes" if until is None else "staged_bytes_own",
            client=f"{client.organisation}/{client.name}",
            held=held,
            limit=MAX_STAGED_PER_CLIENT,
            more=more,
            **own,
        )
    (STAGED_BYTES if until is None else OWN_STAGED_BYTES).require(
        block, client.organisation, MAX_STAGED, more, **own
    )


def hold(state: State, quota: Quota, publisher: bytes, by: int) -> None:
    """Count what a client holds, for itself, its organisation and the network."""
    client = CLIENTS.get(state, publisher)
    assert client is not None, "a client's record stays"
    HELD.add(state, quota.what, publisher, by=by)
    quota.add(state, client.organisation, by)


def put(state: State, digest: bytes, record: StagedRecord, parts: Sequence[ContentRecord]) -> None:
    STAGED.put(state, digest, record=record)
    STAGING.put(state, *_listed(digest, record), record=b"")
    look_again(state, record.until + 1, STAGED.key(digest))
    for ordinal, part in enumerate(parts):
        CONTENTS.put(state, digest, ordinal, record=part)
    hold(state, STAGED_BYTES, record.publisher, charge(record.size, record.count))


def forget(state: State, digest: bytes, record: StagedRecord) -> None:
    """Delete what the state holds of a batch."""
    STAGING.delete(state, *_listed(digest, record))
    cancel(state, record.until + 1, STAGED.key(digest))
    STAGED.delete(state, digest)
    for ordinal in range(record.parts):
        CONTENTS.delete(state, digest, ordinal)
    hold(state, STAGED_BYTES, record.publisher, -charge(record.size, record.count))


def drop(block: BlockContext, digest: bytes, record: StagedRecord) -> int:
    """Delete a batch that will never be numbered, its body included. Returns what that takes of a block's housekeeping."""
    forget(block.state, digest, record)
    block.dropped.append(digest)
    return max(work_of(record), charge(record.size, record.count) * MAX_SWEPT // DROPPED_BYTES)


def parts_of(messages: Sequence[Message]) -> list[ContentRecord]:
    """What matching needs of messages, in entries of moderate size; neighbours with the same tags share them."""
    parts: list[ContentRecord] = []
    leaves: list[bytes] = []
    runs: list[tuple[int, Pairs]] = []
    tags: Pairs = ()
    size, header, before, now = 0, b"", b"", b""
    for message, leaf in zip(messages, leaves_of(messages), strict=True):
        if message.header != header:
            header, tags = message.header, decode_message_header(message.header).tags
            now = encode(tags)  # as bytes, because Python holds 1 == True
        if size >= MAX_PART:
            parts.append(ContentRecord(b"".join(leaves), tuple(runs)))
            leaves, runs, size = [], [], 0
        if runs and now == before:
            runs[-1] = (runs[-1][0] + 1, tags)
        else:
            runs.append((1, tags))
            size += len(now)
        before = now
        leaves.append(leaf)
        size += DIGEST_SIZE
    parts.append(ContentRecord(b"".join(leaves), tuple(runs)))
    return parts


def runs(state: State, digest: bytes, record: StagedRecord) -> Iterator[tuple[int, dict[str, Value]]]:
    """How many messages in a row have which tags."""
    for part in _parts(state, digest, record):
        for count, tags in part.tags:
            yield count, dict(tags)


def contents(state: State, digest: bytes, record: StagedRecord) -> Iterator[tuple[bytes, Pairs]]:
    """Leaf and tags of each message of a staged batch."""
    for part in _parts(state, digest, record):
        at = 0
        for count, tags in part.tags:
            for _ in range(count):
                yield part.leaves[at : at + DIGEST_SIZE], tags
                at += DIGEST_SIZE


def _parts(state: State, digest: bytes, record: StagedRecord) -> Iterator[ContentRecord]:
    for ordinal in range(record.parts):
        part = CONTENTS.get(state, digest, ordinal)
        assert part is not None, "a staged batch has all its parts"
        yield part


def writer_of(record: StagedRecord) -> Writer:
    """The key of the record's writer in the table of writers that have committed."""
    return record.topic, record.topic_id, record.publisher, record.writer


def _listed(digest: bytes, record: StagedRecord) -> tuple[str, Position, bytes, bytes, int, bytes]:
    return *writer_of(record), record.stage, digest


def _first_expiry(state: State, publisher: bytes, topic: str, topic_id: Position) -> int | None:
    """The height at which something that the publisher staged on the topic expires; None if nothing was found."""
    for *_, writer, stage, digest in STAGING.first_stored(state, _LOOKED_AT, topic, topic_id, publisher):
        last, oldest = STAGES.get(state, topic, topic_id, publisher, writer), STAGED.get(state, digest)
        if oldest is not None and (last is None or stage > last.stage):  # what is committed does not expire
            return oldest.until
    return None
