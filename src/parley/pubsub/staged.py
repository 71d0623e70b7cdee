"""What the state holds of staged batches: enough to number them later without their bodies, within limits (P23)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from parley.crypto.hashing import DIGEST_SIZE
from parley.model.batches import Message, decode_message_header, encode, leaves_of
from parley.model.errors import Code, Refusal
from parley.model.names import Pairs
from parley.model.records import ClientRecord, client_key
from parley.pubsub import shares, use
from parley.pubsub.records import (
    STAGED_BYTES,
    ContentRecord,
    StagedRecord,
    content_key,
    expiry_key,
    staged_key,
    staging_key,
    staging_prefix,
)
from parley.pubsub.state import State
from parley.pubsub.step import Step

__all__ = ["charge", "contents", "drop", "forget", "parts_of", "put", "require_room", "unlist"]

MAX_STAGED = 1024 * 1024 * 1024  # bytes in the network, with what is committed and not yet numbered
MAX_STAGED_PER_CLIENT = 256 * 1024 * 1024
LEAST = 4 * 1024  # bytes that a batch counts for, however small: its entries take as much
PER_MESSAGE = 64  # bytes that each message counts for besides its own: its leaf stays in the state
MAX_PART = 32 * 1024  # bytes of one entry, about: snapshots carry entries whole
# A block, twice: brokers keep what it deletes in memory for a while, and all of a network may be over at one height.
DROPPED_BYTES = 32 * 1024 * 1024


def charge(size: int, count: int) -> int:
    """What a batch takes of the room for staged ones."""
    return max(LEAST, size + PER_MESSAGE * count)


def require_room(step: Step, client: ClientRecord, topic: str, more: int) -> None:
    held = use.get(step.state, client.key).staged
    advice = partial(_advice, step.state, client.key, topic)
    if held + more > MAX_STAGED_PER_CLIENT:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"{client.organisation}/{client.name} has {held} staged bytes of {MAX_STAGED_PER_CLIENT}, "
            f"and this would be {more} more; {advice()}",
        )
    shares.require(step, client.organisation, (STAGED_BYTES, MAX_STAGED), more, advice)


def put(state: State, name: bytes, record: StagedRecord, parts: Sequence[ContentRecord]) -> None:
    state.put(staged_key(name), record)
    state.put(_listed(name, record), b"")
    state.put(_expires(name, record), b"")
    for ordinal, part in enumerate(parts):
        state.put(content_key(name, ordinal), part)
    _hold(state, record, charge(record.size, record.count))


def unlist(state: State, name: bytes, record: StagedRecord) -> None:
    """It is committed: it neither expires nor is it dropped with what its writer left behind."""
    state.delete(_listed(name, record))
    state.delete(_expires(name, record))


def forget(state: State, name: bytes, record: StagedRecord) -> None:
    """Of a batch that is committed: its turn has come."""
    state.delete(staged_key(name))
    for ordinal in range(record.parts):
        state.delete(content_key(name, ordinal))
    _hold(state, record, -charge(record.size, record.count))


def drop(step: Step, name: bytes, record: StagedRecord) -> int:
    """It will never be numbered, so its body goes, too. Returns the bytes that it counted for."""
    unlist(step.state, name, record)
    forget(step.state, name, record)
    step.dropped.append(name)
    return charge(record.size, record.count)


def parts_of(messages: Sequence[Message]) -> list[ContentRecord]:
    """In entries of moderate size; neighbours with the same tags share them."""
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


def contents(state: State, name: bytes, record: StagedRecord) -> Iterator[tuple[bytes, Pairs]]:
    """Leaf and tags of each message."""
    for ordinal in range(record.parts):
        part = state.get(ContentRecord, content_key(name, ordinal))
        assert part is not None, "a staged batch has all its parts"
        at = 0
        for count, tags in part.tags:
            for _ in range(count):
                yield part.leaves[at : at + DIGEST_SIZE], tags
                at += DIGEST_SIZE


def _listed(name: bytes, record: StagedRecord) -> bytes:
    return staging_key(record.topic, record.publisher, record.writer, record.stage, name)


def _expires(name: bytes, record: StagedRecord) -> bytes:
    return expiry_key(record.until + 1, staged_key(name))


def _hold(state: State, record: StagedRecord, by: int) -> None:
    client = state.get(ClientRecord, client_key(record.publisher))
    assert client is not None, "a client's record stays"
    held = use.get(state, client.key)
    use.put(state, client.key, replace(held, staged=held.staged + by))
    shares.add(state, client.organisation, STAGED_BYTES, by)


def _advice(state: State, publisher: bytes, topic: str) -> str:
    """What whoever is refused can do."""
    for key in state.stored_keys(staging_prefix(topic) + publisher, 1):
        oldest = state.get(StagedRecord, staged_key(key[-DIGEST_SIZE:]))
        if oldest is not None:
            return (
                f"commit what is staged, wait until it expires, some at height {oldest.until}, or stage less at a time, "
                f"in Spark with a lower maxOffsetsPerTrigger"
            )
    return "wait until what others staged is committed or expires, or stage less at a time"
