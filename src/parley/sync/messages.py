"""What a member that is behind asks, and what it gets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.consensus.types import MAX_BATCHES, QC, U64, Block, Hash, Header

__all__ = ["MAX_BLOCKS", "BlocksRequest", "BlocksResponse", "StoredBlock"]

MAX_BLOCKS = 64


class StoredBlock(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A block as it is stored and sent on: its id is computed, never believed."""

    header: Header
    batches: Annotated[tuple[Hash, ...], Meta(max_length=MAX_BATCHES)]

    @classmethod
    def of(cls, block: Block) -> StoredBlock:
        return cls(block.header, block.batches)

    def block(self) -> Block:
        return Block(self.header, self.batches)


class BlocksRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Send me the blocks above height `above` on the way to `target`, oldest first, as many as fit."""

    target: Hash
    above: U64


class BlocksResponse(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """A chain; `qc` certifies its last block unless that is the target, whose QC the asker has."""

    target: Hash
    blocks: Annotated[tuple[StoredBlock, ...], Meta(max_length=MAX_BLOCKS)]
    qc: QC | None
