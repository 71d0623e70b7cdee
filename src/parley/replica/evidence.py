"""Proof that a member broke the rules: two messages that it signed and that contradict each other.

Anybody with the committee's keys can check a record; nobody has to believe the broker that holds it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import DoubleProposal, DoubleTimeout, DoubleVote, Evidence
from parley.consensus.types import Proposal, Timeout, Vote
from parley.consensus.verify import Verifier
from parley.ledger import layout
from parley.model.codec import DECODE_ERRORS
from parley.store.interface import KeyValue

MAX_RECORDS = 16  # of one member: more would prove nothing new

Kind = Literal["proposals", "votes", "timeouts"]
Signed = Proposal | Vote | Timeout


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`kind` is what was signed twice."""

    kind: Kind
    first: Signed
    second: Signed


@dataclass(frozen=True, slots=True)
class Accusation:
    """What a record says: this member signed two of this kind in this view."""

    member: int
    kind: Kind
    view: int


class Shelf:
    """What a broker keeps. A record for each member and view, and no more of a member than `MAX_RECORDS`."""

    def __init__(self, store: KeyValue) -> None:
        self._views: defaultdict[int, set[int]] = defaultdict(set)
        for key, _ in store.scan(layout.EVIDENCE):
            member, view = _place(key)
            self._views[member].add(view)

    def held_of(self, member: int) -> int:
        """How many records there are of this member."""
        return len(self._views[member]) if member in self._views else 0

    def keep(self, evidence: Evidence) -> list[tuple[bytes, bytes | None]]:
        """What to write; nothing, if there is enough already."""
        record = _record(evidence)
        accused = accusation(record)
        views = self._views[accused.member]
        if accused.view in views or len(views) >= MAX_RECORDS:
            return []
        views.add(accused.view)
        return [(layout.evidence(accused.member, accused.view), encode(record))]


def held(store: KeyValue) -> Iterator[Accusation]:
    """What the records in a store say; damaged ones say nothing."""
    for key, value in store.scan(layout.EVIDENCE):
        member, view = _place(key)
        try:
            kind = decode(value).kind
        except Refused:
            continue
        yield Accusation(member, kind, view)


def charge(evidence: Evidence) -> Accusation:
    """Who did what, according to evidence that this broker has met itself."""
    return accusation(_record(evidence))


def accusation(record: Record) -> Accusation:
    """What the record claims, unchecked."""
    member, view, _ = _said(record.first)
    return Accusation(member, record.kind, view)


def verify(record: Record, verifier: Verifier) -> Accusation:
    """What the record proves. Raises `Refused` unless both signatures hold and no honest member gives both."""
    signed = _SIGNED[record.kind]
    if not (isinstance(record.first, signed) and isinstance(record.second, signed)):
        raise Refused(Reason.MALFORMED, f"two messages that are no {record.kind}")
    verifier.message(record.first)
    verifier.message(record.second)
    # In one view a member proposes one block, votes for one, and gives up with one highest certificate.
    said, again = _said(record.first), _said(record.second)
    if said[:2] != again[:2] or said[2] == again[2]:
        raise Refused(Reason.BAD_ANSWER, "two messages that do not contradict each other")
    return accusation(record)


def decode(data: bytes) -> Record:
    """Raises `Refused` for anything but a record in its canonical form."""
    try:
        record = _records.decode(data)
    except DECODE_ERRORS as error:
        raise Refused(Reason.MALFORMED, f"a record of misbehaviour: {error}") from None
    if encode(record) != data:
        raise Refused(Reason.NOT_CANONICAL, "a record of misbehaviour")
    return record


def _record(evidence: Evidence) -> Record:
    return Record(_KINDS[type(evidence)], evidence.first, evidence.second)


def _said(message: Signed) -> tuple[int, int, object]:
    """Who, in which view, what."""
    match message:
        case Proposal():
            return message.header.proposer, message.header.view, message.header.id()
        case Vote():
            return message.signer, message.view, message.block
        case Timeout():
            return message.signer, message.view, message.high_qc.view


def _place(key: bytes) -> tuple[int, int]:
    place = key.removeprefix(layout.EVIDENCE)
    return int.from_bytes(place[:4], "big"), int.from_bytes(place[4:], "big")


_KINDS: Mapping[type[Evidence], Kind] = {
    DoubleProposal: "proposals",
    DoubleVote: "votes",
    DoubleTimeout: "timeouts",
}
_SIGNED: Mapping[Kind, type[Signed]] = {"proposals": Proposal, "votes": Vote, "timeouts": Timeout}

encode: Callable[[Record], bytes] = msgspec.msgpack.Encoder().encode
_records = msgspec.msgpack.Decoder(Record)
