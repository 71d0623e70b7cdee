"""The safety record survives torn writes and never resets itself (T16-T19)."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch

from parley.consensus.errors import SafetyRecordError
from parley.consensus.record import (
    COPIES,
    MAX_RECORD,
    SLOTS,
    Repair,
    SafetyState,
    encode_record,
    recover_record,
    repairs,
)
from parley.consensus.safety import abstaining_state, initial_state
from parley.consensus.types import MAX_BATCHES, QC, TC, Proposal, Timeout, Vote
from parley.crypto.encoding import u32, u64
from parley.crypto.hashing import digest
from parley.crypto.qc import Aggregate

COMMITTEE = Committee()
STATE = initial_state(COMMITTEE.instance, 1, COMMITTEE.genesis_qc)
WHERE = "data/safety"
Slots = list[list[bytes]]


def state(number: int) -> SafetyState:
    """The state of record `number`, different from all others."""
    return replace(STATE, last_voted_view=number)


def slots(newest: int) -> Slots:
    """The disk after record `newest` was written."""
    disk: Slots = [[], []]
    for number in (newest - 1, newest):
        disk[number % SLOTS] = [encode_record(number, state(number))] * COPIES
    return disk


def torn(record: bytes) -> bytes:
    return record[: len(record) // 2]


def refusal(disk: Sequence[Sequence[bytes]]) -> str:
    with pytest.raises(SafetyRecordError) as stopped:
        recover_record(disk, WHERE)
    return str(stopped.value)


@pytest.mark.parametrize("newest", [1, 2, 7, 8])
def test_t16_the_newest_record_is_recovered(newest: int) -> None:
    assert recover_record(slots(newest), WHERE) == (newest, state(newest))


def test_t18_a_record_keeps_all_that_was_signed() -> None:
    """T16, T18: vote, timeout, proposal and the certificates that entitled them."""
    block = COMMITTEE.block(view=2, batches=(batch(1), batch(2)))
    vote = COMMITTEE.vote(block, 1)
    full = replace(
        STATE,
        last_voted_view=2,
        one_chain_view=1,
        highest_timeout_view=2,
        last_vote=vote,
        last_timeout=COMMITTEE.timeout(2, 1, vote=vote),
        last_proposal=COMMITTEE.proposal(block),
        high_qc=COMMITTEE.qc(block),
        high_tc=COMMITTEE.tc(1),
    )
    disk = slots(4)
    disk[1] = [encode_record(5, full)] * COPIES
    assert recover_record(disk, WHERE) == (5, full)


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize(
    "bad", [b"", b"\x00" * 200, torn(encode_record(8, STATE))], ids=["empty", "zero", "torn"]
)
def test_t19_one_good_copy_counts(slot: int, copy: int, bad: bytes) -> None:
    disk = slots(8)
    disk[slot][copy] = bad
    assert recover_record(disk, WHERE) == (8, state(8))


def test_t19_one_copy_of_each_record_is_enough() -> None:
    disk = slots(8)
    disk[0][1] = disk[1][0] = b"garbage"
    assert recover_record(disk, WHERE) == (8, state(8))


@pytest.mark.parametrize("number", [7, 8])
def test_t19_a_record_without_a_good_copy_stops_the_replica(number: int) -> None:
    """No crash does that: the second copy is begun when the first is on disk. So something signed may be forgotten."""
    disk = slots(8)
    disk[number % SLOTS] = [torn(record) for record in disk[number % SLOTS]]
    assert "both copies of a record fail their checksums" in refusal(disk)


def test_t19_a_write_that_finished_one_copy_counts() -> None:
    disk = slots(8)
    disk[9 % SLOTS][0] = encode_record(9, state(9))
    assert recover_record(disk, WHERE) == (9, state(9))


def test_t19_a_write_torn_inside_its_first_copy_leaves_the_record_before() -> None:
    disk = slots(8)
    disk[9 % SLOTS][0] = torn(encode_record(9, state(9)))
    assert recover_record(disk, WHERE) == (8, state(8))


def test_t19_a_write_torn_inside_its_second_copy_counts() -> None:
    disk = slots(8)
    disk[9 % SLOTS] = [encode_record(9, state(9)), torn(encode_record(9, state(9)))]
    assert recover_record(disk, WHERE) == (9, state(9))


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("bad", [b"", bytes(200), torn(encode_record(8, STATE))])
def test_t19_a_damaged_copy_is_mended_from_the_other(slot: int, copy: int, bad: bytes) -> None:
    whole, disk = slots(8), slots(8)
    disk[slot][copy] = bad
    assert repairs(disk) == [Repair(slot, copy, whole[slot][copy], damaged=True)]


def test_t19_a_copy_that_lags_behind_is_completed_and_is_no_damage() -> None:
    """Or the record that the replica now relies on would be lost with its one copy."""
    disk = slots(8)
    disk[9 % SLOTS][0] = encode_record(9, state(9))
    assert repairs(disk) == [Repair(1, 1, encode_record(9, state(9)), damaged=False)]


def test_t19_what_is_whole_needs_no_repair() -> None:
    assert repairs(slots(8)) == []


def test_t19_what_follows_a_record_is_not_compared() -> None:
    disk = slots(8)
    disk[0][1] += b"the rest of an older record"
    assert repairs(disk) == []


@pytest.mark.parametrize(
    "disk",
    [
        [],
        slots(8)[:1],
        [*slots(8), [b"", b""]],
        [[], []],
        [[b"", b""], slots(8)[1]],
        [slots(8)[0], [b"", b""]],
        [slots(8)[0][:1], slots(8)[1]],
        [[b"", b""], [b"", b""]],
    ],
    ids=[
        "no slots",
        "one slot",
        "three slots",
        "no copies",
        "first empty",
        "second empty",
        "one copy",
        "empty",
    ],
)
def test_t19_a_missing_record_stops_the_replica(disk: Slots) -> None:
    assert "missing or incomplete" in refusal(disk)


def test_t19_no_good_copy_at_all_stops_the_replica() -> None:
    assert "checksum" in refusal([[b"garbage", b"garbage"], [b"garbage", b"garbage"]])


@pytest.mark.parametrize("older", [1, 3, 5])
def test_t19_a_gap_in_the_sequence_stops_the_replica(older: int) -> None:
    disk = slots(8)
    disk[older % SLOTS] = [encode_record(older, state(older))] * COPIES
    assert "the record before 8 is not there" in refusal(disk)


def test_t19_two_records_of_one_number_stop_the_replica() -> None:
    disk = slots(8)
    disk[1] = disk[0]
    assert "a record stands in the other's slot" in refusal(disk)


def test_t19_records_in_each_others_slots_stop_the_replica() -> None:
    """The next write would overwrite the newest record instead of the oldest."""
    assert "a record stands in the other's slot" in refusal(slots(8)[::-1])


def test_t19_a_lost_write_is_noticed_although_the_newer_record_has_a_bad_copy() -> None:
    old, new = encode_record(47, state(47)), encode_record(50, state(50))
    assert "the record before 50 is not there" in refusal([[new, torn(new)], [old, old]])


# The second copy is begun when the first is on disk.
TEARING = [("old", "old"), ("bad", "old"), ("new", "old"), ("new", "bad"), ("new", "new")]


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(TEARING), max_size=12))
def test_t19_any_number_of_power_failures_in_writes_loses_no_finished_record(
    writes: list[tuple[str, str]],
) -> None:
    """Each write finishes, or the power fails in it: a copy is the old one, the new one, or garbage, and mended later."""
    disk = [list(copies) for copies in slots(1)]
    finished = written = 1
    for fates in writes:
        written = recover_record(disk, "memory")[0] + 1
        record = encode_record(written, state(written))
        for copy, fate in enumerate(fates):
            old = disk[written % SLOTS][copy]
            disk[written % SLOTS][copy] = {"old": old, "new": record, "bad": torn(record)}[fate]
        finished = written if fates == ("new", "new") else finished
        found = recover_record(disk, "memory")
        assert finished <= found[0] <= written
        for repair in repairs(disk):
            disk[repair.slot][repair.copy] = repair.record
        assert repairs(disk) == []
        assert recover_record(disk, "memory") == found


def test_t19_the_message_says_what_to_do() -> None:
    text = refusal([])
    assert WHERE in text
    assert "Do not delete the file and do not restore it from a backup" in text
    assert "Repair the disk" in text
    assert "`parley node recover`" in text


@pytest.mark.parametrize("position", range(len(encode_record(8, state(8)))))
def test_t19_any_changed_byte_of_one_copy_is_noticed(position: int) -> None:
    disk = slots(8)
    bad = bytearray(disk[0][0])
    bad[position] ^= 0x01
    disk[0][0] = bytes(bad)
    assert recover_record(disk, WHERE) == (8, state(8))
    disk[0][1] = bytes(bad)
    refusal(disk)


@pytest.mark.parametrize("length", range(1, len(encode_record(8, state(8)))))
def test_t19_a_record_cut_anywhere_is_noticed(length: int) -> None:
    disk = slots(8)
    disk[0] = [disk[0][0][:length]] * COPIES
    assert "checksum" in refusal(disk)


def test_t19_the_rest_of_a_longer_record_behind_a_record_is_ignored() -> None:
    """A shorter record written over a longer one leaves the end of it."""
    disk = slots(8)
    disk[0] = [record + b"the rest of an older record" for record in disk[0]]
    assert recover_record(disk, WHERE) == (8, state(8))


def record_of(sequence: int, content: bytes) -> bytes:
    """A copy whose checksum holds, whatever it contains."""
    body = u64(sequence) + u32(len(content)) + content
    return digest("safety/record", body) + body


@pytest.mark.parametrize("content", [b"", b"\xc0", b"\x93\x01\x02\x03", b"\xc1", bytes(100)])
def test_t19_a_good_checksum_over_another_format_is_not_interpreted(content: bytes) -> None:
    disk = slots(8)
    disk[0] = [record_of(8, content)] * COPIES
    assert "checksum" in refusal(disk)


@pytest.mark.parametrize("body", [b"", u64(8), u64(8) + b"\x00"])
def test_t19_a_good_checksum_over_too_little_is_not_interpreted(body: bytes) -> None:
    disk = slots(8)
    disk[0] = [digest("safety/record", body) + body] * COPIES
    assert "checksum" in refusal(disk)


def test_t19_a_copy_larger_than_its_slot_is_bad() -> None:
    disk = slots(8)
    disk[0] = [record_of(8, msgspec.msgpack.encode(replace(STATE, chain=bytes(MAX_RECORD))))] * COPIES
    assert "checksum" in refusal(disk)


def test_a_record_from_before_there_was_abstaining_is_read_as_one_that_takes_part() -> None:
    fields = msgspec.structs.astuple(state(8))
    assert fields[-1] is False
    assert SafetyState.__struct_fields__[-1] == "abstains"
    disk = slots(8)
    disk[0] = [record_of(8, msgspec.msgpack.encode(fields[:-1]))] * COPIES
    assert recover_record(disk, WHERE) == (8, state(8))
    assert repairs(disk) == []


def test_that_a_replica_abstains_is_recorded() -> None:
    abstaining = abstaining_state(COMMITTEE.instance, 1, COMMITTEE.genesis_qc)
    assert abstaining == replace(STATE, abstains=True)
    disk = slots(8)
    disk[1] = [encode_record(9, abstaining)] * COPIES
    assert recover_record(disk, WHERE) == (9, abstaining)


def largest(members: int) -> SafetyState:
    """Everything at its limit, with signatures as long as Ed25519's."""
    top = 2**62 - 1
    votes = Aggregate(bytes((members + 7) // 8), bytes(64 * members))
    qc = QC(top, top, bytes(32), votes)
    tc = TC(top, top, (top,) * members, votes)
    vote = Vote(top, top, bytes(32), members - 1, bytes(64))
    header = replace(COMMITTEE.genesis.header, height=top, view=top, time=top, justify=qc, tc=tc)
    return SafetyState(
        chain=bytes(32),
        shard=0,
        epoch=top,
        signer=members - 1,
        last_voted_view=top,
        one_chain_view=top,
        highest_timeout_view=top,
        last_vote=vote,
        last_timeout=Timeout(top, top, qc, tc, vote, members - 1, bytes(64)),
        last_proposal=Proposal(header, (bytes(32),) * MAX_BATCHES, bytes(64)),
        high_qc=qc,
        high_tc=tc,
    )


@pytest.mark.parametrize("members", [32, 256])
def test_the_largest_record_fits_its_slot(members: int) -> None:
    assert len(encode_record(1, largest(members))) <= MAX_RECORD


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    newest=st.integers(1, 50),
    damage=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2**16), st.integers(1, 255)),
        max_size=4,
    ),
)
def test_t19_damage_never_brings_back_an_older_record(
    newest: int, damage: list[tuple[int, int, int, int]]
) -> None:
    disk = slots(newest)
    for slot, copy, position, change in damage:
        bad = bytearray(disk[slot][copy])
        bad[position % len(bad)] ^= change
        disk[slot][copy] = bytes(bad)
    try:
        assert recover_record(disk, WHERE) == (newest, state(newest))
    except SafetyRecordError:
        assert any({(slot, 0), (slot, 1)} <= {d[:2] for d in damage} for slot in (0, 1))
    else:
        for repair in repairs(disk):
            disk[repair.slot][repair.copy] = repair.record
        assert disk == slots(newest)
