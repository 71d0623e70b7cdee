"""What a member that is behind asks, and what it gets."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.consensus.types import QC, U64, Hash
from parley.ledger.layout import StoredBlock

__all__ = ["MAX_BLOCKS", "BlocksRequest", "BlocksResponse"]

MAX_BLOCKS = 64


class BlocksRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """Send me the blocks above height `above` on the way to `target`, oldest first, as many as fit."""

    target: Hash
    above: U64


class BlocksResponse(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """A chain; `qc` certifies its last block unless that is the target, whose QC the asker has."""

    target: Hash
    blocks: Annotated[tuple[StoredBlock, ...], Meta(max_length=MAX_BLOCKS)]
    qc: QC | None
