"""Who is shown what by a broker: records of clients, topics, pages and blocks, by the certified state and nothing else."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace
from tests.application.world import ADMINS, ORGANISATIONS, Actor, actor
from tests.client.ledger import note
from tests.node.answering import block_name, fetched, listed, proven
from tests.node.ledger_broker import LedgerBroker

from parley.model.batches import Withheld
from parley.model.credentials import Credential
from parley.model.expressions import parse_constraint
from parley.model.names import sorted_pairs
from parley.model.principals import AUDITOR, ClientRecord
from parley.model.refusals import LimitExceeded, PermissionDenied, Refused, Revoked, UnknownClient
from parley.modules.advertisements.tables import ADVERTISEMENTS
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.retention.refusals import Pruned
from parley.modules.staging.tables import STAGES
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import UnknownPartition, UnknownTopic
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.messages import (
    Fetch,
    Fetched,
    ListKeys,
    Prove,
    ReadHeader,
    Skipped,
    decode_answer,
    encode,
)
from parley.node.access import Caller, require_auditor
from parley.node.services import proving
from parley.node.services.fetching import has_arrived
from parley.node.view import View

OURS, THEIRS, *_ = ORGANISATIONS
ADMIN, FOREIGN_ADMIN = ADMINS[OURS], ADMINS[THEIRS]
SECRET = 'role == "doctor"'


class World:
    """Two organisations, each with a client, a topic for everybody and one that nobody may use."""

    def __init__(self) -> None:
        self.broker = LedgerBroker()
        ledger = self.broker.ledger
        self.alice, self.anna = ledger.client("alice"), ledger.client("anna", role="doctor")
        self.bob = ledger.client("bob", THEIRS)
        for organisation in (OURS, THEIRS):
            for name, rule in (("open", ""), ("closed", "false")):
                operation = CreateTopic(f"{organisation}/{name}", 1, Policy(), rule, rule)
                assert ledger.do(ADMINS[organisation], operation).is_done
        self.view: View = self.broker.certify()

    def certify(self) -> None:
        self.view = self.broker.certify()

    def why_hidden(self, who: Actor, *keys: bytes) -> Refused | None:
        try:
            proven(self.view, self.broker.caller(who), Prove(1, keys))
        except Refused as refused:
            return refused
        return None

    def why_unlisted(self, who: Actor, prefix: bytes) -> Refused | None:
        try:
            self.listed(who, prefix)
        except Refused as refused:
            return refused
        return None

    def listed(self, who: Actor, prefix: bytes) -> tuple[bytes, ...]:
        return listed(self.view, self.broker.caller(who), ListKeys(1, prefix, b""), lambda _: None).keys

    def page(self, who: Actor, topic: str, offset: int = 0, partition: int = 0) -> Fetched:
        question = Fetch(1, topic, partition, offset, 1_000_000, 0)
        answer = fetched(self.view, self.broker.caller(who), question, lambda _: None)
        found = decode_answer(encode(answer))
        assert isinstance(found, Fetched)
        return found


@pytest.fixture
def world() -> World:
    return World()


# -- records -----------------------------------------------------------------------------------------------------------


def test_an_administrator_sees_the_clients_of_its_own_organisation_and_no_others(world: World) -> None:
    for client in (world.alice, world.anna):
        assert world.why_hidden(ADMIN, CLIENTS.key(client.key)) is None
    assert world.why_hidden(ADMIN, CLIENTS.key(world.bob.key)) is not None
    assert world.why_hidden(FOREIGN_ADMIN, CLIENTS.key(world.bob.key)) is None
    # Nor that somebody else has no such client: keys that are no client's could be told from theirs.
    assert world.why_hidden(ADMIN, CLIENTS.key(bytes(32))) is not None


def test_a_client_sees_its_own_record_and_no_others(world: World) -> None:
    assert world.why_hidden(world.alice, CLIENTS.key(world.alice.key)) is None
    for other in (world.anna, world.bob):
        assert world.why_hidden(world.alice, CLIENTS.key(other.key)) is not None


def test_names_of_clients_are_seen_within_their_organisation_only(world: World) -> None:
    assert world.why_hidden(ADMIN, NAMES.key(OURS, "alice")) is None
    assert world.why_hidden(ADMIN, NAMES.key(OURS, "who-is-not-there")) is None
    assert world.why_hidden(ADMIN, NAMES.key(THEIRS, "bob")) is not None
    assert world.why_unlisted(ADMIN, NAMES.prefix(THEIRS)) is not None
    assert world.listed(ADMIN, NAMES.prefix(OURS)) == (NAMES.key(OURS, "alice"), NAMES.key(OURS, "anna"))
    assert world.why_hidden(world.alice, NAMES.key(OURS, "alice")) is None
    assert world.why_hidden(world.alice, NAMES.key(OURS, "anna")) is not None
    assert world.why_hidden(world.alice, NAMES.key(THEIRS, "alice")) is not None
    assert world.why_unlisted(world.alice, NAMES.prefix(OURS)) is not None


def test_an_administrator_describes_the_topics_of_its_own_organisation_and_those_open_to_it(
    world: World,
) -> None:
    for admin, own, other in ((ADMIN, OURS, THEIRS), (FOREIGN_ADMIN, THEIRS, OURS)):
        for name in ("open", "closed"):
            for table in (TOPICS.key(f"{own}/{name}"), HEADS.key(f"{own}/{name}", 0)):
                assert world.why_hidden(admin, table) is None
        for key in (
            TOPICS.key(f"{other}/closed"),
            HEADS.key(f"{other}/closed", 0),
            ADVERTISEMENTS.key(f"{other}/closed", world.alice.key),
        ):
            assert world.why_hidden(admin, key) is not None
        assert world.why_unlisted(admin, HEADS.prefix(f"{other}/closed")) is not None
        assert TOPICS.key(f"{other}/closed") not in world.listed(admin, TOPICS.prefix())
        assert TOPICS.key(f"{own}/closed") in world.listed(admin, TOPICS.prefix())


def test_a_client_describes_only_what_it_may_use(world: World) -> None:
    for organisation in (OURS, THEIRS):
        assert world.why_hidden(world.alice, HEADS.key(f"{organisation}/open", 0)) is None
        for key in (TOPICS.key(f"{organisation}/closed"), HEADS.key(f"{organisation}/closed", 0)):
            assert world.why_hidden(world.alice, key) is not None
    assert world.why_unlisted(world.alice, HEADS.prefix(f"{OURS}/closed")) is not None
    assert world.why_unlisted(world.alice, HEADS.prefix()) is not None, "a list is bound to one topic"


def test_what_a_client_did_is_shown_to_nobody_else(world: World) -> None:
    topic, writer = f"{OURS}/open", bytes(16)
    for who in (world.anna, world.bob, ADMIN):
        assert world.why_hidden(who, SUBSCRIPTIONS.key(topic, bytes(32), world.alice.key)) is not None
        assert world.why_hidden(who, STAGES.key(topic, (2, 0), world.alice.key, writer)) is not None
    assert world.why_hidden(world.alice, SUBSCRIPTIONS.key(topic, bytes(32), world.alice.key)) is None
    assert world.why_hidden(world.alice, STAGES.key(topic, (2, 0), world.alice.key, writer)) is None


def test_the_head_of_an_order_is_shown_to_those_who_subscribe_while_they_may(world: World) -> None:
    topic, ledger = f"{OURS}/open", world.broker.ledger
    ledger.subscribe(world.alice, topic)
    world.certify()
    head = ORDER_HEADS.key(topic, 0, parse_constraint("").id)
    assert world.why_hidden(world.alice, head) is None
    for who in (world.anna, world.bob, ADMIN):
        assert world.why_hidden(who, head) is not None
    assert ledger.do(ADMIN, AlterTopic(topic, None, None, None, SECRET)).is_done
    world.certify()
    assert world.why_hidden(world.alice, head) is not None


def test_that_there_is_no_topic_is_said_with_the_height_by_which_it_was_judged(world: World) -> None:
    why = world.why_hidden(world.alice, TOPICS.key("nowhere"))
    assert isinstance(why, UnknownTopic)
    assert why.fields["judged"] == world.view.height


def test_of_several_entries_each_is_judged(world: World) -> None:
    own, other = CLIENTS.key(world.alice.key), CLIENTS.key(world.bob.key)
    assert world.why_hidden(world.alice, own, own) is None
    assert world.why_hidden(world.alice, own, other) is not None
    assert world.why_hidden(world.alice, other, own) is not None


def test_a_revoked_client_sees_that_it_was_revoked_and_nothing_else(world: World) -> None:
    topic = f"{OURS}/open"
    assert world.page(world.alice, topic).blocks == ()
    assert world.broker.ledger.do(ADMIN, RevokeClient("alice")).is_done
    world.certify()
    assert world.why_hidden(world.alice, CLIENTS.key(world.alice.key)) is None
    assert world.why_hidden(world.alice, HEADS.key(topic, 0)) is not None
    assert isinstance(world.why_unlisted(world.alice, TOPICS.prefix()), Revoked)
    with pytest.raises(Revoked):
        world.page(world.alice, topic)
    with pytest.raises(Revoked):
        block_name(world.view, world.broker.caller(world.alice), ReadHeader(1, 1), lambda _: None)


def test_a_stranger_is_told_nothing(world: World) -> None:
    """Its organisation vouches for it, and nobody has registered it."""
    stranger = actor("stranger")
    with pytest.raises(UnknownClient):
        world.page(stranger, f"{OURS}/open")
    with pytest.raises(UnknownClient):
        block_name(world.view, world.broker.caller(stranger), ReadHeader(1, 1), lambda _: None)
    newest = block_name(world.view, world.broker.caller(stranger), ReadHeader(1, 0), lambda _: None)
    assert (newest.anchor, newest.block) == (world.view.anchor, None), "it tells what time it is, and no more"
    assert world.why_hidden(stranger, HEADS.key(f"{OURS}/open", 0)) is not None


def test_an_administrator_that_is_no_client_is_shown_headers(world: World) -> None:
    """Its clock may be behind as well: without headers to compare it would take nothing for new."""
    found = block_name(world.view, world.broker.caller(ADMIN), ReadHeader(1, 0), lambda _: None)
    assert found.block is not None


# -- auditors ----------------------------------------------------------------------------------------------------------


class Registry:
    """A state with one client, who has the right of an auditor."""

    def __init__(self, record: ClientRecord) -> None:
        self._record = record

    def read(self, *_: object) -> ClientRecord:
        return self._record


def test_a_revoked_auditor_is_none_any_more(world: World) -> None:
    key = world.alice.key
    record = ClientRecord(OURS, "alice", key, (), revoked=False, changed=1, rights=(AUDITOR,))
    caller = world.broker.caller(world.alice)
    require_auditor(cast("View", Registry(record)), caller)
    with pytest.raises(Revoked):
        require_auditor(cast("View", Registry(replace(record, revoked=True))), caller)
    with pytest.raises(PermissionDenied):
        require_auditor(cast("View", Registry(replace(record, rights=()))), caller)


def test_the_right_of_an_organisation_is_that_of_its_administrators_and_not_of_its_clients(
    world: World,
) -> None:
    genesis = world.broker.ledger.genesis
    entitled = tuple(
        replace(one, rights=(AUDITOR,)) if one.name == OURS else one for one in genesis.organisations
    )
    genesis = replace(genesis, organisations=entitled)

    def caller(who: Actor) -> Caller:
        credential = Credential(genesis.chain, who.organisation, who.name, who.key, 2**61, bytes(64))
        return Caller.of(credential, genesis)

    assert caller(ADMIN).auditor
    assert not caller(world.alice).auditor
    assert not caller(FOREIGN_ADMIN).auditor


# -- pages -------------------------------------------------------------------------------------------------------------


def test_a_page_is_for_those_who_may_subscribe_and_not_for_those_who_may_publish(world: World) -> None:
    ledger = world.broker.ledger
    ledger.topic("inbox", publish="", subscribe=SECRET)
    ledger.topic("news", publish=SECRET, subscribe="")
    world.certify()
    with pytest.raises(PermissionDenied):
        world.page(world.alice, "inbox")
    world.page(world.anna, "inbox")
    world.page(world.alice, "news")


def test_a_page_is_of_a_partition_that_exists_and_of_a_topic_that_lives(world: World) -> None:
    topic = f"{OURS}/open"
    with pytest.raises(UnknownPartition):
        world.page(world.alice, topic, partition=1)
    assert world.broker.ledger.do(ADMIN, DeleteTopic(topic)).is_done
    world.certify()
    with pytest.raises(UnknownTopic):
        world.page(world.alice, topic)


def test_a_message_goes_out_only_to_those_whom_its_rule_allows(world: World) -> None:
    ledger, topic = world.broker.ledger, f"{OURS}/open"
    ledger.publish(world.bob, topic, note("for all"), note("for doctors", SECRET))
    world.certify()
    page = world.page(world.alice, topic)
    shown, hidden = page.blocks[0].batches[0].contents
    assert not isinstance(shown, Withheld)
    assert isinstance(hidden, Withheld)
    assert page.reader is not None, "the record by which it was judged is shown as well"
    assert page.reader.key == CLIENTS.key(world.alice.key)
    page = world.page(world.anna, topic)
    assert not any(isinstance(one, Withheld) for one in page.blocks[0].batches[0].contents)
    assert page.reader is None
    # From its middle on, the first message is left out, whatever it says.
    left, hidden = world.page(world.alice, topic, 1).blocks[0].batches[0].contents
    assert isinstance(left, Skipped)
    assert isinstance(hidden, Withheld)


def test_a_page_ends_where_the_certified_state_ends(world: World) -> None:
    ledger, topic = world.broker.ledger, f"{OURS}/open"
    ledger.publish(world.bob, topic, note("one"))
    world.certify()
    ledger.publish(world.bob, topic, note("two"))
    world.broker.execute()  # and that is not certified yet
    assert len(world.page(world.alice, topic).blocks) == 1
    assert world.page(world.alice, topic, 1).blocks == ()
    arrived = [has_arrived(world.view, Fetch(1, topic, 0, offset, 9, 0)) for offset in (0, 1, 2)]
    assert arrived == [True, False, False]
    world.certify()
    assert len(world.page(world.alice, topic).blocks) == 2


def test_what_retention_is_over_for_is_not_shown_and_what_follows_is(world: World) -> None:
    ledger, topic = world.broker.ledger, f"{OURS}/open"
    ledger.publish(world.bob, topic, note("old"))
    assert ledger.do(ADMIN, DeleteTopic(topic)).is_done
    assert ledger.do(ADMIN, CreateTopic(topic, 1, Policy(), "", "")).is_done
    world.certify()
    with pytest.raises(Pruned):
        world.page(world.alice, topic, 0)
    assert world.page(world.alice, topic, 1).blocks == ()


def test_a_list_passes_over_so_many_entries_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each entry that is not for the client takes as long as one that is."""
    monkeypatch.setattr(proving, "MAX_EXAMINED", 4)
    assert len(world.listed(world.alice, TOPICS.prefix())) == 2
    monkeypatch.setattr(proving, "MAX_EXAMINED", 3)
    assert isinstance(world.why_unlisted(world.alice, TOPICS.prefix()), LimitExceeded)


@pytest.mark.parametrize("after", [b"", b"topic/a"])
def test_the_names_of_hidden_topics_are_not_found_by_what_lists_cost(world: World, after: bytes) -> None:
    ledger, hidden = world.broker.ledger, TOPICS.key("merger-acme")
    assert ledger.do(ADMIN, CreateTopic("merger-acme", 1, Policy(), SECRET, SECRET)).is_done
    world.certify()
    assert world.why_hidden(world.alice, hidden) is not None
    costs: list[int] = []
    for prefix, begin in ((b"topic/merger-a", after), (b"topic/merger-z", after), (TOPICS.prefix(), hidden)):
        question = ListKeys(1, prefix, begin)
        with pytest.raises(PermissionDenied):
            listed(world.view, world.broker.caller(world.alice), question, costs.append)
    assert costs == []


def test_a_list_goes_on_after_what_was_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = world.listed(world.alice, TOPICS.prefix())
    rest = ListKeys(1, TOPICS.prefix(), whole[0])
    assert listed(world.view, world.broker.caller(world.alice), rest, lambda _: None).keys == whole[1:]


def test_an_attribute_that_was_taken_away_hides_from_the_next_certified_header_on(world: World) -> None:
    ledger, topic = world.broker.ledger, f"{OURS}/open"
    ledger.publish(world.bob, topic, note("for doctors", SECRET))
    world.certify()
    assert world.page(world.anna, topic).reader is None
    assert ledger.do(ADMIN, AlterClient("anna", sorted_pairs({"role": "nurse"}), ())).is_done
    world.certify()
    (hidden,) = world.page(world.anna, topic).blocks[0].batches[0].contents
    assert isinstance(hidden, Withheld)
