"""Advisories: signed by who reads, kept for a while within limits, and shown only to those whom they concern."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.application.world import ADMIN, ADMINS, Actor, actor
from tests.client.ledger import Ledger

from parley.crypto.ed25519 import SecretKey
from parley.model.advisories import Advisory, Standpoint, open_advisory, sign_advisory
from parley.model.credentials import Credential, issue_credential
from parley.model.refusals import (
    BadSignature,
    Expired,
    LimitExceeded,
    Malformed,
    PermissionDenied,
    Refused,
    Revoked,
    UnknownClient,
)
from parley.modules.registry.operations import RevokeClient
from parley.modules.topics.refusals import UnknownTopic
from parley.net.messages import MAX_READERS, Advise, SignedAdvisory
from parley.node.access import Caller
from parley.node.advisories import KEPT_MS, LOOK_WORK, MAX_KEPT, MAX_PER_CLIENT, MAX_SKEW_MS, Advisories
from parley.node.view import View

NOW = 1_800_000_000_000
ALICE, BOB = actor("alice"), actor("bob", "insurer")


class Desk:
    """What one broker keeps. `notes` is a topic of hospital-a; `closed` one that nobody may read."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        for who in (ALICE, BOB):
            self.ledger.client(who.name, who.organisation)
        self.ledger.topic("notes")
        self.ledger.topic("closed", subscribe='role == "nobody"')
        self.now, self.ticks = NOW, 0
        self.kept = Advisories(self.ledger.genesis, lambda: self.now, lambda: self.ticks)
        self.read, self.height = self.ledger.record, self.ledger.height

    @property
    def view(self) -> View:
        return cast("View", self)

    def credential(self, who: Actor, not_after: int = 2**60) -> Credential:
        anchor = actor("anchor", who.organisation).secret
        chain = self.ledger.chain
        return issue_credential(
            chain, who.organisation, who.name, who.key, not_after=not_after, anchor=anchor
        )

    def advisory(self, who: Actor, query: str = "query", topic: str = "notes", lag: int = 3) -> Advisory:
        return Advisory(self.credential(who), query, "run", topic, (Standpoint(0, 7, 7 + lag),), self.now)

    def tell(self, who: Actor, advisory: Advisory, key: SecretKey | None = None) -> None:
        data, signature = sign_advisory(advisory, key or who.secret)
        self.kept.take(self.view, asking(who), Advise(1, data, signature))

    def refused(self, who: Actor, advisory: Advisory, key: SecretKey | None = None) -> str:
        with pytest.raises(Refused) as refusal:
            self.tell(who, advisory, key)
        return refusal.value.code

    def seen(self, who: Actor, *, admin: bool = False, view: bool = True) -> list[tuple[str, str, int]]:
        shown = self.kept.shown(self.view if view else None, asking(who, admin=admin))
        opened = [open_advisory(one.advisory, one.signature, self.ledger.genesis, self.now) for one in shown]
        return sorted((one.reader, one.query, one.lag) for one in opened)


def asking(who: Actor, *, admin: bool = False) -> Caller:
    administers = who.organisation if admin else None
    return Caller(who.key, who.organisation, who.name, administers, not_after=0)


def test_an_advisory_is_shown_to_its_reader_and_to_those_who_look_after_it() -> None:
    desk = Desk()
    desk.tell(BOB, desk.advisory(BOB))
    told = [("insurer/bob", "query", 3)]
    assert desk.seen(BOB) == told
    assert desk.seen(ADMINS["insurer"], admin=True) == told
    assert desk.seen(ADMIN, admin=True) == told  # the topic is hospital-a's
    assert desk.seen(ADMINS["laboratory"], admin=True) == []
    assert desk.seen(ALICE) == []
    assert desk.seen(ADMIN, admin=True, view=False) == []  # whose topic it is cannot be seen
    assert desk.seen(ADMINS["insurer"], admin=True, view=False) == told


def test_the_newest_word_of_a_query_replaces_the_one_before() -> None:
    desk = Desk()
    old = desk.advisory(ALICE)
    desk.tell(ALICE, old)
    desk.now += 5
    desk.tell(ALICE, desk.advisory(ALICE, lag=9))
    desk.tell(ALICE, desk.advisory(ALICE, "another", lag=1))
    assert desk.seen(ALICE) == [("hospital-a/alice", "another", 1), ("hospital-a/alice", "query", 9)]
    assert desk.refused(ALICE, old) == Expired.code
    assert desk.kept.look_work == 2 * LOOK_WORK


def test_an_advisory_is_dropped_without_renewal() -> None:
    desk = Desk()
    desk.tell(ALICE, desk.advisory(ALICE, "one"))
    desk.tell(ALICE, desk.advisory(ALICE, "two"))
    desk.ticks = KEPT_MS - 1
    desk.tell(ALICE, desk.advisory(ALICE, "one"))
    desk.ticks = KEPT_MS
    assert desk.seen(ALICE) == [("hospital-a/alice", "one", 3)]
    desk.ticks = 2 * KEPT_MS
    assert desk.seen(ALICE) == []
    assert desk.kept.look_work == 0


def test_what_the_reader_did_not_sign_is_refused() -> None:
    desk = Desk()
    assert desk.refused(ALICE, desk.advisory(ALICE), BOB.secret) == BadSignature.code
    forged = replace(desk.advisory(ALICE), credential=replace(desk.credential(ALICE), name="admin"))
    assert desk.refused(ALICE, forged) == BadSignature.code
    stolen = replace(desk.advisory(ALICE), credential=desk.credential(BOB))
    assert desk.refused(ALICE, stolen) == BadSignature.code
    assert desk.refused(ALICE, desk.advisory(BOB), BOB.secret) == PermissionDenied.code  # it was overheard
    assert desk.seen(ADMIN, admin=True) == []


def test_a_key_that_two_organisations_vouch_for_counts_for_the_one_that_it_came_with() -> None:
    """Or what is counted for one of them would be taken off from the other, which then could keep any number."""
    desk = Desk()
    twin = Actor(ALICE.name, "insurer", ALICE.secret)
    assert desk.refused(ALICE, desk.advisory(twin)) == PermissionDenied.code
    namesake = Actor("carol", ALICE.organisation, ALICE.secret)
    assert desk.refused(ALICE, desk.advisory(namesake)) == PermissionDenied.code


def test_an_old_or_future_advisory_is_refused() -> None:
    desk = Desk()
    for time in (NOW - MAX_SKEW_MS - 1, NOW + MAX_SKEW_MS + 1):
        assert desk.refused(ALICE, replace(desk.advisory(ALICE), time=time)) == Expired.code
    desk.tell(ALICE, replace(desk.advisory(ALICE), time=NOW - MAX_SKEW_MS))
    expired = replace(desk.advisory(ALICE), credential=desk.credential(ALICE, NOW - 1))
    assert desk.refused(ALICE, expired) == BadSignature.code


def test_who_may_not_read_a_topic_says_nothing_of_it() -> None:
    desk = Desk()
    assert desk.refused(ALICE, desk.advisory(ALICE, topic="closed")) == PermissionDenied.code
    assert desk.refused(ALICE, desk.advisory(ALICE, topic="nowhere")) == UnknownTopic.code
    assert desk.refused(actor("mallory"), desk.advisory(actor("mallory"))) == UnknownClient.code
    desk.ledger.do(ADMIN, RevokeClient("alice"))
    assert desk.refused(ALICE, desk.advisory(ALICE)) == Revoked.code


def test_a_client_and_an_organisation_have_so_many_and_no_more() -> None:
    desk = Desk()
    for number in range(MAX_PER_CLIENT):
        desk.tell(ALICE, desk.advisory(ALICE, f"query {number}"))
    assert desk.refused(ALICE, desk.advisory(ALICE, "one more")) == LimitExceeded.code
    desk.tell(ALICE, desk.advisory(ALICE, "query 0"))  # what is there is still renewed
    share = MAX_KEPT // len(desk.ledger.genesis.organisations)
    others = [desk.ledger.client(f"reader-{number}") for number in range(share // MAX_PER_CLIENT)]
    for who in others[:-1]:
        for number in range(MAX_PER_CLIENT):
            desk.tell(who, desk.advisory(who, f"query {number}"))
    assert desk.refused(others[-1], desk.advisory(others[-1])) == LimitExceeded.code
    desk.tell(BOB, desk.advisory(BOB))  # of another organisation
    assert len(desk.kept.shown(desk.view, asking(ADMIN, admin=True))) == MAX_READERS
    desk.ticks = KEPT_MS
    desk.tell(others[-1], desk.advisory(others[-1]))


MALFORMED = {
    "no query": {"query": ""},
    "a query of several lines": {"query": "a\nb"},
    "a long query": {"query": "x" * 257},
    "no partition": {"positions": ()},
    "a partition twice": {"positions": (Standpoint(0, 1, 1), Standpoint(0, 1, 2))},
    "partitions in another order": {"positions": (Standpoint(1, 1, 1), Standpoint(0, 1, 2))},
    "very many partitions": {"positions": tuple(Standpoint(number, 0, 0) for number in range(65))},
    "a negative offset": {"positions": (Standpoint(0, -1, 1),)},
    "no topic": {"topic": ""},
}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_an_advisory_has_one_form_and_bounds(change: dict[str, object]) -> None:
    desk = Desk()
    bad = msgspec.structs.replace(desk.advisory(ALICE), **change)
    assert desk.refused(ALICE, bad) == Malformed.code


@given(st.binary(max_size=200), st.binary(min_size=64, max_size=64))
def test_noise_is_no_advisory(data: bytes, signature: bytes) -> None:
    with pytest.raises(Refused):
        open_advisory(data, signature, GENESIS, NOW)


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=7))
def test_a_changed_advisory_is_not_signed(place: int, bit: int) -> None:
    data = bytearray(SIGNED.advisory)
    data[place % len(data)] ^= 1 << bit
    with pytest.raises(Refused):
        open_advisory(bytes(data), SIGNED.signature, GENESIS, NOW)


def test_a_reader_ahead_of_what_it_knew_has_no_lag() -> None:
    assert Standpoint(0, 9, 4).lag == 0


_DESK = Desk()
GENESIS = _DESK.ledger.genesis
SIGNED = SignedAdvisory(*sign_advisory(_DESK.advisory(ALICE), ALICE.secret))
