"""Answers with their proofs, built from the local store for one view of the ledger; no answer is without a bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from parley.ledger.indices import BatchPlace
from parley.ledger.proofs import StateEntry
from parley.model.batches import Batch, Message, Withheld
from parley.model.errors import Code, Refusal
from parley.model.expressions import parse_rule
from parley.model.names import Position, Value
from parley.model.records import (
    ClientRecord,
    PartitionRecord,
    TopicRecord,
    client_key,
    decode_record,
    partition_key,
)
from parley.net.messages import (
    MAX_ANSWER,
    MAX_KEYS,
    Content,
    Fetch,
    Fetched,
    FetchedBatch,
    FetchedBlock,
    Listed,
    ListKeys,
    Prove,
    Proven,
    Receipted,
    Skipped,
)
from parley.node.access import (
    Asker,
    may_describe,
    require_listable,
    require_provable,
    require_reader,
    require_reading,
    require_topic,
)
from parley.node.view import View

__all__ = ["Reading", "fetched", "has_arrived", "listed", "proven", "receipted"]

MAX_FETCHED = MAX_ANSWER - 2 * 1024 * 1024  # leaves room for the last batch and the proofs
MAX_EXAMINED = 20_000  # entries that one list may pass over
PROOF_COST = 6 * 1024  # bytes of a block's header and paths, about
MESSAGE_COST = 64  # bytes of a message besides its parts, about


@dataclass
class Reading:
    """One reader's eyes: which messages it may see, and whether any was withheld from it."""

    view: View
    client: ClientRecord
    withheld: bool = False
    attributes: dict[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        self.attributes = self.client.readable()

    def show(self, message: Message) -> Message | Withheld:
        if message.rule and not parse_rule(message.rule).allows(self.attributes):
            self.withheld = True
            return message.withheld()
        return message

    def reader(self) -> StateEntry | None:
        """The proof of the attributes that something was withheld for."""
        return self.view.entry(client_key(self.client.key)) if self.withheld else None


def receipted(view: View, id_: int, place: Position) -> Receipted:
    height, position = place
    return Receipted(id_, view.anchor, view.leaves(height, [position]))


def proven(view: View, asker: Asker, question: Prove) -> Proven:
    for key in question.keys:
        require_provable(view, key, asker)
    return Proven(question.id, view.anchor, tuple(map(view.entry, question.keys)))


def listed(view: View, asker: Asker, question: ListKeys) -> Listed:
    look = require_listable(view, question.prefix, asker)
    found: list[bytes] = []
    for examined, (key, value) in enumerate(view.archive.keys_after(question.prefix, question.after)):
        if examined >= MAX_EXAMINED:
            raise Refusal(Code.LIMIT_EXCEEDED, "too many entries to look through; ask for a longer prefix")
        if look and not may_describe(view, decode_record(TopicRecord, value), asker):
            continue
        if len(found) == MAX_KEYS:
            return Listed(question.id, tuple(found), more=True)
        found.append(key)
    return Listed(question.id, tuple(found), more=False)


def has_arrived(view: View, question: Fetch) -> bool:
    """Whether something stands at the asked-for offset now."""
    head = view.get(PartitionRecord, partition_key(question.topic, question.partition))
    return head is not None and question.offset < head.next_offset


def fetched(view: View, asker: Asker, question: Fetch) -> Fetched:
    """Whole batches from the offset on, at least one if there is one, as far as `max_bytes` go."""
    client = require_reader(view, asker)
    topic = require_topic(view, question.topic)
    if question.partition >= topic.partitions:
        raise Refusal(
            Code.UNKNOWN_PARTITION, f"topic {topic.name} has partitions 0 to {topic.partitions - 1}"
        )
    require_reading(topic, client)
    key = partition_key(topic.name, question.partition)
    head = view.get(PartitionRecord, key)
    if head is not None and question.offset < head.log_start_offset:
        raise Refusal(Code.PRUNED, f"the log of this partition starts at offset {head.log_start_offset}")
    reading = Reading(view, client)
    blocks = tuple(_blocks(reading, question, _affordable(view, question)))
    return Fetched(question.id, view.anchor, view.entry(key), reading.reader(), blocks)


_Placed = tuple[int, BatchPlace]  # the first offset of a batch, and its place


def _affordable(view: View, question: Fetch) -> Iterator[_Placed]:
    """The certified batches from the offset on, until the answer is large enough."""
    left = min(question.max_bytes, MAX_FETCHED)
    placed = view.archive.batches_from(question.topic, question.partition, question.offset)
    height = 0
    for first, place in takewhile(lambda one: one[1].height <= view.height, placed):
        batch = view.archive.batch(place.digest)
        if first + batch.header.count <= question.offset:
            continue
        cost = _size(batch) + (PROOF_COST if place.height != height else 0)
        if height and cost > left:
            return
        height, left = place.height, left - cost
        yield first, place


def _blocks(reading: Reading, question: Fetch, placed: Iterable[_Placed]) -> Iterator[FetchedBlock]:
    view = reading.view
    for height, batches in groupby(placed, key=lambda one: one[1].height):
        here = list(batches)
        proof = view.leaves(height, [place.position for _, place in here])
        shown = [
            _shown(reading, view.archive.batch(place.digest), question.offset - first)
            for first, place in here
        ]
        yield FetchedBlock(proof, tuple(shown))


def _shown(reading: Reading, batch: Batch, skip: int) -> FetchedBatch:
    contents: list[Content] = [Skipped(message.leaf()) for message in batch.messages[: max(skip, 0)]]
    contents += [reading.show(message) for message in batch.messages[max(skip, 0) :]]
    return FetchedBatch(batch.header, batch.signature, tuple(contents))


def _size(batch: Batch) -> int:
    messages = batch.messages
    return sum(MESSAGE_COST + len(one.header) + len(one.rule) + len(one.payload) for one in messages)
