"""One message, one encoding: everything else is refused with its reason, before anything looks at it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replica.driver import Committee

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import (
    MAX_BATCHES,
    QC,
    TC,
    Certificates,
    Proposal,
    Timeout,
    Vote,
    genesis_block,
)
from parley.crypto.qc import Aggregate
from parley.ledger.layout import StoredBlock
from parley.mempool.messages import MAX_BATCH_BYTES, BatchesRequest, BatchMessage
from parley.replica import wire
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse

ID = bytes(range(32))
QC_ = QC(0, 5, ID, Aggregate(b"\x07", bytes(48)))
TC_ = TC(0, 6, (4, 5, 5), Aggregate(b"\x07", bytes(48)))
VOTE = Vote(0, 300, ID, 3, bytes(16))
HEADER = genesis_block(Committee().instance, ID, 0).header

MESSAGES: dict[str, wire.WireMessage] = {
    "vote": VOTE,
    "timeout": Timeout(0, 7, QC_, TC_, VOTE, 2, bytes(16)),
    "bare timeout": Timeout(0, 6, QC_, None, None, 2, bytes(16)),
    "proposal": Proposal(HEADER, (ID, bytes(32)), bytes(64)),
    "certificates": Certificates(QC_, TC_),
    "bare certificates": Certificates(QC_, None),
    "batch": BatchMessage(b"batch"),
    "batches request": BatchesRequest((ID,) * 20),
    "blocks request": BlocksRequest(ID, 70_000),
    "blocks response": BlocksResponse(ID, (StoredBlock(HEADER, (ID,)),) * 3, QC_),
    "empty blocks response": BlocksResponse(ID, (), None),
}


def reason(data: bytes) -> Reason:
    with pytest.raises(Refused) as refused:
        wire.decode(data)
    return refused.value.reason


def raw(*items: object) -> bytes:
    return msgspec.msgpack.encode(items)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_decoded_as_it_was_encoded(name: str) -> None:
    message = MESSAGES[name]
    assert wire.decode(wire.encode(message)) == message
    assert type(wire.decode(wire.encode(message))) is type(message)


@pytest.mark.parametrize("name", MESSAGES)
def test_trailing_and_missing_bytes_are_malformed(name: str) -> None:
    data = wire.encode(MESSAGES[name])
    assert reason(data + b"\x00") is Reason.MALFORMED
    assert all(reason(data[:cut]) is Reason.MALFORMED for cut in range(0, len(data), 7))


@pytest.mark.parametrize("tag", [0, 9, 100, -1, "vote", None])
def test_unknown_tags_are_malformed(tag: object) -> None:
    assert reason(raw(tag, 0, 300, ID, 3, bytes(16))) is Reason.MALFORMED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x90",
        b"\x80",
        b"\xc0",
        b"\xc1",
        raw(1),
        raw(1, 0, 300, ID, 3),
        raw(1, 0, 300, ID, 3, bytes(16), 0),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode({"type": 1, "epoch": 0}),
    ],
    ids=["nothing", "empty", "map", "nil", "reserved", "tag", "short", "long", "deep", "vast", "named"],
)
def test_what_has_not_the_shape_of_a_message_is_malformed(data: bytes) -> None:
    assert reason(data) is Reason.MALFORMED


@pytest.mark.parametrize(
    "data",
    [
        raw(1, 0, 300, ID[:31], 3, bytes(16)),
        raw(1, 0, 300, ID + b"\x00", 3, bytes(16)),
        raw(1, 0, 300, ID, 3, bytes(97)),
        raw(1, 0, 300, ID, 2**16, bytes(16)),
        raw(1, 0, 2**62, ID, 3, bytes(16)),
        raw(1, 0, -1, ID, 3, bytes(16)),
        raw(1, 0, 300.0, ID, 3, bytes(16)),
        raw(1, 0, True, ID, 3, bytes(16)),
        raw(1, 0, 300, "x" * 32, 3, bytes(16)),
        raw(5, b""),
        raw(6, []),
        raw(6, [ID] * (MAX_BATCHES + 1)),
        raw(6, [ID, b""]),
        raw(8, ID, [None], None),
        raw(3, None, [], b""),
    ],
)
def test_fields_of_wrong_length_range_or_type_are_malformed(data: bytes) -> None:
    assert reason(data) is Reason.MALFORMED


def test_lists_beyond_their_limits_are_malformed() -> None:
    header = msgspec.to_builtins(HEADER, builtin_types=(bytes,))
    stored = [header, []]
    assert reason(raw(3, header, [ID] * (MAX_BATCHES + 1), b"")) is Reason.MALFORMED
    assert reason(raw(8, ID, [stored] * (MAX_BLOCKS + 1), None)) is Reason.MALFORMED
    assert reason(raw(8, ID, [[header, [ID] * (MAX_BATCHES + 1)]], None)) is Reason.MALFORMED
    assert isinstance(wire.decode(raw(8, ID, [stored] * MAX_BLOCKS, None)), BlocksResponse)


def test_a_batch_is_bounded_by_its_own_limit_and_a_message_by_another() -> None:
    assert isinstance(wire.decode(wire.encode(BatchMessage(bytes(MAX_BATCH_BYTES)))), BatchMessage)
    assert reason(wire.encode(BatchMessage(bytes(MAX_BATCH_BYTES + 1)))) is Reason.MALFORMED
    assert reason(bytes(wire.MAX_MESSAGE)) is Reason.MALFORMED
    assert reason(bytes(wire.MAX_MESSAGE + 1)) is Reason.OVERSIZED
    assert reason(wire.encode(BatchMessage(bytes(wire.MAX_MESSAGE)))) is Reason.OVERSIZED


NON_CANONICAL = {
    "wide batch": b"\xdc\x00\x02" + wire.encode(MESSAGES["batch"])[1:],
    "wide tag": b"\x96\xcc\x01" + wire.encode(VOTE)[2:],
    "signed tag": b"\x96\xd0\x01" + wire.encode(VOTE)[2:],
    "wide integer": wire.encode(VOTE).replace(b"\xcd\x01\x2c", b"\xce\x00\x00\x01\x2c"),
    "signed integer": wire.encode(VOTE).replace(b"\xcd\x01\x2c", b"\xd1\x01\x2c"),
    "wide array": b"\xdc\x00\x06" + wire.encode(VOTE)[1:],
    "wider array": b"\xdd\x00\x00\x00\x06" + wire.encode(VOTE)[1:],
    "wide bytes": wire.encode(VOTE).replace(b"\xc4\x20", b"\xc5\x00\x20"),
    "wider bytes": wire.encode(VOTE).replace(b"\xc4\x20", b"\xc6\x00\x00\x00\x20"),
    "wide list": b"\x92\x06\xdd\x00\x00\x00\x14" + wire.encode(MESSAGES["batches request"])[5:],
}


@pytest.mark.parametrize("name", NON_CANONICAL)
def test_a_second_encoding_of_a_message_is_not_canonical(name: str) -> None:
    data = NON_CANONICAL[name]
    assert data not in [wire.encode(message) for message in MESSAGES.values()]
    assert reason(data) is Reason.NOT_CANONICAL


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_whatever_is_decoded_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        message = wire.decode(data)
    except Refused:
        return
    assert wire.encode(message) == data
