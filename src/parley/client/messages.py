"""What an application gets: messages and receipts, with plain attributes and a proof where there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct

from parley.application.operations import Operation
from parley.client.errors import ParleyError, Redacted, Undecryptable
from parley.client.proofs import OperationProof, narrowed, save_proof
from parley.consensus.types import Header
from parley.ledger.proofs import Anchor, BlockProof, ProofError, Trust
from parley.model import batches, leaves
from parley.model.batches import BatchHeader, MessageHeader, Withheld
from parley.model.names import Position, Value
from parley.model.receipts import BatchReceipt, Outcome
from parley.modules.publishing.proof import MessageProof, PublicationProof, check_publication
from parley.privacy.codecs import Unopened

__all__ = [
    "Evidence",
    "Level",
    "Message",
    "OnUndecryptable",
    "OperationReceipt",
    "Origin",
    "Receipt",
    "Receipts",
    "Withholding",
    "require_choices",
    "wanted",
]

T = TypeVar("T")

Level = Literal["certified", "quorum", "trusted"]
Withholding = Literal["skip", "yield"]  # what is done with messages that a rule hides from the reader
# And with those that the topic's codec cannot open: asking for their content raises, or they are left out.
OnUndecryptable = Literal["raise", "skip"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that proves a published batch: its header, leaves and signature, and its certified receipt."""

    trust: Trust
    header: BatchHeader
    leaves: tuple[bytes, ...]
    signature: bytes
    receipt: BatchReceipt
    shown: tuple[BlockProof, int]  # the receipt's block, and which of the proof's leaves it is
    anchor: Anchor

    @property
    def block(self) -> Header:
        return self.shown[0].header

    def proof(self, index: int, message: batches.Message | None) -> PublicationProof:
        """For a third party; without the message it proves the place of the whole batch, and shows nothing of it."""
        made = PublicationProof.of(
            (self.receipt, narrowed(*self.shown), self.anchor),
            (self.header, leaves.root(self.leaves), self.signature),
            None if message is None else MessageProof(message, leaves.prove(self.leaves, index)),
        )
        try:
            # Under `quorum` and `trusted` it was not looked at before.
            check_publication(made, self.trust)
        except ProofError as error:
            raise ParleyError(f"What the brokers showed proves nothing: {error}.") from error
        return made


@dataclass(frozen=True, slots=True)
class _Place:
    """Where and by whom something was published. `time` is the block's, in ms since 1970."""

    topic: str
    partition: int
    offset: int
    height: int
    time: int
    publisher: str
    verified: Level


@dataclass(frozen=True, slots=True)
class Receipt(_Place):
    """That a message was published, and where. `time` is the block's, in ms since 1970."""

    _message: batches.Message = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)
    _evidence: Callable[[], Evidence] = field(repr=False, compare=False)

    def proof(self, *, message: bool = True) -> PublicationProof:
        """What anybody can check with the genesis file alone; without the message, it is of the whole batch."""
        return self._evidence().proof(self._index, self._message if message else None)

    def save(self, path: str | os.PathLike[str], *, message: bool = True) -> None:
        """Write the proof to a new file that only its owner can read, because it holds the message."""
        save_proof(self.proof(message=message), path)


@dataclass(frozen=True, slots=True)
class Receipts(_Place):
    """That the messages of one batch were published, from `offset` on in the order of their sending.

    It is as long as the batch, and `receipts[index]` is the receipt of one message, made when it is asked for.
    """

    _messages: tuple[batches.Message, ...] = field(repr=False, compare=False)
    _evidence: Callable[[], Evidence] = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self._messages)

    def __getitem__(self, index: int) -> Receipt:
        at = range(len(self._messages))[index]
        return Receipt(
            self.topic,
            self.partition,
            self.offset + at,
            self.height,
            self.time,
            self.publisher,
            self.verified,
            self._messages[at],
            at,
            self._evidence,
        )

    def __iter__(self) -> Iterator[Receipt]:
        return (self[index] for index in range(len(self)))


@dataclass(frozen=True, slots=True)
class OperationReceipt:
    """That an operation took effect, and at which height. `time` is the block's, in ms since 1970."""

    operation: Operation
    height: int
    time: int
    client: str
    verified: Level
    _receipt: BatchReceipt = field(repr=False, compare=False)
    _proof: Callable[[], OperationProof] = field(repr=False, compare=False)

    @property
    def outcome(self) -> Outcome:
        """What the operation gave, as its module declares it: `Done` if there is nothing to say."""
        return self._receipt.outcome

    def given(self, kind: type[T]) -> T | None:
        """The outcome, if it is of this kind."""
        return self._receipt.given(kind)

    def proof(self) -> OperationProof:
        """What anybody can check with the genesis file and the application's modules."""
        return self._proof()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the proof to a new file that only its owner can read."""
        save_proof(self.proof(), path)


class Origin(Struct, frozen=True):
    """What all messages of a batch have in common: where they stand, who published them, and when."""

    topic: str
    topic_id: Position
    partition: int
    publisher: str
    height: int
    time: int
    verified: Level


class Message(Struct, frozen=True, eq=False, gc=False):
    """One publication as its reader sees it. `digest` is its leaf, which covers what was published, sealed if it was.

    `ps` is its place in the subscription's order, None if it was read by offset. An `empty` one is redacted: `rule` hides
    it from this reader. It has a place and a publisher; to ask for its key, value, tags or headers raises `Redacted`. Of an
    `unopened` one the topic's codec cannot tell key, value and headers, so that asking for them raises `Undecryptable`.
    """

    offset: int
    ps: int | None
    digest: bytes
    # Small, because there are so many: what is read rarely, or is the same for others, stands behind these.
    _origin: Origin
    _header: MessageHeader
    _content: batches.Message | Withheld
    _index: int = 0
    _evidence: Evidence | None = None
    _payload: bytes | Unopened | None = None  # as it was opened; None: as it was published

    @property
    def topic(self) -> str:
        return self._origin.topic

    @property
    def topic_id(self) -> Position:
        """Where the topic was created: a topic that was made again under the same name has another one."""
        return self._origin.topic_id

    @property
    def partition(self) -> int:
        return self._origin.partition

    @property
    def publisher(self) -> str:
        return self._origin.publisher

    @property
    def height(self) -> int:
        return self._origin.height

    @property
    def time(self) -> int:
        return self._origin.time

    @property
    def verified(self) -> Level:
        return self._origin.verified

    @property
    def value(self) -> bytes:
        content, payload = self._content, self._payload
        if isinstance(content, Withheld):
            raise self._redacted(content)
        if isinstance(payload, Unopened):
            raise self._undecryptable(payload)
        return content.payload if payload is None else payload

    @property
    def key(self) -> bytes | None:
        return self._opened_header().key

    @property
    def tags(self) -> Mapping[str, Value]:
        """The tags; of an `unopened` message those that stand in the clear."""
        if isinstance(self._content, Withheld):
            raise self._redacted(self._content)
        return dict(self._header.tags)

    @property
    def headers(self) -> Mapping[str, bytes]:
        return dict(self._opened_header().headers)

    @property
    def published(self) -> batches.Message:
        """As it was published, and as its proof shows it: sealed, if the topic's payload setting seals."""
        if isinstance(self._content, Withheld):
            raise self._redacted(self._content)
        return self._content

    @property
    def unopened(self) -> str | None:
        """Why the topic's codec cannot open it; None: it can, or there is nothing to open."""
        return self._payload.reason if isinstance(self._payload, Unopened) else None

    @property
    def rule(self) -> str:
        return self._content.rule

    @property
    def empty(self) -> bool:
        return isinstance(self._content, Withheld)

    def text(self) -> str:
        return self.value.decode()

    def json(self) -> Any:  # noqa: ANN401 - JSON is anything
        return json.loads(self.value)

    def proof(self) -> PublicationProof:
        """For a third party. Messages of a live stream come without their batch: read them again with `client.read`."""
        if self._evidence is None:
            raise ParleyError(
                f"This message came by a live stream, without the batch that proves it; get it by "
                f"client.read({self.topic!r}, {self.offset}, partition={self.partition})."
            )
        content = self._content
        return self._evidence.proof(self._index, None if isinstance(content, Withheld) else content)

    def __eq__(self, other: object) -> bool:
        """How brokers are compared: the leaf stands for what it covers, and how it was verified is one's own affair."""
        return self._identity() == other._identity() if isinstance(other, Message) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        where = f"{self.topic!r}, partition={self.partition}, offset={self.offset}, ps={self.ps}"
        if self.empty:
            what = "empty"
        else:
            what = "unopened" if self.unopened else f"key={self.key!r}, value={self.value!r}"
        return f"Message({where}, {what}, publisher={self.publisher!r})"

    def _opened_header(self) -> MessageHeader:
        if isinstance(self._content, Withheld):
            raise self._redacted(self._content)
        if isinstance(self._payload, Unopened):
            raise self._undecryptable(self._payload)
        return self._header

    def _undecryptable(self, why: Unopened) -> Undecryptable:
        return Undecryptable(self.topic, self.partition, self.offset, why.reason)

    def _redacted(self, content: Withheld) -> Redacted:
        return Redacted(self.topic, self.partition, self.offset, content.rule)

    def _identity(self) -> tuple[object, ...]:
        origin = self._origin
        place = (origin.topic, origin.partition, self.offset, self.ps)
        return (*place, origin.publisher, origin.height, origin.time, self.empty, self.digest)


def wanted(
    messages: Iterable[Message], withheld: Withholding, on_undecryptable: OnUndecryptable
) -> list[Message]:
    """The messages that a reader with these choices gets."""
    redacted, unopened = withheld == "yield", on_undecryptable == "raise"
    return [one for one in messages if (redacted if one.empty else unopened or one.unopened is None)]


def require_choices(withheld: str, on_undecryptable: str) -> None:
    if withheld not in get_args(Withholding):
        raise ParleyError(f"withheld is 'skip' or 'yield', not {withheld!r}.")
    if on_undecryptable not in get_args(OnUndecryptable):
        raise ParleyError(f"on_undecryptable is 'raise' or 'skip', not {on_undecryptable!r}.")
