"""Reading by offset for those who read very much: the same checks as a page's, without an object per message.

What `verification.check_fetched` believes is believed here and nothing else; the two are compared by a test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from parley.client.beliefs import Reader, VerifiedView, record_of, require_hidden, require_recent
from parley.client.denials import Judge
from parley.client.errors import Refused
from parley.client.history import History
from parley.client.messages import Evidence
from parley.client.quorum import QuorumClient, Request
from parley.client.verification import Question, evidence_of, published_in, require_next
from parley.ledger.proofs import BlockProof, ProofError, StateEntry
from parley.model.batches import MAX_MESSAGES, Message, MessageHeader, Withheld, decode_message_header
from parley.model.codec import DECODE_ERRORS
from parley.model.leaves import leaves_of_columns
from parley.model.names import RuleText, Salt, Value
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.proof import PublicationProof
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.net.messages import (
    Fetch,
    FetchedBatch,
    PackedBatch,
    PackedFetched,
    Skipped,
    WireError,
)

PAGE_BYTES = 1024 * 1024
MAX_HEADERS = 10_000  # different headers of messages that are remembered between pages, and
MAX_HEADER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """The messages of one batch from the asked offset on, column by column; what is hidden has its rule and no row."""

    offsets: Sequence[int]
    salts: Sequence[bytes]
    headers: Sequence[bytes]  # as they are signed; `ColumnPage.header` reads them
    rules: Sequence[str]
    payloads: Sequence[bytes]
    hidden: tuple[tuple[int, str], ...]  # offset and rule
    first: int  # the batch's first offset
    evidence: Evidence

    @property
    def end(self) -> int:
        return self.first + self.evidence.receipt.count

    @property
    def publisher(self) -> str:
        return self.evidence.receipt.client

    @property
    def height(self) -> int:
        return self.evidence.block.height

    @property
    def time(self) -> int:
        return self.evidence.block.time

    def proof(self, at: int) -> PublicationProof:
        """Of the row's publication, for a third party."""
        message = Message(self.salts[at], self.headers[at], self.rules[at], self.payloads[at])
        return self.evidence.proof(self.offsets[at] - self.first, message)

    def identity(self) -> tuple[object, ...]:
        """What brokers must agree on: the leaves stand for what they cover."""
        place = (self.first, self.publisher, self.height, self.time, self.evidence.receipt.digest)
        return (*place, self.hidden, len(self.offsets))


@dataclass(frozen=True, slots=True)
class ColumnPage:
    """Batches from the asked offset on, without a gap, and the limits of the partition then."""

    batches: tuple[Rows, ...]
    head: PartitionRecord
    headers: Mapping[bytes, MessageHeader]  # what the rows' headers say

    @property
    def end(self) -> int | None:
        """The offset after the last one, None if there is nothing."""
        return self.batches[-1].end if self.batches else None


class Columns:
    """Pages of a partition, from as many brokers as must agree."""

    def __init__(self, quorum: QuorumClient, history: History, clock: Callable[[], int]) -> None:
        self._quorum = quorum
        self._history = history
        self._clock = clock
        self._headers: dict[bytes, MessageHeader] = {}

    async def page(
        self, topic: str, partition: int, offset: int, *, floor: int = 0, max_bytes: int = PAGE_BYTES
    ) -> ColumnPage:
        """The batches from `offset` on; nothing is hidden or ended as of before height `floor`."""
        quorum = self._quorum
        question = Question(topic, partition, offset, max(quorum.height, floor))
        if len(self._headers) > MAX_HEADERS or sum(map(len, self._headers)) > MAX_HEADER_BYTES:
            self._headers = {}

        def read(view: VerifiedView, answer: PackedFetched) -> ColumnPage:
            page = check_packed(view, answer, quorum.reader, question, self._headers)
            # Where the partition ends, and what this reader may not see, is so now only if the header is new.
            if not page.batches or any(rows.hidden for rows in page.batches):
                self._history.require_fresh(view)
            return page

        request = Request(
            f"reading partition {partition} of {topic}",
            Fetch(0, topic, partition, offset, max_bytes, 0),
            PackedFetched,
            read,
            _common,
            Judge(quorum, self._clock, topic, partition, offset),
        )
        return await quorum.ask(request)


def check_packed(
    view: VerifiedView,
    answer: PackedFetched,
    reader: Reader,
    question: Question,
    headers: dict[bytes, MessageHeader] | None = None,
) -> ColumnPage:
    """The batches, each as its publisher signed it and where its receipt puts it. `headers` remembers what was read."""
    head = record_of(HEADS, view.value(answer.head, HEADS.key(question.topic, question.partition)))
    if head is None:
        raise ProofError(f"partition {question.partition} does not exist, yet the broker reads from it")
    check = _Check(view, reader, answer.reader, question, {} if headers is None else headers)
    found: list[Rows] = []
    expected = question.offset
    for block in answer.blocks:
        leaves = view.leaves(block.proof)
        if len(leaves) != len(block.batches):
            raise ProofError("there are as many receipts as batches in a block, and other numbers are shown")
        for at, batch in enumerate(block.batches):
            receipt, first = published_in(leaves[at], question.topic, question.partition)
            require_next(first, receipt.count, question.offset, expected)
            found.append(check.rows(batch, receipt, first, (block.proof, at)))
            expected = first + receipt.count
    if not found:
        if question.offset < head.next_offset:
            raise ProofError(
                f"there are offsets up to {head.next_offset}, and none from {question.offset} on is shown"
            )
        require_recent(view, question.floor)
    return ColumnPage(tuple(found), head, check.headers)


@dataclass
class _Check:
    """Of the batches of one answer; what is hidden is so only where this reader's own attributes call for it."""

    view: VerifiedView
    reader: Reader
    entry: StateEntry | None
    question: Question
    headers: dict[bytes, MessageHeader]

    def rows(
        self, batch: PackedBatch, receipt: BatchReceipt, first: int, proof: tuple[BlockProof, int]
    ) -> Rows:
        asked = max(0, self.question.offset - first)
        try:
            whole = _whole.decode(batch.contents)
        except DECODE_ERRORS:
            return self._some(batch, receipt, first, proof)
        _, salts, headers, rules, payloads = zip(*whole, strict=True)
        leaves = leaves_of_columns(salts, headers, rules, payloads)
        evidence = self._evidence(batch, leaves, receipt, proof)
        self._read_headers(headers[asked:])
        offsets = range(first + asked, first + len(leaves))
        return Rows(
            offsets,
            salts[asked:],
            headers[asked:],
            rules[asked:],
            payloads[asked:],
            (),
            first,
            evidence,
        )

    def _some(
        self, batch: PackedBatch, receipt: BatchReceipt, first: int, proof: tuple[BlockProof, int]
    ) -> Rows:
        """Of a batch that is not shown as a whole."""
        contents = _opened(batch).contents
        evidence = self._evidence(batch, [content.leaf() for content in contents], receipt, proof)
        shown: list[tuple[int, Message]] = []
        hidden: list[tuple[int, Withheld]] = []
        for offset, content in zip(count(first), contents, strict=False):
            if offset < self.question.offset:
                continue
            match content:
                case Message():
                    shown.append((offset, content))
                case Withheld():
                    hidden.append((offset, content))
                case Skipped():
                    raise ProofError(f"offset {offset} is left out")
        self._require_hidden({content.rule: content for _, content in hidden})
        messages = [message for _, message in shown]
        self._read_headers([message.header for message in messages])
        return Rows(
            [offset for offset, _ in shown],
            [message.salt for message in messages],
            [message.header for message in messages],
            [message.rule for message in messages],
            [message.payload for message in messages],
            tuple((offset, content.rule) for offset, content in hidden),
            first,
            evidence,
        )

    def _evidence(
        self, batch: PackedBatch, leaves: list[bytes], receipt: BatchReceipt, proof: tuple[BlockProof, int]
    ) -> Evidence:
        signed = (batch.header, tuple(leaves), batch.signature)
        return evidence_of(self.view, self.reader, signed, receipt, proof)

    def _read_headers(self, headers: Sequence[bytes]) -> None:
        for data in set(headers).difference(self.headers):
            try:
                self.headers[data] = decode_message_header(data)
            except Refused as refused:
                raise ProofError(f"a message's header cannot be read: {refused.detail}") from None

    def _require_hidden(self, contents: Mapping[str, Withheld]) -> None:
        if not contents:
            return
        attributes: Mapping[str, Value] | None = self.reader.attributes(
            self.view, self.entry, self.question.floor
        )
        for content in contents.values():
            require_hidden(content, attributes)


def _opened(batch: PackedBatch) -> FetchedBatch:
    try:
        return batch.opened()
    except WireError as error:
        raise ProofError(f"it sent bytes that are no answer: {error}") from None


def _common(pages: Sequence[ColumnPage], needed: int) -> ColumnPage | None:
    """As many batches as enough brokers agree on; brokers may be unequally far."""
    if needed == 1:
        return pages[-1]
    backers = list(pages)
    agreed: list[Rows] = []
    for at in count():
        votes = Counter(page.batches[at].identity() for page in backers if len(page.batches) > at)
        best, number = max(votes.items(), key=lambda one: one[1], default=(None, 0))
        if best is None or number < needed:
            break
        backers = [page for page in backers if len(page.batches) > at and page.batches[at].identity() == best]
        agreed.append(backers[0].batches[at])
    if agreed:
        return ColumnPage(tuple(agreed), backers[0].head, backers[0].headers)
    empty = [page for page in pages if not page.batches]
    return empty[0] if len(empty) >= needed else None


# A batch that is shown as a whole, which almost all are: tuples cost less than messages.
_whole: msgspec.msgpack.Decoder[list[tuple[int, bytes, bytes, str, bytes]]] = msgspec.msgpack.Decoder(
    Annotated[
        list[tuple[Literal[0], Salt, bytes, RuleText, bytes]], Meta(min_length=1, max_length=MAX_MESSAGES)
    ]
)
