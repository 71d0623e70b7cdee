"""What a broker shows of publications, checked against what it proves (P6, P7). Pure: no clock and no network.

A message is believed if its leaf is the one in a receipt; an order if its numbers have no gap; a redacted message if
this reader's own certified attributes do not satisfy its rule. A message in full whose rule would not allow this reader is believed
as well: it is what was published, and secrecy cannot be restored where it is received.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain, count, islice, pairwise
from operator import lt
from typing import Generic, NamedTuple, TypeVar

from parley.client.beliefs import Reader, VerifiedView, record_of, require_hidden, require_recent
from parley.client.errors import Refused, TopicReplaced
from parley.client.messages import Evidence, Message, Origin
from parley.consensus.types import Header
from parley.ledger.proofs import BlockProof, ProofError, StateEntry
from parley.model import batches
from parley.model.batches import (
    MessageHeader,
    Withheld,
    batch_digest,
    decode_message_header,
    is_signed,
    leaves_of,
)
from parley.model.expressions import Constraint
from parley.model.names import Position, Value
from parley.model.receipts import BatchReceipt, Leaf
from parley.modules.publishing.receipts import published
from parley.modules.subscriptions.receipts import Match, match_of
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.access import id_text
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import DeliveredBlock, Delivery, Fetched, FetchedBatch, Head, PackedBatch, Skipped
from parley.privacy.codecs import MatchingCodec
from parley.privacy.table import CLEAR

B = TypeVar("B", FetchedBatch, PackedBatch)

NOTHING = MessageHeader()  # of what is hidden


@dataclass(eq=False, repr=False)
class Contents:
    """Turns the contents of one answer into messages; redacted only where this reader's own attributes call for it."""

    view: VerifiedView
    reader: Reader
    entry: StateEntry | None  # of the reader
    floor: int
    constraint: Constraint | None = None
    matching: MatchingCodec = CLEAR  # which says whether a message belongs to the constraint
    known: dict[bytes, MessageHeader] = field(default_factory=dict)  # headers that were read

    @cached_property
    def _attributes(self) -> Mapping[str, Value] | None:
        return self.reader.attributes(self.view, self.entry, self.floor)

    def evidence(
        self, placed: Placed[FetchedBatch] | Placed[PackedBatch], leaves: tuple[bytes, ...]
    ) -> Evidence:
        """That a batch with these leaves is the one that its receipt names."""
        batch, receipt = placed.batch, placed.receipt
        header, signature = batch.header, batch.signature
        whole = header.count == len(leaves) == receipt.count  # the next batch is expected after so many
        if not whole or batch_digest(header, leaves) != receipt.digest:
            raise ProofError("a batch is not the one that its receipt names")
        if not is_signed(header, receipt.digest, signature):
            raise ProofError("a batch is not signed by its publisher")
        return Evidence(self.reader.trust, header, leaves, signature, receipt, placed.proof, self.view.anchor)

    def origin(self, receipt: BatchReceipt, block: Header) -> Origin:
        return Origin(
            receipt.topic,
            receipt.topic_id,
            receipt.partition,
            receipt.client,
            block.height,
            block.time,
            self.reader.level,
        )

    def headers(self, contents: Sequence[batches.Message | Withheld]) -> list[MessageHeader]:
        """What each of them says of itself, `NOTHING` for the redacted. Many say the same, and each header is read once."""
        found = self.known
        if set(map(type, contents)) == {batches.Message}:
            return [found.get(content.header) or self.header(content.header) for content in contents]
        self.require_hidden(contents)
        return [
            found.get(content.header) or self.header(content.header)
            if type(content) is batches.Message
            else NOTHING
            for content in contents
        ]

    def header(self, data: bytes) -> MessageHeader:
        try:
            header = self.known[data] = decode_message_header(data)
        except Refused as refused:
            raise ProofError(f"a message's header cannot be read: {refused.detail}") from None
        if self.constraint is not None and not self.matching.matches(self.constraint, header):
            raise ProofError(f"the tags of a message do not match {self.constraint.text}")
        return header

    def require_hidden(self, contents: Iterable[batches.Message | Withheld]) -> None:
        """That the rules of all redacted messages among them hide them from this reader indeed."""
        for content in {one.rule: one for one in contents if isinstance(one, Withheld)}.values():
            require_hidden(content, self._attributes)


# -- reading by offset -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked for: a partition from an offset on, not to be called empty or hidden as of before `floor`.

    With a `topic_id`, what was published to an earlier topic of the same name is no answer.
    """

    topic: str
    partition: int
    offset: int
    floor: int
    topic_id: Position | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Messages from the asked offset on, without a gap, and the limits of the partition then."""

    messages: tuple[Message, ...]
    head: PartitionRecord

    def require_topic(self, topic_id: Position | None) -> None:
        """Raises `TopicReplaced` if some of it was published to a topic that was made later under the same name."""
        if topic_id is None or not self.messages or self.messages[-1].topic_id == topic_id:
            return
        last = self.messages[-1]
        raise TopicReplaced(topic=last.topic, topic_id=id_text(topic_id), present=id_text(last.topic_id))


class Placed(NamedTuple, Generic[B]):
    """A batch, its receipt, the offset of its first message, and what proves the receipt."""

    batch: B
    receipt: BatchReceipt
    first: int
    proof: tuple[BlockProof, int]


def check_fetched(view: VerifiedView, answer: Fetched, reader: Reader, question: Question) -> Page:
    """The messages, each as its publisher signed it and where its receipt puts it."""
    shown = ((block.proof, block.batches) for block in answer.blocks)
    head, found = check_places(view, answer.head, shown, question)
    contents = Contents(view, reader, answer.reader, question.floor)
    messages = chain.from_iterable(_fetched(contents, placed, question.offset) for placed in found)
    return Page(tuple(messages), head)


def check_places(
    view: VerifiedView,
    head: StateEntry,
    blocks: Iterable[tuple[BlockProof, Sequence[B]]],
    question: Question,
) -> tuple[PartitionRecord, list[Placed[B]]]:
    """The limits of the partition, and its batches from the asked offset on, where their receipts put them."""
    record = record_of(HEADS, view.value(head, HEADS.key(question.topic, question.partition)))
    if record is None:
        raise ProofError(f"partition {question.partition} does not exist, yet the broker reads from it")
    found: list[Placed[B]] = []
    expected = question.offset
    for proof, shown in blocks:
        leaves = view.leaves(proof)
        if len(leaves) != len(shown):
            raise ProofError("there are as many receipts as batches in a block, and other numbers are shown")
        for at, (leaf, batch) in enumerate(zip(leaves, shown, strict=True)):
            receipt, first = published_in(leaf, question.topic, question.partition)
            if question.topic_id is not None and receipt.topic_id < question.topic_id:
                raise ProofError("a receipt is of an earlier topic of the same name")
            if (
                found and receipt.topic_id != found[0].receipt.topic_id
            ):  # the log of a new topic begins behind the old one
                raise ProofError("what two topics of the same name hold is shown as that of one")
            # Batches follow on one another; only the first may begin before the offset that was asked for.
            if first != expected and (found or not first < expected < first + receipt.count):
                raise ProofError(
                    f"offset {expected} was to come next, not a batch of {receipt.count} from {first} on"
                )
            found.append(Placed(batch, receipt, first, (proof, at)))
            expected = first + receipt.count
    if not found:
        if question.offset < record.next_offset:
            raise ProofError(
                f"there are offsets up to {record.next_offset}, and none from {question.offset} on is shown"
            )
        require_recent(view, question.floor)
    return record, found


def published_in(leaf: Leaf, topic: str, partition: int) -> tuple[BatchReceipt, int]:
    """The receipt of a batch of this partition, and the offset of its first message."""
    if (found := published(leaf)) is None:
        raise ProofError("what is shown as the receipt of a published batch is none")
    receipt, _ = found
    if (receipt.topic, receipt.partition) != (topic, partition):
        raise ProofError("a receipt is of another topic or partition")
    return found


def _fetched(contents: Contents, placed: Placed[FetchedBatch], asked: int) -> Iterator[Message]:
    batch, first = placed.batch, placed.first
    evidence = contents.evidence(placed, tuple(leaves_of(batch.contents)))
    skipped = max(0, asked - first)
    shown: list[batches.Message | Withheld] = []
    for index, content in enumerate(batch.contents[skipped:], skipped):
        if isinstance(content, Skipped):
            raise ProofError(f"offset {first + index} is left out")
        shown.append(content)
    origin = contents.origin(evidence.receipt, evidence.block)
    for index, content, header in zip(count(skipped), shown, contents.headers(shown), strict=False):
        leaf = evidence.leaves[index]
        yield Message(first + index, None, leaf, origin, header, content, index, evidence)


# -- the order of a subscription ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subscriber stands in one partition: the next number and the lowest offset that can have it."""

    partition: int
    incarnation: Position
    next_ps: int
    next_offset: int


class Completeness(Enum):
    """What a certified head says of what this subscriber holds."""

    COMPLETE = "it holds everything"
    BEHIND = "the head is older than what it holds"
    MISSING = "there is more than it was shown"
    ENDED = "the order was closed"
    LAPSED = "the reader's own subscription has ended"


class Order:
    """One broker's stream, block by block: what it may show next, and nothing else."""

    def __init__(
        self,
        reader: Reader,
        topic: str,
        constraint: Constraint,
        places: Iterable[Place],
        floor: int,
        *,
        matching: MatchingCodec = CLEAR,
    ) -> None:
        self._reader = reader
        self._topic = topic
        self._constraint = constraint
        self._matching = matching
        self._places = {place.partition: place for place in places}
        self.floor = floor  # the highest certified height seen

    def delivered(self, view: VerifiedView, delivery: Delivery) -> list[tuple[Message, ...]]:
        """The messages that each block added to the order."""
        contents = Contents(view, self._reader, delivery.reader, self.floor, self._constraint, self._matching)
        shown: list[tuple[Message, ...]] = []
        for block in delivery.blocks:
            *receipts, last = view.leaves(block.proof)
            if (match := match_of(last)) is None:
                raise ProofError("the last leaf of a delivered block is no match")
            shown.append(self._matched(contents, block, receipts, match))
        self.floor = max(self.floor, view.height)
        return shown

    def completeness(self, view: VerifiedView, head: Head) -> Completeness:
        """Whether the head of every partition is what was delivered, or the reader's own subscription has ended."""
        entries = {entry.key: entry for entry in head.entries}
        own = SUBSCRIPTIONS.key(self._topic, self._constraint.id, self._reader.key)
        if own in entries:
            return self._lapsed(view, entries[own])
        found = {self._head(view, entries, place) for place in self._places.values()}
        self.floor = max(self.floor, view.height)
        if view.height < self.floor:  # an earlier state than one seen before
            found.add(Completeness.BEHIND)
        worst_first = (Completeness.MISSING, Completeness.BEHIND, Completeness.ENDED)
        return next((one for one in worst_first if one in found), Completeness.COMPLETE)

    def _lapsed(self, view: VerifiedView, own: StateEntry) -> Completeness:
        """The order may go on for others: it is not shown to those whose lease has ended."""
        if view.value(own, own.key) is not None:
            raise ProofError("it shows a subscription that lives in place of its order")
        began = max(height for height, _ in (place.incarnation for place in self._places.values()))
        floor = max(self.floor, began)
        self.floor = max(self.floor, view.height)
        # The receipt of the subscription was certified before: below that there was none yet.
        return Completeness.BEHIND if view.height < floor else Completeness.LAPSED

    def _head(self, view: VerifiedView, entries: Mapping[bytes, StateEntry], place: Place) -> Completeness:
        key = ORDER_HEADS.key(self._topic, place.partition, self._constraint.id)
        if key not in entries:
            raise ProofError(f"the head of partition {place.partition} is not shown")
        record = record_of(ORDER_HEADS, view.value(entries[key], key))
        if record is None or record.incarnation != place.incarnation:
            # A broker that lags has not got the order yet, or not in a partition that was added since.
            began, _ = place.incarnation
            return Completeness.BEHIND if view.height < began else Completeness.ENDED
        if record.next_ps == place.next_ps:
            return Completeness.COMPLETE
        return Completeness.MISSING if record.next_ps > place.next_ps else Completeness.BEHIND

    def _matched(
        self, contents: Contents, block: DeliveredBlock, receipts: list[Leaf], match: Match
    ) -> tuple[Message, ...]:
        """Many messages at a time: every step is one pass over all of them."""
        place, shown = self._place(match), block.contents
        # Who joined in the middle of a block is shown all of it, for the leaf covers all; the first are not its own.
        before = place.next_ps - match.first_ps
        if not 0 <= before < len(match.items):
            raise ProofError(f"number {place.next_ps} was to come next, not {match.first_ps}")
        if len(shown) != len(match.items):
            raise ProofError(f"{len(shown)} messages are shown where {len(match.items)} matched")
        offsets, leaves = map(list, zip(*match.items, strict=True))
        if leaves_of(shown) != leaves:
            other = next(at for at, content in enumerate(shown) if content.leaf() != leaves[at])
            raise ProofError(f"the message at offset {offsets[other]} is not the one that was published")
        _require_ascending(offsets, place, before)
        found = [published_in(leaf, self._topic, place.partition) for leaf in receipts]
        origins = _origins(contents, block.proof.header, found, offsets)
        headers = contents.headers(shown)
        numbers = range(match.first_ps, match.first_ps + len(shown))
        messages = [
            Message(offset, ps, leaf, origin, header, content)
            for offset, ps, leaf, origin, header, content in zip(
                offsets, numbers, leaves, origins, headers, shown, strict=True
            )
        ]
        self._places[place.partition] = replace(
            place, next_ps=match.first_ps + len(shown), next_offset=offsets[-1] + 1
        )
        return tuple(messages[before:])

    def _place(self, leaf: Match) -> Place:
        """Where this subscriber stands in the order of the leaf, which must be its own."""
        place = self._places.get(leaf.partition)
        if place is None or (leaf.topic, leaf.constraint) != (self._topic, self._constraint.id):
            raise ProofError("a leaf is of another topic, partition or constraint")
        if leaf.incarnation != place.incarnation:
            raise ProofError("a leaf is of another incarnation of this order")
        return place


def _require_ascending(offsets: list[int], place: Place, before: int) -> None:
    """Those that are not the reader's own may lie before its place."""
    if offsets[before] < place.next_offset:
        raise ProofError(f"offset {offsets[before]} comes after {place.next_offset - 1}")
    if not all(map(lt, offsets, islice(offsets, 1, None))):
        low, high = next(pair for pair in pairwise(offsets) if pair[0] >= pair[1])
        raise ProofError(f"offset {high} comes after {low}")


def _origins(
    contents: Contents, block: Header, receipts: list[tuple[BatchReceipt, int]], offsets: list[int]
) -> list[Origin]:
    """Of each of the ascending offsets, as the receipt that covers it has it."""
    origins: list[Origin] = []
    for receipt, first in receipts:
        at = len(origins)
        if at < len(offsets) and first <= offsets[at]:
            covered = bisect_left(offsets, first + receipt.count, at) - at
            origins += [contents.origin(receipt, block)] * covered
    if len(origins) < len(offsets):
        raise ProofError(f"no receipt shows who published offset {offsets[len(origins)]}")
    return origins
