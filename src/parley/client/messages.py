"""What an application gets: messages and receipts, with plain attributes and a proof where there is one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from parley.client.errors import ParleyError
from parley.client.narrowing import narrowed
from parley.consensus.types import Header
from parley.crypto import merkle
from parley.ledger.proofs import Anchor, BlockProof, ProofError, Trust
from parley.ledger.publication import MessageProof, PublicationProof, check_publication, encode_publication
from parley.model import batches
from parley.model.batches import BatchHeader
from parley.model.names import Value
from parley.model.receipts import BatchReceipt

__all__ = ["Evidence", "Level", "Message", "Receipt"]

Level = Literal["certified", "quorum", "trusted"]


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
            (self.header, merkle.root(self.leaves), self.signature),
            None if message is None else MessageProof(message, merkle.prove(self.leaves, index)),
        )
        try:
            # Under `quorum` and `trusted` nobody has looked at it before.
            check_publication(made, self.trust)
        except ProofError as error:
            raise ParleyError(f"What the brokers showed proves nothing: {error}.") from error
        return made


@dataclass(frozen=True, slots=True)
class Receipt:
    """That a message was published, and where. `time` is the block's, in ms since 1970."""

    topic: str
    partition: int
    offset: int
    height: int
    time: int
    publisher: str
    verified: Level
    _message: batches.Message = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)
    _evidence: Callable[[], Evidence] = field(repr=False, compare=False)

    def proof(self, *, message: bool = True) -> PublicationProof:
        """What anybody can check with the genesis file alone; without the message, it is of the whole batch."""
        return self._evidence().proof(self._index, self._message if message else None)

    def save(self, path: str | os.PathLike[str], *, message: bool = True) -> None:
        """Write the proof to a new file that only its owner can read, because it holds the message."""
        descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_publication(self.proof(message=message)))


@dataclass(frozen=True, slots=True)
class Message:
    """One publication as its reader sees it. `digest` is its leaf, which covers key, value, tags, headers and rule.

    `ps` is its place in the subscription's order, None if it was read by offset. An `empty` one is hidden from this
    reader by `rule`: it has a place and a publisher, but neither key, value, tags nor headers.
    """

    topic: str
    partition: int
    offset: int
    ps: int | None
    key: bytes | None = field(compare=False)
    value: bytes = field(compare=False)
    tags: Mapping[str, Value] = field(compare=False)
    headers: Mapping[str, bytes] = field(compare=False)
    rule: str = field(compare=False)
    publisher: str
    height: int
    time: int
    verified: Level = field(compare=False)
    empty: bool
    digest: bytes = field(repr=False)
    _content: batches.Message | None = field(repr=False, compare=False)
    _index: int = field(default=0, repr=False, compare=False)
    _evidence: Evidence | None = field(default=None, repr=False, compare=False)

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
        return self._evidence.proof(self._index, self._content)
