"""What applying a batch gave, as a leaf of the receipts tree, whose root the history certifies (P2).

A block's leaves are the receipts of its batches in the order of their application, then receipts of batches of earlier
blocks that were finished in this one, then what else the application's modules certify. Which outcomes and leaves there
are follows from the application, and so does their decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Generic

import msgspec
from msgspec import Struct
from typing_extensions import TypeVar

from parley.model.batches import BatchHeader
from parley.model.codec import DECODE_ERRORS
from parley.model.names import U32, U64, Hash, Key, Position, word_of
from parley.model.refusals import DUPLICATE, OK, Fields, Refusal, Refused, Word, class_of
from parley.model.texts import render

T = TypeVar("T")


class Outcome(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag=word_of):
    """What one ordered batch did. Modules derive theirs; encodings name them by their class."""

    @property
    def code(self) -> str:
        """What programs go by: `Ok`, `Duplicate`, or the code of a refusal."""
        return OK

    @property
    def final(self) -> bool:
        """If not, the batch may still be applied when it is ordered again (P3)."""
        return True

    @property
    def decides(self) -> bool:
        """If not, another receipt of the batch may follow."""
        return True

    @property
    def rank(self) -> int:
        """Of several receipts of a batch the one of the highest rank is the one to be found."""
        return 1

    @property
    def place(self) -> int | None:
        """Where the body stands, as the module knows it that gave the outcome, such as an offset; None: nowhere."""
        return None

    @property
    def detail(self) -> str | None:
        """What there is to say of it to a person."""
        return None


class Done(Outcome, frozen=True):
    """An operation took effect."""


class Duplicate(Outcome, frozen=True):
    """This very batch was applied before, at this place: (height, leaf of that block)."""

    original: Position

    @property
    def code(self) -> str:
        return DUPLICATE

    @property
    def final(self) -> bool:
        return False

    @property
    def rank(self) -> int:
        return 0

    @property
    def detail(self) -> str:
        height, position = self.original
        return render(DUPLICATE, "", {"height": height, "position": position})


class Rejected(Outcome, frozen=True, tag="refused"):
    """The batch was refused: nothing changed but, perhaps, its session's sequence. `next_sequence` is the next one now."""

    code: Word
    reason: Word
    fields: Fields
    next_sequence: U64

    @classmethod
    def of(cls, refused: Refused, next_sequence: int) -> Rejected:
        data = refused.data
        return cls(data.code, data.reason, data.fields, next_sequence)

    @property
    def final(self) -> bool:
        return class_of(self.code).final

    @property
    def rank(self) -> int:
        return int(self.final)

    @property
    def detail(self) -> str:
        return self.refusal.text

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.code, self.reason, self.fields)


O_co = TypeVar("O_co", bound=Outcome, default=Outcome, covariant=True)


class Leaf(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True, tag=word_of):
    """One leaf of a block's receipts tree."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    def row(self) -> dict[str, object]:
        """Its columns in the ledger table of receipts, besides its place and its bytes."""
        return {}


class BatchReceipt(
    Leaf, Generic[O_co], frozen=True, array_like=True, forbid_unknown_fields=True, tag="batch"
):
    """What one ordered batch did. `client` is "organisation/name" as the registry had it, or empty."""

    digest: Hash
    publisher: Key
    client: str
    topic: str
    topic_id: Position
    partition: U32
    count: U32
    outcome: O_co

    @property
    def code(self) -> str:
        return self.outcome.code

    @property
    def rejected(self) -> Rejected | None:
        return self.given(Rejected)

    @property
    def is_done(self) -> bool:
        """Whether it took effect, now for the first time."""
        return self.code == OK

    @property
    def outcome_name(self) -> str:
        return str(self.outcome.__struct_config__.tag)

    def given(self, kind: type[T]) -> T | None:
        """The outcome, if it is of this kind."""
        outcome: object = self.outcome
        return outcome if isinstance(outcome, kind) else None

    def fits(self, batch: BatchHeader) -> bool:
        """Whether it says of a batch what the batch's header says."""
        said = (self.publisher, self.topic, self.topic_id, self.partition, self.count)
        return said == (batch.publisher, batch.topic, batch.topic_id, batch.partition, batch.count)

    def row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "digest": self.digest,
            "publisher": self.client,
            "publisher_key": self.publisher,
            "count": self.count,
            "code": self.code,
            "detail": self.outcome.detail,
            "first_offset": self.outcome.place,
        }


class LeafDecoder:
    """Decodes the leaves of one application."""

    def __init__(self, outcomes: Sequence[type[Outcome]], leaves: Sequence[type[Leaf]]) -> None:
        receipt: Any = BatchReceipt[reduce(or_, outcomes)]  # type: ignore[misc]
        self._decoder: msgspec.msgpack.Decoder[Leaf] = msgspec.msgpack.Decoder(reduce(or_, leaves, receipt))

    def __call__(self, data: bytes) -> Leaf:
        """Raises `ValueError` for anything but the one canonical form of a leaf."""
        try:
            leaf = self._decoder.decode(data)
        except DECODE_ERRORS as error:
            raise ValueError(str(error)) from None
        if encode_leaf(leaf) != data:
            raise ValueError("the leaf is not in its one canonical encoding")
        return leaf


def receipt_of(leaf: object) -> BatchReceipt | None:
    """The leaf, if it is the receipt of a batch."""
    return leaf if isinstance(leaf, BatchReceipt) else None


encode_leaf = msgspec.msgpack.Encoder().encode
HOST_OUTCOMES: tuple[type[Outcome], ...] = (Done, Duplicate, Rejected)  # of every application
