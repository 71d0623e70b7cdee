"""Canonical bytes: what is hashed and signed has one form, frozen here, and covers every field (P2, T4)."""

import msgspec
import pytest
from msgspec.structs import fields, replace
from tests.consensus.chains import Committee, batch, roots_at

from parley.consensus.types import (
    MAX_BATCHES,
    QC,
    TC,
    Certificates,
    Governance,
    Header,
    Instance,
    Proposal,
    Timeout,
    Vote,
    genesis_block,
    genesis_qc,
)
from parley.crypto import merkle
from parley.crypto.qc import Aggregate

INSTANCE = Instance(chain=bytes(range(32)), shard=7, epoch=3, size=4, version=1)
VOTES = Aggregate(b"\x07", bytes(48))
HEADER = Header(
    version=1,
    chain=bytes(range(32)),
    shard=7,
    epoch=3,
    height=5,
    view=9,
    parent=b"\x11" * 32,
    proposer=2,
    time=1_700_000_000_000,
    governance=Governance(4, b"\x22" * 32),
    batches_root=b"\x33" * 32,
    executed_height=3,
    state_root=b"\x44" * 32,
    history_root=b"\x55" * 32,
    justify=QC(3, 7, b"\x11" * 32, VOTES),
    tc=TC(3, 8, (6, 7, 7), VOTES),
)
OTHER: dict[str, object] = {
    "version": 2,
    "chain": bytes(32),
    "shard": 8,
    "epoch": 4,
    "height": 6,
    "view": 10,
    "parent": b"\x12" * 32,
    "proposer": 3,
    "time": 1,
    "governance": Governance(5, b"\x22" * 32),
    "batches_root": bytes(32),
    "executed_height": 4,
    "state_root": bytes(32),
    "history_root": bytes(32),
    "justify": QC(3, 6, b"\x11" * 32, VOTES),
    "tc": None,
}


def test_the_header_id_is_frozen() -> None:
    assert HEADER.id().hex() == "077594b104f896665b111b2f65b69bdd511688fc955a54ac66c53b0f465686d4"


def test_the_header_id_without_tc_is_frozen() -> None:
    assert (
        replace(HEADER, tc=None).id().hex()
        == "b0b3e636d1f4917675e85d2319dcfea6a7a8de7a0f875e91bec8515da0bfa459"
    )


def test_the_vote_message_is_frozen() -> None:
    assert INSTANCE.vote_message(9, b"\x66" * 32).hex() == (
        "0000000d505342312f7369672f766f746500000020000102030405060708090a0b0c0d0e0f101112"
        "131415161718191a1b1c1d1e1f000000040000000700000008000000000000000300000030000000"
        "08000000000000000900000020666666666666666666666666666666666666666666666666666666"
        "6666666666"
    )


def test_the_timeout_message_is_frozen() -> None:
    assert INSTANCE.timeout_message(9, 7).hex() == (
        "00000010505342312f7369672f74696d656f757400000020000102030405060708090a0b0c0d0e0f"
        "101112131415161718191a1b1c1d1e1f000000040000000700000008000000000000000300000018"
        "000000080000000000000009000000080000000000000007"
    )


def test_the_proposal_message_is_frozen() -> None:
    assert INSTANCE.proposal_message(b"\x66" * 32).hex() == (
        "00000011505342312f7369672f70726f706f73616c00000020000102030405060708090a0b0c0d0e"
        "0f101112131415161718191a1b1c1d1e1f0000000400000007000000080000000000000003000000"
        "206666666666666666666666666666666666666666666666666666666666666666"
    )


@pytest.mark.parametrize("name", [field.name for field in fields(Header)])
def test_every_field_of_the_header_changes_the_id(name: str) -> None:
    assert replace(HEADER, **{name: OTHER[name]}).id() != HEADER.id()


@pytest.mark.parametrize(
    "governance", [Governance(5, b"\x22" * 32), Governance(4, b"\x23" * 32)], ids=["height", "id"]
)
def test_both_parts_of_the_governance_pin_change_the_id(governance: Governance) -> None:
    assert replace(HEADER, governance=governance).id() != HEADER.id()


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": 4},
        {"view": 6},
        {"block": bytes(32)},
        {"votes": Aggregate(b"\x0b", bytes(48))},
        {"votes": Aggregate(b"\x07", b"\x01" * 48)},
    ],
    ids=["epoch", "view", "block", "bitmap", "signature"],
)
def test_every_part_of_the_justify_qc_changes_the_id(changed: dict[str, object]) -> None:
    assert replace(HEADER, justify=replace(HEADER.justify, **changed)).id() != HEADER.id()


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": 4},
        {"view": 7},
        {"qc_views": (6, 7, 6)},
        {"timeouts": Aggregate(b"\x0b", bytes(48))},
        {"timeouts": Aggregate(b"\x07", b"\x01" * 48)},
    ],
    ids=["epoch", "view", "qc_views", "bitmap", "signature"],
)
def test_every_part_of_the_tc_changes_the_id(changed: dict[str, object]) -> None:
    assert HEADER.tc is not None
    assert replace(HEADER, tc=replace(HEADER.tc, **changed)).id() != HEADER.id()


@pytest.mark.parametrize(
    "other",
    [
        Instance(bytes(32), 7, 3, 4, 1),
        Instance(bytes(range(32)), 8, 3, 4, 1),
        Instance(bytes(range(32)), 7, 4, 4, 1),
    ],
    ids=["chain", "shard", "epoch"],
)
def test_t22_signed_bytes_name_chain_shard_and_epoch(other: Instance) -> None:
    block = b"\x66" * 32
    assert other.vote_message(9, block) != INSTANCE.vote_message(9, block)
    assert other.timeout_message(9, 7) != INSTANCE.timeout_message(9, 7)
    assert other.proposal_message(block) != INSTANCE.proposal_message(block)


def test_t4_the_view_is_covered_by_a_votes_signature() -> None:
    assert INSTANCE.vote_message(9, b"\x66" * 32) != INSTANCE.vote_message(8, b"\x66" * 32)


def test_a_signature_of_one_kind_is_never_one_of_another() -> None:
    block = b"\x66" * 32
    kinds = {
        INSTANCE.vote_message(9, block),
        INSTANCE.timeout_message(9, 9),
        INSTANCE.proposal_message(block),
    }
    assert len(kinds) == 3


def test_block_0_is_the_same_for_everybody() -> None:
    genesis = genesis_block(INSTANCE, b"\x44" * 32, 12)
    header = genesis.header
    assert genesis == genesis_block(INSTANCE, b"\x44" * 32, 12)
    assert (genesis.height, genesis.view, genesis.parent) == (0, 0, bytes(32))
    assert (header.time, header.state_root, header.executed_height) == (12, b"\x44" * 32, 0)
    assert header.governance == Governance(0, INSTANCE.chain)
    assert header.batches_root == header.history_root == merkle.root(())


def test_the_genesis_qc_names_block_0_and_nobody() -> None:
    genesis = genesis_block(INSTANCE, b"\x44" * 32, 0)
    assert genesis_qc(INSTANCE, genesis) == QC(3, 0, genesis.id, Aggregate(b"\x00", b""))


def test_a_block_knows_what_its_header_says() -> None:
    committee = Committee()
    block = committee.block(view=3, batches=(batch(1),))
    assert (block.id, block.height, block.view, block.parent) == (
        block.header.id(),
        1,
        3,
        committee.genesis.id,
    )


def test_a_tc_shows_the_highest_qc_that_its_signers_have_seen() -> None:
    assert TC(0, 9, (3, 7, 5), VOTES).highest_qc_view == 7


@pytest.mark.parametrize("kind", [Proposal, Vote, Timeout, Certificates])
def test_messages_survive_the_wire_unchanged(kind: type[msgspec.Struct]) -> None:
    committee = Committee()
    block = committee.block(view=2, batches=(batch(1), batch(2)))
    vote = committee.vote(block, 1)
    messages: dict[type[msgspec.Struct], msgspec.Struct] = {
        Proposal: committee.proposal(block),
        Vote: vote,
        Timeout: committee.timeout(2, 1, vote=vote),
        Certificates: Certificates(committee.qc(block), committee.tc(1)),
    }
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(messages[kind]), type=kind)
    assert decoded == messages[kind]


def test_t3_a_header_without_a_justify_has_no_encoding() -> None:
    """T3: the QC is mandatory in the type, so no check can be skipped by leaving it out."""
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(HEADER))
    raw[14] = None
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=Header)


@pytest.mark.parametrize(
    ("field", "value"),
    [("view", 2**62), ("view", -1), ("parent", bytes(31)), ("proposer", 2**16), ("state_root", bytes(33))],
)
def test_a_field_out_of_range_is_malformed(field: str, value: object) -> None:
    raw = msgspec.msgpack.decode(msgspec.msgpack.encode(HEADER))
    raw[[f.name for f in fields(Header)].index(field)] = value
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(raw), type=Header)


def test_more_batches_than_a_block_may_hold_are_malformed() -> None:
    data = msgspec.msgpack.encode(Proposal(HEADER, (bytes(32),) * (MAX_BATCHES + 1), b""))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=Proposal)


def test_a_tc_of_more_members_than_any_committee_has_is_malformed() -> None:
    data = msgspec.msgpack.encode(TC(0, 9, (1,) * 257, VOTES))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=TC)


def test_roots_of_the_builders_are_distinct_per_height() -> None:
    assert len({(roots_at(height).state, roots_at(height).history) for height in range(10)}) == 10
