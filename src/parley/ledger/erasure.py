"""What stays of a batch whose body was erased: who signed which hash, and nothing of what the batch said (P21).

The receipts, the headers and these hashes go on proving what was published where. Salts and rules go with the body,
because a kept hash of something small could be guessed otherwise.
"""

from __future__ import annotations

import msgspec

from parley.model import leaves
from parley.model.batches import Batch, BatchHeader, digest_of, is_signed
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Hash, Signature

MAX_REMAINS = 1024  # bytes


class RemainsError(ValueError):
    """The bytes are not what stays of the batch that they are kept for."""


class Remains(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`root` is the Merkle root of the batch's leaves: with the header it gives the digest that was signed."""

    header: BatchHeader
    root: Hash
    signature: Signature


def remains_of(body: bytes) -> bytes:
    """Of a stored batch, which is not checked: whoever may hold a damaged one checks what comes out."""
    try:
        batch = _batches.decode(body)
    except DECODE_ERRORS as error:
        raise RemainsError(f"the body cannot be read, so nothing of it can stay: {error}") from None
    root = leaves.root(leaves.leaves_of(batch.messages))
    return _encode(Remains(batch.header, root, batch.signature))


def check_remains(data: bytes, name: bytes, chain: bytes) -> Remains:
    """Raises `RemainsError` unless this is what stays of the batch with the digest `name`, signed for this chain."""
    if len(data) > MAX_REMAINS:
        raise RemainsError(f"what stays of a batch has {len(data)} bytes; {MAX_REMAINS} are allowed")
    try:
        remains = _remains.decode(data)
    except DECODE_ERRORS as error:
        raise RemainsError(f"this is not what stays of a batch: {error}") from None
    if _encode(remains) != data:
        raise RemainsError("what stays of the batch is not in its one canonical encoding")
    if remains.header.chain != chain:
        raise RemainsError("the erased batch belongs to another network")
    if digest_of(remains.header, remains.root) != name:
        raise RemainsError("this stayed of another batch than the one it is kept for")
    if not is_signed(remains.header, name, remains.signature):
        raise RemainsError("the erased batch was not signed by the publisher that it names")
    return remains


_encode = msgspec.msgpack.Encoder().encode
_batches = msgspec.msgpack.Decoder(Batch)
_remains = msgspec.msgpack.Decoder(Remains)
