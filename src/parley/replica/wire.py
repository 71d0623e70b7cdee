"""The one decoder of what brokers send each other: size, shape and canonical form are checked before anything else."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import UnionType
from typing import Union, get_args, get_origin

import msgspec

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Certificates, Proposal, Timeout, Vote
from parley.mempool.messages import MAX_BATCH_BYTES, BatchesRequest, BatchMessage
from parley.sync.messages import (
    BlocksRequest,
    BlocksResponse,
    EntriesRequest,
    NodesRequest,
    Records,
    RecordsRequest,
    RecoveryAnswer,
    RecoveryRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
    Values,
    ValuesRequest,
)

MAX_MESSAGE = MAX_BATCH_BYTES + 64 * 1024

WireMessage = (
    Proposal
    | Vote
    | Timeout
    | Certificates
    | BatchMessage
    | BatchesRequest
    | BlocksRequest
    | BlocksResponse
    | RecoveryRequest
    | RecoveryAnswer
    | SnapshotRequest
    | SnapshotOffer
    | NodesRequest
    | SnapshotNodes
    | EntriesRequest
    | SnapshotEntries
    | RecordsRequest
    | Records
    | ValuesRequest
    | Values
)

encode: Callable[[msgspec.Struct], bytes] = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[WireMessage] = msgspec.msgpack.Decoder(WireMessage)
_kinds = {kind.__struct_config__.tag: kind for kind in get_args(WireMessage)}


def decode(data: bytes) -> WireMessage:
    """Raises `Refused` for anything but the canonical encoding of a known message."""
    if len(data) > MAX_MESSAGE:
        raise Refused(Reason.OVERSIZED, f"message of {len(data)} bytes; {MAX_MESSAGE} are allowed")
    try:
        message = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(Reason.MALFORMED, _explain(data, str(error))) from None
    if encode(message) != data:
        raise Refused(Reason.NOT_CANONICAL, type(message).__name__)
    return message


def kind(data: bytes) -> str:
    """The name of a message's kind, as far as it has one."""
    found = _kinds.get(data[1]) if len(data) > 1 else None
    return "unknown" if found is None else found.__name__


def _explain(data: bytes, error: str) -> str:
    """The decoder's words with the field's name instead of its position: `Proposal.header.view`, not `$[1][5]`."""
    found = re.search(r"`\$((?:\[(?:\d+|\.\.\.)\])*)`", error)
    kind = _kinds.get(data[1]) if len(data) > 1 else None  # an array's first element, a small integer
    if found is None or kind is None:
        return error
    name = kind.__name__
    inside: object = kind
    for step in re.findall(r"\[(\d+|\.\.\.)\]", found[1]):
        if step == "..." or not (isinstance(inside, type) and issubclass(inside, msgspec.Struct)):
            name, inside = f"{name}[{step}]", _bare(next(iter(get_args(inside)), object))
            continue
        index = int(step) - (inside.__struct_config__.tag is not None)
        fields = msgspec.structs.fields(inside)
        if not 0 <= index < len(fields):
            return error
        name, inside = f"{name}.{fields[index].name}", _bare(fields[index].type)
    return error.replace(found[0], name)


def _bare(kind: object) -> object:
    """The type without its bounds and without None."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(option for option in get_args(kind) if option is not type(None))
    return _bare(get_args(kind)[0]) if hasattr(kind, "__metadata__") else kind
