"""Malformed, oversized, stale, future, replayed and wrongly signed messages are refused by name and change nothing."""

from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch
from tests.consensus.world import Solo, only, reasons

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Message, Refuse, ReportMisbehaviour
from parley.consensus.machine import MAX_AHEAD, WINDOW
from parley.consensus.types import Block, Certificates, Governance, Proposal, Timeout, Vote
from parley.crypto.qc import Aggregate
from parley.replica import wire

C = Committee()
FOREIGN = Committee(epoch=1)
B1, B2, B3, B4 = C.chain(1, 2, 3, 4)
FULL = C.block(B4, 5, (batch(1), batch(2)))
FORGED = Aggregate(b"\x07", bytes(48))
VIEW = 4


def machine() -> Solo:
    """Member 0 in view 4, with block 2 committed, votes and a timeout of the view, and two blocks above the root."""
    started = Solo(C, 0)
    for block in (B1, B2, B3, B4):
        started.propose(block)
    started.receive(C.vote(B4, 3))
    started.receive(C.timeout(VIEW, 3, C.qc(B3)))
    assert (started.machine.view, started.machine.root) == (VIEW, B2)
    return started


def proposal(**fields: object) -> Proposal:
    """Signed by its proposer, or by member 1 if there is none of that number."""
    header = replace(C.block(B4, 5, (batch(1),)).header, **fields)
    signer = header.proposer if header.proposer < C.size else 1
    return C.proposal(Block(header, (batch(1),)), signer)


def timeout(**fields: object) -> Timeout:
    return replace(C.timeout(VIEW, 1, C.qc(B3)), **fields)


def vote(**fields: object) -> Vote:
    return replace(C.vote(B4, 1), **fields)


BAD: dict[str, tuple[Message, Reason]] = {
    # wrongly signed
    "proposal signed by another": (C.proposal(FULL, signer=2), Reason.BAD_SIGNATURE),
    "proposal with an empty signature": (replace(C.proposal(FULL), signature=b""), Reason.BAD_SIGNATURE),
    "proposal of nobody": (proposal(proposer=9), Reason.UNKNOWN_SIGNER),
    "vote signed by another": (vote(signer=2), Reason.BAD_SIGNATURE),
    "vote of nobody": (vote(signer=4), Reason.UNKNOWN_SIGNER),
    "vote of nobody by far": (vote(signer=65_535), Reason.UNKNOWN_SIGNER),
    "timeout signed by another": (timeout(signer=2), Reason.BAD_SIGNATURE),
    "timeout of nobody": (timeout(signer=4), Reason.UNKNOWN_SIGNER),
    "timeout with a forged vote": (timeout(vote=vote(signature=bytes(16))), Reason.BAD_SIGNATURE),
    # certificates
    "proposal with a forged QC": (proposal(justify=replace(C.qc(B4), votes=FORGED)), Reason.BAD_SIGNATURE),
    "proposal with too small a QC": (proposal(justify=C.qc(B4, (0, 1))), Reason.TOO_FEW_SIGNERS),
    "proposal with an odd bitmap": (
        proposal(justify=replace(C.qc(B4), votes=Aggregate(b"\xff", bytes(48)))),
        Reason.BAD_BITMAP,
    ),
    "proposal on another block than its QC's": (proposal(parent=B3.id), Reason.BAD_CERTIFICATE),
    "timeout with a forged QC": (timeout(high_qc=replace(C.qc(B3), votes=FORGED)), Reason.BAD_SIGNATURE),
    "timeout with another's vote": (timeout(vote=C.vote(B4, 2)), Reason.BAD_CERTIFICATE),
    "certificates with a forged QC": (
        Certificates(replace(C.qc(B4), votes=FORGED), None),
        Reason.BAD_SIGNATURE,
    ),
    "certificates with a forged TC": (
        Certificates(C.qc(B3), replace(C.tc(4, 3), timeouts=FORGED)),
        Reason.BAD_SIGNATURE,
    ),
    "certificates with a TC that claims a QC that is not shown": (
        Certificates(C.qc(B2), C.tc(4, (0, 0, 3))),
        Reason.BAD_CERTIFICATE,
    ),
    "certificates with a TC of other views": (
        Certificates(C.qc(B3), replace(C.tc(4, 3), qc_views=(3, 3))),
        Reason.BAD_CERTIFICATE,
    ),
    # of another world
    "proposal of another version": (proposal(version=2), Reason.WRONG_VERSION),
    "proposal of another chain": (proposal(chain=bytes(32)), Reason.WRONG_CHAIN),
    "proposal of another shard": (proposal(shard=1), Reason.WRONG_CHAIN),
    "proposal of another epoch": (proposal(epoch=1), Reason.WRONG_EPOCH),
    "proposal of another governance": (proposal(governance=Governance(1, bytes(32))), Reason.BAD_GOVERNANCE),
    "vote of another epoch": (vote(epoch=1), Reason.WRONG_EPOCH),
    "timeout of another epoch": (timeout(epoch=1), Reason.WRONG_EPOCH),
    "certificates of another epoch": (
        Certificates(FOREIGN.qc(FOREIGN.block(view=9)), None),
        Reason.WRONG_EPOCH,
    ),
    # stale
    "proposal of a committed view": (C.proposal(C.block(batches=(batch(9),))), Reason.STALE),
    "vote of an old view": (C.vote(B3, 1), Reason.STALE),
    "timeout of an old view": (C.timeout(3, 1, C.qc(B2)), Reason.STALE),
    "known certificates": (Certificates(C.qc(B3), None), Reason.STALE),
    "certificates with an old TC": (Certificates(C.qc(B3), C.tc(3, 2)), Reason.STALE),
    # future
    "vote far ahead": (C.vote(B4, 1, view=VIEW + WINDOW + 1), Reason.FUTURE),
    "vote at the end of time": (C.vote(B4, 1, view=2**62 - 1), Reason.FUTURE),
    "proposal of view + 1000": (proposal(view=VIEW + 1_000), Reason.NOT_ENTITLED),
    "timeout of view + 1000": (C.timeout(VIEW + 1_000, 1, C.qc(B3), C.tc(5, 3)), Reason.NOT_ENTITLED),
    "timeout with a TC that it does not need": (timeout(tc=C.tc(3, 2)), Reason.NOT_ENTITLED),
    "proposal from the future": (proposal(time=MAX_AHEAD + 1), Reason.BAD_TIME),
    # replayed
    "proposal again": (C.proposal(B4), Reason.REPLAYED),
    "vote again": (C.vote(B4, 3), Reason.REPLAYED),
    "timeout again": (C.timeout(VIEW, 3, C.qc(B3)), Reason.REPLAYED),
    # against the chain
    "proposal of another than the leader": (proposal(proposer=2), Reason.NOT_LEADER),
    "proposal of a wrong height": (proposal(height=9), Reason.BAD_HEIGHT),
    "proposal of its parent's time": (proposal(time=B4.header.time), Reason.BAD_TIME),
    "proposal of a wrong executed height": (proposal(executed_height=0), Reason.BAD_EXECUTED_HEIGHT),
    "proposal without its batches": (replace(proposal(), batches=()), Reason.BAD_BATCHES),
    "proposal with a batch twice": (
        C.proposal(C.block(B4, 5, (batch(1), batch(1)))),
        Reason.BAD_BATCHES,
    ),
    # contradictions
    "second proposal": (C.proposal(C.block(B3, 4, time=99)), Reason.EQUIVOCATION),
    "second vote": (C.vote(B3, 3, view=VIEW), Reason.EQUIVOCATION),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_by_name_and_changes_nothing(case: str) -> None:
    message, expected = BAD[case]
    replica = machine()
    before, inside = replica.observable(), replica.inside()
    effects = replica.receive(message)
    assert reasons(effects) == [expected]
    assert all(isinstance(effect, Refuse | ReportMisbehaviour) for effect in effects)
    assert replica.observable() == before
    if not only(ReportMisbehaviour, effects):  # an accusation is remembered, so that it is made once
        assert replica.inside() == inside


@pytest.mark.parametrize("case", BAD)
def test_after_bad_input_the_good_proposal_is_accepted_as_ever(case: str) -> None:
    replica, calm = machine(), machine()
    replica.receive(BAD[case][0])
    assert replica.propose(FULL) == calm.propose(FULL)


GOOD: list[Message] = [
    C.proposal(FULL),
    C.vote(B4, 1),
    C.timeout(VIEW, 1, C.qc(B3), vote=C.vote(B4, 1)),
    C.timeout(7, 2, C.qc(B4)),
    Certificates(C.qc(B4), C.tc(5, 4)),
]


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_the_messages_that_are_damaged_below_are_good(message: Message) -> None:
    assert reasons(machine().receive(message)) == []
    assert wire.decode(wire.encode(message)) == message


def refusal(action: Callable[[], object]) -> Reason:
    with pytest.raises(Refused) as refused:
        action()
    return refused.value.reason


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_a_message_cut_anywhere_is_malformed(message: Message) -> None:
    data = wire.encode(message)
    found = {refusal(partial(wire.decode, data[:length])) for length in range(len(data))}
    assert found == {Reason.MALFORMED}


@pytest.mark.parametrize("message", GOOD, ids=lambda message: type(message).__name__)
def test_a_message_with_something_behind_it_is_malformed(message: Message) -> None:
    assert refusal(lambda: wire.decode(wire.encode(message) + b"\xc0")) is Reason.MALFORMED


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x00", b"\x91\x63", b"\xff" * 100, b"\x91" * 5_000])
def test_garbage_is_malformed(data: bytes) -> None:
    assert refusal(lambda: wire.decode(data)) is Reason.MALFORMED


def test_a_message_larger_than_the_limit_is_refused_unread() -> None:
    assert refusal(lambda: wire.decode(bytes(wire.MAX_MESSAGE + 1))) is Reason.OVERSIZED


def test_a_second_encoding_of_a_message_is_refused() -> None:
    """The view as a 64-bit integer though a byte would do."""
    raw = msgspec.msgpack.decode(wire.encode(C.vote(B4, 1)))
    head, view = msgspec.msgpack.encode(raw[:2]), msgspec.msgpack.encode(raw[2])
    data = wire.encode(C.vote(B4, 1))
    long = data[: len(head)] + b"\xcf" + raw[2].to_bytes(8, "big") + data[len(head) + len(view) :]
    assert msgspec.msgpack.decode(long) == raw
    assert refusal(lambda: wire.decode(long)) is Reason.NOT_CANONICAL


@settings(derandomize=True, max_examples=300, deadline=None)
@given(number=st.integers(0, len(GOOD) - 1), position=st.integers(0, 2**16), change=st.integers(1, 255))
def test_t6_a_message_with_any_byte_changed_is_refused_and_changes_nothing(
    number: int, position: int, change: int
) -> None:
    data = bytearray(wire.encode(GOOD[number]))
    data[position % len(data)] ^= change
    replica = machine()
    before = replica.inside()
    try:
        message = wire.decode(bytes(data))
    except Refused as refused:
        found = [refused.reason]
    else:
        assert isinstance(message, Proposal | Vote | Timeout | Certificates)
        effects = replica.receive(message)
        found = reasons(effects)
        assert len(effects) == 1
    assert len(found) == 1
    assert replica.inside() == before
