"""The safety record: what a replica has signed, in a form that survives torn writes and never resets itself (T16-T19).

The driver keeps two slots of two copies each. Record k goes into slot k mod 2, first into one copy, and when that is on
disk into the other. A crash can therefore damage only one copy of one slot, and nothing signed under that write has left
the replica. Whatever else is damaged was damaged later: one copy is mended from the other, two stop the replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from parley.consensus.errors import SafetyRecordError
from parley.consensus.types import QC, TC, U64, Proposal, Timeout, Vote
from parley.crypto.encoding import u32, u64
from parley.crypto.hashing import DIGEST_SIZE, digest

SLOTS = 2
COPIES = 2
MAX_RECORD = 256 * 1024  # room for a full proposal and for certificates of 256 members

_HEADER = 8 + 4  # sequence, length of the state


class SafetyState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything that decides what may be signed next, and what was signed last so that it can be sent again."""

    chain: bytes
    shard: U64
    epoch: U64
    signer: U64
    last_voted_view: U64
    one_chain_view: U64
    highest_timeout_view: U64
    last_vote: Vote | None
    last_timeout: Timeout | None
    last_proposal: Proposal | None
    high_qc: QC
    high_tc: TC | None
    # The record was lost and this one stands in for it: nothing is signed until it is known to be safe (P10).
    abstains: bool = False


def encode_record(sequence: int, state: SafetyState) -> bytes:
    """One copy: checksum of all the rest, sequence, length, state."""
    encoded = _encoder.encode(state)
    body = u64(sequence) + u32(len(encoded)) + encoded
    record = digest("safety/record", body) + body
    assert len(record) <= MAX_RECORD, "limits of messages keep a record below its slot"
    return record


def recover_record(slots: Sequence[Sequence[bytes]], where: str) -> tuple[int, SafetyState]:
    """The newest record, with its sequence; `where` names the file to the operator.

    One good copy of a slot counts: that the other is not good, or older, a crash in the middle of a write explains.
    Anything else means that a signature may have been forgotten, and stops the replica.
    """
    if len(slots) != SLOTS or any(len(copies) != COPIES or not any(copies) for copies in slots):
        raise SafetyRecordError(_advice(where, "it is missing or incomplete"))
    found = [[record for copy in copies if (record := _decode(copy))] for copies in slots]
    if any(sequence % SLOTS != slot for slot, records in enumerate(found) for sequence, _ in records):
        raise SafetyRecordError(
            _advice(where, "a record stands in the other's slot: files or writes were mixed up")
        )
    if not all(found):
        raise SafetyRecordError(_advice(where, "both copies of a record fail their checksums"))
    older, newest = sorted((max(records, key=_sequence) for records in found), key=_sequence)
    if older[0] + 1 != newest[0]:
        raise SafetyRecordError(
            _advice(where, f"the record before {newest[0]} is not there, so a finished write was lost")
        )
    return newest


@dataclass(frozen=True, slots=True)
class Repair:
    """What to write into one copy of one slot; `damaged`: it held nothing that can be read, and not just the record before."""

    slot: int
    copy: int
    record: bytes
    damaged: bool


def repairs(slots: Sequence[Sequence[bytes]]) -> list[Repair]:
    """What makes both copies of each slot equal again, for slots from which a record was recovered.

    To be written before anything relies on that record: until then it may have one copy, and would be lost with it. And
    the next crash must find no slot with one good copy, or what it tears could be that one.
    """
    found = []
    for slot, copies in enumerate(slots):
        read = [_decode(copy) for copy in copies]
        newest = max((record for record in read if record is not None), key=_sequence)
        record = encode_record(*newest)
        found += [
            Repair(slot, copy, record, damaged=there is None)
            for copy, there in enumerate(read)
            if there != newest
        ]
    return found


def _decode(copy: bytes) -> tuple[int, SafetyState] | None:
    """What follows the record is ignored: it may be the rest of a longer one that was written over."""
    checksum, rest = copy[:DIGEST_SIZE], copy[DIGEST_SIZE:]
    sequence, length = int.from_bytes(rest[:8], "big"), int.from_bytes(rest[8:_HEADER], "big")
    body = rest[: _HEADER + length]
    if length > MAX_RECORD or digest("safety/record", body) != checksum:
        return None
    try:
        return sequence, _decoder.decode(body[_HEADER:])
    except msgspec.MsgspecError:  # a checksum that holds over another format: not ours to interpret
        return None


def _sequence(record: tuple[int, SafetyState]) -> int:
    return record[0]


def _advice(where: str, what: str) -> str:
    return (
        f"The safety record at {where} cannot be used: {what}. Without it this replica could sign twice in one view, "
        f"so it stays stopped. Do not delete the file and do not restore it from a backup. Repair the disk and start "
        f"again; if the record is gone for good, run `parley node recover`."
    )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SafetyState)
