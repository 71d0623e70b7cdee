"""What brokers say to each other about batches."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.consensus.types import MAX_BATCHES, Hash

MAX_BATCH_BYTES = 1024 * 1024


class BatchMessage(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """A whole batch: announced by its entry broker, or sent because it was asked for."""

    data: Annotated[bytes, Meta(min_length=1, max_length=MAX_BATCH_BYTES)]


class BatchesRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """Send me these batches, those of one block; each that is held comes back as a `BatchMessage`."""

    digests: Annotated[tuple[Hash, ...], Meta(min_length=1, max_length=MAX_BATCHES)]
