"""Reading by offset for those who read very much: the same checks as a page's, without an object per message.

What `verification.check_fetched` believes is believed here and nothing else; the two are compared by a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from parley.client.beliefs import Reader, VerifiedView
from parley.client.denials import Judge
from parley.client.history import common_prefix
from parley.client.messages import Evidence
from parley.client.opening import read
from parley.client.quorum import QuorumClient, Request
from parley.client.topics import Topics
from parley.client.verification import Contents, Placed, Question, check_places
from parley.ledger.proofs import ProofError
from parley.model.batches import MAX_MESSAGES, Message, MessageHeader, Withheld
from parley.model.codec import DECODE_ERRORS
from parley.model.leaves import leaves_of_columns
from parley.model.names import RuleText, Salt
from parley.modules.publishing.proof import PublicationProof
from parley.modules.topics.tables import PartitionRecord
from parley.net.messages import (
    Fetch,
    PackedBatch,
    PackedFetched,
    Skipped,
    WireError,
)
from parley.privacy.codecs import Unopened
from parley.privacy.table import TopicCodec

PAGE_BYTES = 1024 * 1024
MAX_HEADERS = 10_000  # different headers of messages that are remembered between pages, and
MAX_HEADER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rows:
    """The messages of one batch from the asked offset on, column by column.

    What is hidden has its rule and no row, and what cannot be opened a reason and no row.
    """

    offsets: Sequence[int]
    salts: Sequence[bytes]
    headers: Sequence[bytes]  # `ColumnPage.headers` says what is in them
    rules: Sequence[str]
    payloads: Sequence[bytes]
    hidden: tuple[tuple[int, str], ...]  # offset and rule
    first: int  # the batch's first offset
    evidence: Evidence
    unopened: tuple[tuple[int, str], ...] = ()  # offset and reason
    sealed: tuple[Sequence[bytes], Sequence[bytes]] | None = (
        None  # headers and payloads as published, if others
    )

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

    @property
    def partitions(self) -> list[int]:
        return [self.evidence.receipt.partition] * len(self.offsets)

    def proof(self, at: int) -> PublicationProof:
        """The proof of the row's publication for a third party. It shows the message as it was published, sealed or not."""
        headers, payloads = self.sealed or (self.headers, self.payloads)
        message = Message(self.salts[at], headers[at], self.rules[at], payloads[at])
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


@dataclass(eq=False, repr=False)
class Columns:
    """Pages of a partition, from as many brokers as must agree."""

    _quorum: QuorumClient
    _topics: Topics
    _headers: dict[bytes, MessageHeader] = field(default_factory=dict)

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
                quorum.require_fresh(view)
            return page

        page = await quorum.ask(
            Request(
                f"reading partition {partition} of {topic}",
                Fetch(0, topic, partition, offset, max_bytes, 0),
                PackedFetched,
                read,
                _common,
                Judge(quorum, topic, partition, offset),
            )
        )
        if not page.batches:
            return page
        topic_id = page.batches[0].evidence.receipt.topic_id
        return await opened_page(await self._topics.to_read(topic, topic_id), page)


async def opened_page(codec: TopicCodec, page: ColumnPage) -> ColumnPage:
    """The page with its rows opened. They are verified."""
    opened = [await _opened_rows(codec, rows) for rows in page.batches]
    headers = {data: header for _, new in opened for data, header in new.items()}
    return ColumnPage(
        tuple(rows for rows, _ in opened), page.head, {**page.headers, **headers} if headers else page.headers
    )


async def _opened_rows(codec: TopicCodec, rows: Rows) -> tuple[Rows, dict[bytes, MessageHeader]]:
    """The rows, opened, and by their bytes the headers that were sealed."""
    found = await codec.open(rows)
    if found is rows:
        return rows, {}
    said = read(found)
    shown = {at: one for at, one in enumerate(said) if not isinstance(one, Unopened)}
    unopened = tuple(
        (rows.offsets[at], one.reason) for at, one in enumerate(said) if isinstance(one, Unopened)
    )
    made = replace(
        rows,
        offsets=[rows.offsets[at] for at in shown],
        salts=[rows.salts[at] for at in shown],
        headers=[found.headers[at] for at in shown],
        rules=[rows.rules[at] for at in shown],
        payloads=[payload for _, payload in shown.values()],
        unopened=unopened,
        sealed=([rows.headers[at] for at in shown], [rows.payloads[at] for at in shown]),
    )
    return made, {found.headers[at]: header for at, (header, _) in shown.items()}


def check_packed(
    view: VerifiedView,
    answer: PackedFetched,
    reader: Reader,
    question: Question,
    headers: dict[bytes, MessageHeader] | None = None,
) -> ColumnPage:
    """The batches, each as its publisher signed it and where its receipt puts it. `headers` remembers what was read."""
    shown = ((block.proof, block.batches) for block in answer.blocks)
    head, found = check_places(view, answer.head, shown, question)
    known = {} if headers is None else headers
    contents = Contents(view, reader, answer.reader, question.floor, known=known)
    return ColumnPage(tuple(_rows(contents, placed, question.offset) for placed in found), head, known)


def _rows(contents: Contents, placed: Placed[PackedBatch], asked: int) -> Rows:
    try:
        whole = _whole.decode(placed.batch.contents)
    except DECODE_ERRORS:
        return _some_rows(contents, placed, asked)
    _, salts, headers, rules, payloads = zip(*whole, strict=True)
    leaves = leaves_of_columns(salts, headers, rules, payloads)
    evidence = contents.evidence(placed, tuple(leaves))
    first = placed.first
    skipped = max(0, asked - first)
    _read_headers(contents, headers[skipped:])
    return Rows(
        range(first + skipped, first + len(leaves)),
        salts[skipped:],
        headers[skipped:],
        rules[skipped:],
        payloads[skipped:],
        (),
        first,
        evidence,
    )


def _some_rows(contents: Contents, placed: Placed[PackedBatch], asked: int) -> Rows:
    """Of a batch that is not shown as a whole."""
    try:
        parts = placed.batch.opened().contents
    except WireError as error:
        raise ProofError(f"it sent bytes that are no answer: {error}") from None
    evidence = contents.evidence(placed, tuple(part.leaf() for part in parts))
    shown: list[tuple[int, Message]] = []
    hidden: list[tuple[int, Withheld]] = []
    for offset, part in enumerate(parts, placed.first):
        if offset < asked:
            continue
        match part:
            case Message():
                shown.append((offset, part))
            case Withheld():
                hidden.append((offset, part))
            case Skipped():
                raise ProofError(f"offset {offset} is left out")
    contents.require_hidden(part for _, part in hidden)
    messages = [message for _, message in shown]
    headers = [message.header for message in messages]
    _read_headers(contents, headers)
    return Rows(
        [offset for offset, _ in shown],
        [message.salt for message in messages],
        headers,
        [message.rule for message in messages],
        [message.payload for message in messages],
        tuple((offset, part.rule) for offset, part in hidden),
        placed.first,
        evidence,
    )


def _read_headers(contents: Contents, headers: Sequence[bytes]) -> None:
    for data in set(headers).difference(contents.known):
        contents.header(data)


def _common(pages: Sequence[ColumnPage], needed: int) -> ColumnPage | None:
    identities = [[rows.identity() for rows in page.batches] for page in pages]
    if (found := common_prefix(identities, needed)) is None:
        return None
    page, length = pages[found[0]], found[1]
    return ColumnPage(page.batches[:length], page.head, page.headers)


# A batch that is shown as a whole, which almost all are: tuples cost less than messages.
_whole: msgspec.msgpack.Decoder[list[tuple[int, bytes, bytes, str, bytes]]] = msgspec.msgpack.Decoder(
    Annotated[
        list[tuple[Literal[0], Salt, bytes, RuleText, bytes]], Meta(min_length=1, max_length=MAX_MESSAGES)
    ]
)
