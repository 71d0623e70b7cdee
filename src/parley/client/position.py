"""Where a subscriber stands, to be saved and given back: after a restart it goes on there, without gap or double (P6).

It says what the application was handed, not what was read ahead. By offset it always holds; while its order lives, the
order goes on at its very number.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from parley.client.errors import Invalid
from parley.model.names import MAX_PARTITIONS

__all__ = ["PartitionPosition", "Position"]

MAX_FILE = 64 * 1024
MAX_TEXT = 4096

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class PartitionPosition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first offset that was not handed out, and its place in the order unless it is read by offset."""

    partition: _Number
    offset: _Number
    incarnation: tuple[_Number, _Number] | None = None
    ps: _Number | None = None

    def __post_init__(self) -> None:
        if (self.incarnation is None) != (self.ps is None):
            raise ValueError("an incarnation and a ps belong together")


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """Made by `Subscription.position`, given back as `start` to `Client.subscribe`."""

    chain: _Text  # the network, in hexadecimal digits
    shard: _Number  # the ledger
    epoch: _Number  # whose committee certified it
    topic: _Text
    topic_id: tuple[_Number, _Number]  # a topic that was made again under the same name has another one
    where: _Text  # the constraint in its canonical form
    partitions: Annotated[tuple[PartitionPosition, ...], Meta(max_length=MAX_PARTITIONS)]

    def __post_init__(self) -> None:
        if len({one.partition for one in self.partitions}) != len(self.partitions):
            raise ValueError("a partition is named twice")

    def require(self, chain: bytes, topic: str, where: str) -> None:
        """Raises `Invalid` if it is a position in something else."""
        for mine, asked, what in (
            (self.chain, chain.hex(), "network"),
            (self.topic, topic, "topic"),
            (self.where, where, "constraint"),
        ):
            if mine != asked:
                raise Invalid("other_position", what=what, given=mine, asked=asked)

    def require_ledger(self, shard: int, epoch: int) -> None:
        """Raises `Invalid` unless it is a position in this ledger, of this epoch or an earlier one (P28)."""
        if self.shard != shard:
            raise Invalid("other_position", what="shard", given=str(self.shard), asked=str(shard))
        if self.epoch > epoch:
            raise Invalid("position_of_epoch", given=self.epoch, epoch=epoch)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Raises `Invalid` for what is no position."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise Invalid("no_position", fault=str(error)) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Put it in the place of what the file held before, as a whole or not at all."""
        place = Path(path)
        # A name that no other program can have taken or linked elsewhere before, readable by its owner only.
        descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(f"{self.to_json()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What `save` has written. Raises `Invalid` for anything else."""
        with Path(path).open("rb") as file:
            return cls.from_json(file.read(MAX_FILE))
