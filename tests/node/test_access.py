"""What a broker shows follows from what the tables declare, by the certified state; lists, by the newest one as well."""

from __future__ import annotations

import pytest
from tests.application.world import ADMINS, Actor
from tests.node.answering import listed, proven
from tests.node.ledger_broker import LedgerBroker

from parley.application.keeping import RECEIPTS
from parley.model.principals import AUDITOR
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.topics.refusals import UnknownTopic
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.messages import ListKeys, Prove


class Broker(LedgerBroker):
    """A broker that has certified some blocks of a ledger; `execute` runs more, which are not certified yet."""

    def __init__(self) -> None:
        super().__init__()
        self.alice = self.ledger.client("alice")
        self.ledger.topic("open")
        self.view = self.certify()

    def topics(self, who: Actor) -> list[bytes]:
        question = ListKeys(1, TOPICS.prefix(), b"")
        return list(listed(self.view, self.caller(who), question, lambda _: None).keys)

    def why_hidden(self, who: Actor, key: bytes) -> Refused | None:
        try:
            proven(self.view, self.caller(who), Prove(1, (key,)))
        except Refused as refused:
            return refused
        return None


def test_a_topic_that_is_not_certified_yet_is_listed_for_those_only_who_may_describe_it() -> None:
    broker = Broker()
    broker.ledger.topic("closed", publish="false", subscribe="false")
    broker.ledger.topic("later")
    broker.execute()
    assert broker.topics(broker.alice) == [TOPICS.key("later"), TOPICS.key("open")]
    everything = [TOPICS.key(name) for name in ("closed", "later", "open")]
    assert broker.topics(ADMINS[broker.alice.organisation]) == everything


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"nothing",
        b"nothing/else",
        TOPICS.prefix(),
        HEADS.prefix("open"),
        HEADS.key("open", 0)[:-1],
        HEADS.key("open", 0) + b"\0",
        CLIENTS.key(bytes(32)) + b"\0",
        RECEIPTS.key(bytes(32)),  # an index, of which there are no proofs
        b"\xff/" + bytes(40),
    ],
)
def test_what_is_no_whole_key_of_a_table_that_is_shown_is_hidden(key: bytes) -> None:
    broker = Broker()
    for who in (broker.alice, ADMINS[broker.alice.organisation]):
        why = broker.why_hidden(who, key)
        assert why is not None
        assert (why.code, why.reason) == (PermissionDenied.code, "hidden")


def test_names_that_are_no_text_are_names_of_nothing() -> None:
    broker = Broker()
    odd = HEADS.key("open", 0).replace(b"open", b"\xff\xfe")
    why = broker.why_hidden(broker.alice, odd)
    assert isinstance(why, UnknownTopic)
    assert isinstance(broker.why_hidden(broker.alice, TOPICS.prefix() + b"\xff\0"), UnknownTopic)


def test_a_list_that_is_not_made_names_those_that_are() -> None:
    broker = Broker()
    question = ListKeys(1, CLIENTS.prefix(), b"")
    with pytest.raises(PermissionDenied) as refused:
        listed(broker.view, broker.caller(broker.alice), question, lambda _: None)
    tables = str(refused.value.fields["tables"]).split(", ")
    assert {"topic/", "head/ (1)", "name/ (1)"} <= set(tables)


def test_a_client_may_not_list_its_own_name_alone() -> None:
    broker = Broker()
    alice = broker.alice
    question = ListKeys(1, NAMES.key(alice.organisation, alice.name), b"")
    with pytest.raises(PermissionDenied):
        listed(broker.view, broker.caller(alice), question, lambda _: None)
    administrator = broker.caller(ADMINS[alice.organisation])
    assert listed(broker.view, administrator, question, lambda _: None).keys == (question.prefix,)


def test_an_administrator_is_one_of_the_organisation_that_vouches_for_it() -> None:
    broker = Broker()
    ours, theirs, *_ = ADMINS
    assert broker.caller(ADMINS[ours]).administers == ours
    foreign = Actor("admin", theirs, ADMINS[ours].secret)
    assert (broker.caller(foreign).administers, broker.caller(foreign).auditor) == (None, False)
    assert AUDITOR not in broker.ledger.genesis.organisations[0].rights
    assert not broker.caller(ADMINS[ours]).auditor
