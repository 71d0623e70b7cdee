"""The one decoder of what brokers send each other: size, shape and canonical form are checked before anything else."""

from __future__ import annotations

import msgspec

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Certificates, Proposal, Timeout, Vote
from parley.mempool.messages import MAX_BATCH_BYTES, BatchesRequest, BatchMessage
from parley.sync.messages import BlocksRequest, BlocksResponse

__all__ = ["MAX_MESSAGE", "WireMessage", "decode", "encode"]

MAX_MESSAGE = MAX_BATCH_BYTES + 64 * 1024

WireMessage = (
    Proposal | Vote | Timeout | Certificates | BatchMessage | BatchesRequest | BlocksRequest | BlocksResponse
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[WireMessage] = msgspec.msgpack.Decoder(WireMessage)


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> WireMessage:
    """Raises `Refused` for anything but the canonical encoding of a known message."""
    if len(data) > MAX_MESSAGE:
        raise Refused(Reason.OVERSIZED, f"message of {len(data)} bytes; {MAX_MESSAGE} are allowed")
    try:
        message = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(Reason.MALFORMED, str(error)) from None
    if not isinstance(message, BatchMessage) and _encoder.encode(message) != data:
        raise Refused(Reason.NOT_CANONICAL, type(message).__name__)
    return message
