"""Proofs of misbehaviour: kept by whoever saw it, checked by anybody, and never against who kept to the rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.consensus.chains import Committee
from tests.replica.driver import Cluster, MemoryStore, submitted

from parley.consensus.errors import Refused
from parley.consensus.events import DoubleProposal, DoubleTimeout, DoubleVote, Evidence
from parley.consensus.types import Proposal
from parley.consensus.verify import Verifier
from parley.ledger import layout
from parley.node.faults.links import twin
from parley.replica import evidence, wire
from parley.replica.evidence import MAX_RECORDS, Accusation, Record, Shelf

COMMITTEE = Committee()
FIRST = COMMITTEE.block()
TWIN = COMMITTEE.block(time=FIRST.header.time + 1)
LATER = COMMITTEE.block(FIRST, 2)
LIAR = FIRST.header.proposer


def proposals(view: int = 1) -> DoubleProposal:
    blocks = (COMMITTEE.block(view=view), COMMITTEE.block(view=view, time=77))
    first, second = map(COMMITTEE.proposal, blocks)
    return DoubleProposal(first, second)


def votes() -> DoubleVote:
    return DoubleVote(COMMITTEE.vote(FIRST, 3), COMMITTEE.vote(TWIN, 3))


def timeouts() -> DoubleTimeout:
    return DoubleTimeout(
        COMMITTEE.timeout(3, 2, COMMITTEE.qc(FIRST)), COMMITTEE.timeout(3, 2, COMMITTEE.genesis_qc)
    )


def kept(found: Evidence) -> Record:
    ((_, value),) = Shelf(MemoryStore()).keep(found)
    assert value is not None
    return evidence.decode(value)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (proposals(), Accusation(LIAR, "proposals", 1)),
        (votes(), Accusation(3, "votes", 1)),
        (timeouts(), Accusation(2, "timeouts", 3)),
    ],
    ids=["proposals", "votes", "timeouts"],
)
def test_a_third_party_can_check_what_was_kept(found: Evidence, expected: Accusation) -> None:
    assert evidence.verify(kept(found), COMMITTEE.verifier()) == expected


HONEST = {
    "the same twice": Record("proposals", COMMITTEE.proposal(FIRST), COMMITTEE.proposal(FIRST)),
    "two views": Record("proposals", COMMITTEE.proposal(FIRST), COMMITTEE.proposal(LATER)),
    "two signers": Record("votes", COMMITTEE.vote(FIRST, 1), COMMITTEE.vote(TWIN, 2)),
    "votes of two views": Record("votes", COMMITTEE.vote(FIRST, 1), COMMITTEE.vote(LATER, 1)),
    "one timeout": Record("timeouts", COMMITTEE.timeout(1, 2), COMMITTEE.timeout(1, 2)),
    "a proposal and a vote": Record("proposals", COMMITTEE.proposal(FIRST), COMMITTEE.vote(TWIN, LIAR)),
    "another kind": Record("timeouts", COMMITTEE.vote(FIRST, 1), COMMITTEE.vote(TWIN, 1)),
    "a foreign signature": Record(
        "proposals", COMMITTEE.proposal(FIRST), COMMITTEE.proposal(TWIN, (LIAR + 1) % 4)
    ),
    "a foreign first signature": Record(
        "proposals", COMMITTEE.proposal(FIRST, (LIAR + 1) % 4), COMMITTEE.proposal(TWIN)
    ),
    "a vote that was put into another's mouth": Record(
        "votes", COMMITTEE.vote(FIRST, 1), replace(COMMITTEE.vote(TWIN, 2), signer=1)
    ),
}


@pytest.mark.parametrize("record", HONEST.values(), ids=HONEST.keys())
def test_nobody_can_be_accused_of_what_it_did_not_do(record: Record) -> None:
    with pytest.raises(Refused):
        evidence.verify(record, COMMITTEE.verifier())


@given(st.binary(max_size=64))
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        evidence.decode(data)


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_a_damaged_record_proves_nothing(place: int, bit: int) -> None:
    data = bytearray(evidence.encode(kept(votes())))
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Refused):
        evidence.verify(evidence.decode(bytes(data)), COMMITTEE.verifier())


def test_of_a_member_no_more_is_kept_than_a_few_views_and_one_record_of_each() -> None:
    store = MemoryStore()
    for view in range(1, 4 * MAX_RECORDS, 4):  # the views that one of four leads
        for _ in range(2):
            store.write(tuple(Shelf(store).keep(proposals(view))))
    shelf = Shelf(store)
    assert shelf.keep(proposals(4 * MAX_RECORDS + 1)) == []
    assert (shelf.held_of(1), shelf.held_of(3)) == (MAX_RECORDS, 0)
    assert shelf.keep(votes()) != []  # of another member
    views = list(range(1, 4 * MAX_RECORDS, 4))
    assert list(evidence.held(store)) == [Accusation(1, "proposals", view) for view in views]


def test_a_record_that_cannot_be_read_is_not_told_of() -> None:
    store = MemoryStore([(layout.evidence(1, 5), b"damaged")])
    assert list(evidence.held(store)) == []


def test_what_is_met_accuses_the_one_that_its_record_accuses() -> None:
    for found in (proposals(), votes(), timeouts()):
        assert evidence.charge(found) == evidence.accusation(kept(found))


def test_a_replica_keeps_both_proposals_of_a_leader_that_contradicts_itself() -> None:
    cluster = Cluster().start()
    submitted(cluster, 2)
    instance, signer = cluster.committee.instance, cluster.committee.authority.signer(LIAR)

    def lie(sender: int, to: int, data: bytes) -> bool:
        message = wire.decode(data)
        if sender == LIAR and isinstance(message, Proposal):
            cluster.outbox.messages.append((sender, to, wire.encode(twin(message, instance, signer))))
        return True

    cluster.outbox.carries = lie
    others = [cluster.members[index] for index in range(4) if index != LIAR]
    cluster.run_until(lambda: all(list(evidence.held(member.store)) for member in others))
    config, genesis = cluster.committee.config(0), others[0].blocks()[0]
    verifier = Verifier(config.instance, cluster.committee.authority.scheme(), genesis)
    for member in others:
        for key, value in member.store.scan(layout.EVIDENCE):
            accused = evidence.verify(evidence.decode(value), verifier)
            assert (accused.member, accused.kind) == (LIAR, "proposals")
            assert key == layout.evidence(accused.member, accused.view)
    held = list(evidence.held(others[0].store))
    cluster.restart(others[0].index)
    assert list(evidence.held(others[0].store))[: len(held)] == held
    assert others[0].replica.accused == [len(held) if index == LIAR else 0 for index in range(4)]
