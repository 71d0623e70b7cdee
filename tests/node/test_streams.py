"""An open stream: what it shows is judged again under every certified header, and stays within credit, order and certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

import pytest
from tests.application.world import ADMIN, Actor
from tests.client.ledger import Ledger, note
from tests.node.ledger_broker import LedgerBroker

from parley.model.batches import Withheld
from parley.model.expressions import parse_constraint
from parley.model.names import sorted_pairs
from parley.model.refusals import Invalid, NotFound, NotReady, PermissionDenied, Revoked
from parley.modules.registry.operations import AlterClient, RevokeClient
from parley.modules.registry.tables import CLIENTS
from parley.modules.retention.refusals import Pruned
from parley.modules.subscriptions.operations import Unsubscribe
from parley.modules.subscriptions.receipts import PartitionStart, match_of
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.modules.topics.refusals import UnknownPartition
from parley.net.messages import Delivery, Head, OpenStream, StreamPosition, decode_answer, encode
from parley.node import streams
from parley.node.pieces import Shelf
from parley.node.streams import MAX_CREDIT, Pushed, Stream, Unfinished
from parley.node.view import View

RULE = 'role == "doctor"'
INTERVAL = 1_000  # ms between heads


@dataclass
class Desk:
    """A broker whose topic two clients follow: a doctor and a nurse. Bob publishes."""

    broker: LedgerBroker = field(default_factory=LedgerBroker)
    shelf: Shelf = field(default_factory=Shelf)

    def __post_init__(self) -> None:
        self.doctor = self.ledger.client("dora", role="doctor")
        self.nurse = self.ledger.client("nora", role="nurse")
        self.bob = self.ledger.client("bob", "hospital-b")
        self.ledger.topic("notes")
        (self.start,) = self.ledger.subscribe(self.doctor, "notes")
        self.ledger.subscribe(self.nurse, "notes")
        self.view: View = self.broker.certify()

    @property
    def ledger(self) -> Ledger:
        return self.broker.ledger

    def certify(self) -> None:
        self.view = self.broker.certify()

    def publish(self, *texts: str, rule: str = "") -> None:
        """All in one block."""
        self.ledger.publish(self.bob, "notes", *(note(text, rule) for text in texts))

    def ask(self, who: Actor, *starts: PartitionStart, credit: int = 100, where: str = "") -> Stream:
        positions = tuple(StreamPosition(one.partition, one.incarnation, one.next_ps) for one in starts)
        question = OpenStream(1, "notes", parse_constraint(where).id, positions, credit)
        return Stream(question, self.broker.caller(who), INTERVAL, self.shelf)

    def open(self, who: Actor, credit: int = 100) -> Stream:
        stream = self.ask(who, self.start, credit=credit)
        stream.open(self.view)
        return stream

    def said(self, stream: Stream, ticks: int = 0) -> Delivery | Head | None:
        """What the stream says next, once it is put together."""
        while isinstance(pushed := stream.next(self.view, ticks), Unfinished):
            pass
        if pushed is None:
            return None
        answer = decode_answer(encode(pushed.answer))
        assert isinstance(answer, Delivery | Head)
        return answer

    def shown(self, stream: Stream) -> list[str]:
        """The messages that the stream delivers now; what is redacted is a question mark."""
        found: list[str] = []
        while isinstance(answer := self.said(stream), Delivery):
            contents = [one for block in answer.blocks for one in block.contents]
            found += ["?" if isinstance(one, Withheld) else one.payload.decode() for one in contents]
        return found


@pytest.fixture
def desk() -> Desk:
    return Desk()


# -- rights ------------------------------------------------------------------------------------------------------------


def test_a_right_that_is_lost_while_a_stream_is_open_ends_it(desk: Desk) -> None:
    """What was published before and not sent yet is not sent any more, either."""
    stream = desk.open(desk.nurse)
    desk.publish("one")
    desk.certify()
    assert desk.shown(stream) == ["one"]
    desk.publish("two")
    desk.ledger.do(ADMIN, AlterTopic("notes", None, None, None, RULE))
    desk.certify()
    with pytest.raises(PermissionDenied):
        desk.said(stream)
    assert desk.shown(desk.open(desk.doctor)) == ["one", "two"]


def test_a_client_that_is_revoked_while_its_stream_is_open_hears_no_more(desk: Desk) -> None:
    stream = desk.open(desk.nurse)
    desk.publish("one")
    desk.ledger.do(ADMIN, RevokeClient("nora"))
    desk.certify()
    with pytest.raises(Revoked):
        desk.said(stream)


def test_who_may_not_read_opens_no_stream(desk: Desk) -> None:
    desk.ledger.do(ADMIN, AlterTopic("notes", None, None, None, RULE))
    desk.certify()
    desk.open(desk.doctor)
    with pytest.raises(PermissionDenied):
        desk.open(desk.nurse)


def test_what_a_rule_hides_is_judged_for_each_reader(desk: Desk) -> None:
    """Whoever comes first: what is put together for one is not what another one is shown."""
    desk.publish("open")
    desk.publish("secret", rule=RULE)
    desk.certify()
    for readers in permutations([desk.doctor, desk.doctor, desk.nurse, desk.nurse]):
        desk.shelf = Shelf()
        for who in readers:
            assert desk.shown(desk.open(who)) == ["open", "secret" if who == desk.doctor else "?"]


def test_redacted_messages_come_with_the_readers_own_record(desk: Desk) -> None:
    stream, other = desk.open(desk.nurse), desk.open(desk.doctor)
    desk.publish("secret", rule=RULE)
    desk.certify()
    answer = desk.said(stream)
    assert isinstance(answer, Delivery)
    assert answer.reader is not None
    assert answer.reader.key == CLIENTS.key(desk.nurse.key)
    answer = desk.said(other)
    assert isinstance(answer, Delivery)
    assert answer.reader is None


def test_a_block_that_was_begun_is_begun_again_when_the_reader_has_lost_an_attribute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_SHOWN_MESSAGES", 2)
    stream = desk.open(desk.doctor)
    desk.publish("one", "two", "three", "four", "five", rule=RULE)
    desk.certify()
    assert isinstance(stream.next(desk.view, 0), Unfinished)
    assert isinstance(stream.next(desk.view, 0), Unfinished)
    desk.ledger.do(ADMIN, AlterClient("dora", sorted_pairs({"role": "nurse"}), ()))
    desk.certify()
    assert desk.shown(stream) == ["?"] * 5


def test_a_block_that_was_begun_is_begun_again_when_the_reader_subscribes_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease has lapsed for a moment, and others have kept the order."""
    monkeypatch.setattr(streams, "MAX_SHOWN_MESSAGES", 2)
    stream = desk.open(desk.doctor, credit=6)
    desk.publish("one", "two", "three", "four", "five")
    desk.certify()
    assert isinstance(stream.next(desk.view, 0), Unfinished)
    desk.ledger.do(desk.doctor, Unsubscribe("notes", parse_constraint("").text))
    desk.certify()
    assert isinstance(stream.next(desk.view, 0), Pushed)  # the proof that it does not subscribe
    desk.ledger.subscribe(desk.doctor, "notes", "")
    desk.publish("six")
    desk.certify()
    assert desk.shown(stream) == ["one", "two", "three", "four", "five", "six"]


# -- what a stream may name --------------------------------------------------------------------------------------------


def test_a_stream_is_opened_in_orders_that_exist_and_in_each_once(desk: Desk) -> None:
    start = desk.start
    with pytest.raises(Invalid):
        desk.ask(desk.doctor, start, start).open(desk.view)
    with pytest.raises(UnknownPartition):
        desk.ask(desk.doctor, start, PartitionStart(1, start.incarnation, 0, 0)).open(desk.view)
    desk.ledger.subscribe(desk.doctor, "notes", 'ward == "er"')
    desk.certify()
    with pytest.raises(NotFound):
        desk.ask(desk.doctor, start, where='ward == "er"').open(desk.view)
    with pytest.raises(NotFound):
        desk.ask(desk.doctor, PartitionStart(0, (1, 0), 0, 0)).open(desk.view)


def test_an_order_of_others_that_has_ended_is_not_streamed(desk: Desk) -> None:
    """Its place, which can be guessed, would tell when others took the constraint up and left it."""
    where = 'ward == "er"'
    (theirs,) = desk.ledger.subscribe(desk.doctor, "notes", where)
    desk.ledger.publish(desk.bob, "notes", note("one", ward="er"))
    desk.ledger.do(desk.doctor, Unsubscribe("notes", where))
    (own,) = desk.ledger.subscribe(desk.nurse, "notes", where)
    desk.certify()
    desk.ask(desk.nurse, own, where=where).open(desk.view)
    with pytest.raises(NotFound) as found:
        desk.ask(desk.nurse, theirs, where=where).open(desk.view)
    with pytest.raises(NotFound) as guessed:
        desk.ask(desk.nurse, PartitionStart(0, (own.incarnation[0], 7), 0, 0), where=where).open(desk.view)
    assert found.value.data == guessed.value.data


def test_an_order_that_began_above_the_certified_height_is_asked_for_again(desk: Desk) -> None:
    """This broker is behind; the order is not said to be none."""
    later = PartitionStart(0, (desk.view.height + 1, 0), 0, 0)
    with pytest.raises(NotReady):
        desk.ask(desk.doctor, later).open(desk.view)


def test_a_stream_does_not_go_on_in_the_next_life_of_its_topic(desk: Desk) -> None:
    """Who may read what the name is used for now has no right to what it was used for before."""
    stream = desk.open(desk.nurse)
    desk.publish("one")
    desk.ledger.do(ADMIN, DeleteTopic("notes"))
    desk.ledger.do(ADMIN, CreateTopic("notes", 1, Policy(), "", ""))
    desk.certify()
    with pytest.raises(NotFound):
        desk.said(stream)
    with pytest.raises(NotFound):
        desk.open(desk.nurse)


def test_what_retention_is_over_for_is_not_streamed(desk: Desk) -> None:
    stream = desk.open(desk.doctor)
    desk.publish("one")
    desk.ledger.do(ADMIN, DeleteTopic("notes"))
    desk.certify()
    with pytest.raises(Pruned):
        desk.said(stream)


# -- order, credit and heads -------------------------------------------------------------------------------------------


def test_a_stream_shows_what_is_certified_and_all_of_it(desk: Desk) -> None:
    stream = desk.open(desk.doctor)
    desk.publish("one")
    desk.certify()
    desk.publish("two")
    desk.broker.execute()  # and that is not certified yet
    assert desk.shown(stream) == ["one"]
    desk.certify()
    assert desk.shown(stream) == ["two"]
    assert desk.shown(desk.open(desk.nurse)) == ["one", "two"]


def test_a_stream_stays_within_its_credit_but_for_the_rest_of_a_block(desk: Desk) -> None:
    stream = desk.open(desk.doctor, credit=1)
    desk.publish("one")
    desk.publish("two", "three")
    desk.publish("four")
    desk.certify()
    assert desk.shown(stream) == ["one"]
    stream.add_credit(1)
    assert desk.shown(stream) == ["two", "three"]
    stream.add_credit(1)  # which the block's last message has used up before
    assert desk.shown(stream) == []
    stream.add_credit(1)
    assert desk.shown(stream) == ["four"]


def test_credit_does_not_pile_up_without_end(desk: Desk) -> None:
    stream = desk.open(desk.doctor)
    for _ in range(3):
        stream.add_credit(MAX_CREDIT)
    assert stream._credit == MAX_CREDIT


def test_a_stream_ends_with_its_order_if_its_reader_begins_another_one(desk: Desk) -> None:
    """What was not sent yet is read by offset: the reader's subscription may have ended long before the order did."""
    stream = desk.open(desk.doctor)
    desk.publish("one")
    for who in (desk.nurse, desk.doctor):
        desk.ledger.do(who, Unsubscribe("notes", parse_constraint("").text))
    desk.ledger.subscribe(desk.doctor, "notes", "")
    desk.certify()
    with pytest.raises(NotSubscribed):
        desk.said(stream)


def test_heads_come_once_for_a_header_and_not_more_often_than_they_must(desk: Desk) -> None:
    stream = desk.open(desk.doctor)
    assert isinstance(desk.said(stream, 0), Head)
    assert desk.said(stream, 10 * INTERVAL) is None, "the same header proves nothing new"
    desk.ledger.apply()
    desk.certify()
    assert isinstance(desk.said(stream, 10 * INTERVAL), Head)
    desk.ledger.apply()
    desk.certify()
    assert desk.said(stream, 11 * INTERVAL - 1) is None
    assert isinstance(desk.said(stream, 11 * INTERVAL), Head)


def test_orders_that_add_to_one_block_are_each_proved_by_their_own_leaf(desk: Desk) -> None:
    """Proofs are remembered for a header: by which leaves they are of, not by the block alone."""
    wheres = ["", 'ward == "er"', 'ward == "icu"']
    starts = {where: desk.ledger.subscribe(desk.nurse, "notes", where)[0] for where in wheres}
    desk.ledger.publish(desk.bob, "notes", note("er", ward="er"), note("icu", ward="icu"))
    desk.certify()
    for where, start in starts.items():
        stream = desk.ask(desk.nurse, start, where=where)
        stream.open(desk.view)
        answer = desk.said(stream)
        assert isinstance(answer, Delivery)
        (block,) = answer.blocks
        match = match_of(desk.ledger.trust.certified(answer.anchor).leaves(block.proof)[-1])
        assert match is not None
        assert match.constraint == parse_constraint(where).id
