"""What a setting of a dial has to do: seal the messages of a batch, and open those that are read.

Both happen in clients only. Brokers order, store and prove messages as they are published, which is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from parley.model.batches import BatchHeader, Message, MessageHeader
from parley.model.expressions import Constraint
from parley.model.names import Position


@dataclass(frozen=True, slots=True)
class Topic:
    """What codecs know of a topic. `id` is the position of its creation: a topic made again has another one."""

    name: str
    id: Position
    matching: str
    payload: str


@dataclass(frozen=True, slots=True)
class Unopened:
    """A message that cannot be opened, and why: without a full stop, for an error's text."""

    reason: str


class Columns(Protocol):
    """Messages of one topic, column by column. A payload that could not be opened is `Unopened`."""

    @property
    def partitions(self) -> Sequence[int]: ...
    @property
    def headers(self) -> Sequence[bytes]: ...
    @property
    def rules(self) -> Sequence[str]: ...
    @property
    def payloads(self) -> Sequence[bytes | Unopened]: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """Columns that a codec made."""

    partitions: Sequence[int]
    headers: Sequence[bytes]
    rules: Sequence[str]
    payloads: Sequence[bytes | Unopened]


class Codec(Protocol):
    """One setting of a dial. It is chosen by the topic's policy, and works on many messages at a time."""

    @property
    def name(self) -> str:
        """The setting, as policies name it."""

    @property
    def overhead(self) -> int:
        """Bytes by which sealing makes a message longer, at most."""

    def seal(self, topic: Topic, header: BatchHeader, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """What is published for these messages in the batch of this header: as many, with the same rules.

        What may stand in clear is the codec's choice. A batch that gets another place is sealed again, with another
        header. It does not fail for anything that may be published without it.
        """

    async def open(self, topic: Topic, sealed: Columns) -> Columns:
        """What the messages say, in the same order; what cannot be opened is `Unopened` and holds up no other.

        Whatever the payloads and headers hold, it does not fail: a publisher may seal any bytes. It fails with a
        `ParleyError` if what it needs of the network does not come; then it is asked again.
        """


class PayloadCodec(Codec, Protocol):
    """A setting of the payload dial."""


class MatchingCodec(Codec, Protocol):
    """A setting of the matching dial. Its `seal` comes before that of the payload, its `open` after it."""

    def matches(self, constraint: Constraint, header: MessageHeader) -> bool:
        """Whether a message with this published header may be delivered to a subscription with this constraint."""


class AsPublished:
    """What codecs have in common that leave messages as they are: nothing is copied or looked at."""

    overhead = 0

    def seal(self, topic: Topic, header: BatchHeader, messages: tuple[Message, ...]) -> tuple[Message, ...]:  # noqa: ARG002
        return messages

    async def open(self, topic: Topic, sealed: Columns) -> Columns:  # noqa: ARG002
        return sealed
