"""Questions about a topic that is hidden, that was deleted or that never was have the same answers.

Three brokers have executed the same ledger but for one topic. Every question that names a topic is put to each of
them by those who may not know of it, with all keys and prefixes that they can put together. Answers and charges are
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import pytest
from tests.application.world import (
    ADMIN,
    ADMINS,
    ORGANISATIONS,
    SESSION,
    START,
    WRITER,
    Actor,
    Signed,
    actor,
    tagged,
)
from tests.node.answering import fetched, listed, proven
from tests.node.guessing import Guesses
from tests.node.ledger_broker import LedgerBroker

from parley.application.operations import Operation
from parley.applications import DATA_SHARD
from parley.model.advisories import Advisory, Standpoint, sign_advisory
from parley.model.credentials import issue_credential
from parley.model.expressions import parse_constraint
from parley.model.receipts import BatchReceipt
from parley.model.refusals import OK, Refused
from parley.modules.advertisements.operations import Advertise
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.staging.operations import CommitStage
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic
from parley.net import messages as net
from parley.node.access import Caller
from parley.node.advisories import Advisories
from parley.node.pieces import Shelf
from parley.node.streams import Pushed, Stream

OURS, THEIRS = ORGANISATIONS[0], "insurer"
SECRET, ANOTHER = "secret", "another"
INTEREST = "a = 1"
BEFORE = 'role == "owner" or role == "former"'
NOW = 'role == "owner"'


CONSTRAINT = parse_constraint(INTEREST).id


class Fate(Enum):
    HIDDEN = "is hidden"
    DELETED = "was deleted"
    ABSENT = "never was"


OWNER = actor("owner")
KINDS = {
    "a client of the owner's organisation": actor("plain"),
    "a client whose subscription ended before its right did": actor("former"),
    "a client of another organisation": actor("other", THEIRS),
    "a client that was revoked": actor("revoked", THEIRS),
    "a client that was never registered": actor("stranger", THEIRS),
    "an administrator of another organisation": ADMINS[THEIRS],
}


class Broker(LedgerBroker):
    """The owner has used the topic, and another client while it had the right. If it never was, another topic."""

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        ledger, topic = self.ledger, ANOTHER if fate is Fate.ABSENT else SECRET
        owner, former = ledger.client("owner", role="owner"), ledger.client("former", role="former")
        ledger.client("plain")
        ledger.client("other", THEIRS)
        ledger.client("revoked", THEIRS)
        self._do(ADMINS[THEIRS], RevokeClient("revoked"))
        ledger.topic(topic, partitions=2, publish=BEFORE, subscribe=BEFORE)
        (start, *_) = ledger.subscribe(owner, topic, INTEREST)
        self.began = start.incarnation
        ledger.subscribe(former, topic, INTEREST)
        for who in (former, owner):
            self._do(who, Advertise(topic, "news"))
        for partition in (0, 1):
            assert ledger.publish(owner, topic, tagged(a=1), partition=partition).code == OK
        self._do(former, Unsubscribe(topic, INTEREST))
        self._do(ADMIN, AlterTopic(topic, None, None, NOW, NOW))
        if fate is Fate.DELETED:
            self._do(ADMIN, DeleteTopic(topic))
        else:
            ledger.wait(1)
        ledger.wait(3)
        self.view = self.certify()
        self._advisories = Advisories(ledger.genesis, lambda: START, lambda: 0)

    def _do(self, who: Actor, operation: Operation) -> None:
        assert self.ledger.do(who, operation).code == OK

    def answer(self, who: Actor, question: net.Question, charge: Callable[[int], None]) -> object:
        """As a session answers. Raises `Refused`."""
        view, caller = self.view, self.caller(who)
        match question:
            case net.Prove():
                return proven(view, caller, question)
            case net.ListKeys():
                return listed(view, caller, question, charge)
            case net.Fetch():
                return fetched(view, caller, question, charge)
            case net.OpenStream():
                stream = Stream(question, caller, 0, Shelf())
                stream.open(view)
                return stream.next(view, 0)
            case net.Advise():
                self._advisories.take(view, caller, question)
                return net.Advised(question.id)
            case net.Submit():
                return self._submitted(caller, question, charge)
            case _:
                raise AssertionError(f"{type(question).__name__} names no topic")

    def _submitted(self, caller: Caller, question: net.Submit, charge: Callable[[int], None]) -> object:
        """What the batch would get if it were ordered next."""
        ledger = self.ledger
        batch = ledger.machine.admit(question.batch)
        if batch.operation is not None:
            charge(DATA_SHARD.cost_of(self.view, caller.principal(self.view), batch.operation))
        block = ledger.next_block([Signed(batch.digest, question.batch)])
        (first, *more) = ledger.machine.apply(block, [(batch.digest, question.batch)], ledger.store).leaves
        receipt = DATA_SHARD.decode_leaf(first)
        assert isinstance(receipt, BatchReceipt)
        return receipt.outcome, len(more)


# -- every question that names a topic -----------------------------------------------------------------------------------


def guesses(broker: Broker, who: Actor) -> Guesses:
    return Guesses(
        texts=(SECRET, OURS, "owner"),
        hashes=(CONSTRAINT, OWNER.key, who.key),
        numbers=(0, 1, 2),
        larges=(0, 1),
        positions=(broker.began,),
        sessions=(SESSION, WRITER),
        rests=(b"", OWNER.key, who.key),
    )


def prove(broker: Broker, who: Actor) -> list[net.Question]:
    return [net.Prove(1, (key,)) for key in guesses(broker, who).entries()]


def list_keys(broker: Broker, who: Actor) -> list[net.Question]:
    """The last byte is left out as well, so that a prefix ends within a part of a key."""
    return [
        net.ListKeys(1, prefix[:end], after)
        for prefix, after in guesses(broker, who).lists()
        for end in (len(prefix), len(prefix) - 1)
    ]


def fetch(_broker: Broker, _who: Actor) -> list[net.Question]:
    return [
        net.Fetch(1, SECRET, partition, offset, 1_000, 0)
        for partition in (0, 1, 2)
        for offset in (0, 1, 2**40)
    ]


def open_stream(broker: Broker, _who: Actor) -> list[net.Question]:
    return [
        net.OpenStream(1, SECRET, CONSTRAINT, (net.StreamPosition(partition, began, ps),), 10)
        for partition in (0, 1, 2)
        for began in (broker.began, (1, 0), (2**40, 0))
        for ps in (0, 1)
    ]


def advise(broker: Broker, who: Actor) -> list[net.Question]:
    anchor = actor("anchor", who.organisation).secret
    credential = issue_credential(
        broker.ledger.chain, who.organisation, who.name, who.key, not_after=2**60, anchor=anchor
    )
    told = Advisory(credential, "query", "run", SECRET, (Standpoint(0, 0, 1),), START)
    return [net.Advise(1, *sign_advisory(told, who.secret))]


def submit(broker: Broker, who: Actor) -> list[net.Question]:
    """A batch of each kind, and an operation of each kind that names a topic that there is."""
    ledger = broker.ledger
    batches = [
        ledger.batch(who, [tagged(a=1)], kind=kind, topic=SECRET, session=NEW, sequence=0)
        for kind in DATA_SHARD.batch_kinds
    ]
    operations = [ledger.control(who, one, session=NEW, sequence=0) for one in OPERATIONS]
    return [net.Submit(1, batch.body) for batch in (*batches, *operations)]


NEW = b"n" * 16  # a session that has not been used yet
OPERATIONS = (
    AlterTopic(SECRET, 4, None, None, None),
    DeleteTopic(SECRET),
    Subscribe(SECRET, INTEREST, (9, 0)),
    Unsubscribe(SECRET, INTEREST),
    CommitStage(SECRET, WRITER, 0, (bytes(32),)),
    Advertise(SECRET, "news"),
)
OTHER_OPERATIONS = {RegisterClient, AlterClient, RevokeClient, GrantRight, RevokeRight, CreateTopic}

QUESTIONS: dict[type, Callable[[Broker, Actor], list[net.Question]]] = {
    net.Prove: prove,
    net.ListKeys: list_keys,
    net.Fetch: fetch,
    net.OpenStream: open_stream,
    net.Advise: advise,
    net.Submit: submit,
}
NAME_NO_TOPIC = {
    net.Credit,
    net.CloseStream,
    net.StatusRequest,
    net.ReadBlocks,
    net.ReadBodies,
    net.ReadEvidence,
    net.ReadHeader,
}


def test_every_question_and_every_operation_that_names_a_topic_has_a_case() -> None:
    assert set(QUESTIONS) | NAME_NO_TOPIC == set(net.EXCHANGES)
    assert {type(one) for one in OPERATIONS} | OTHER_OPERATIONS == set(DATA_SHARD.operations.values())


# -- what is answered ----------------------------------------------------------------------------------------------------


Brokers = dict[Fate, Broker]
Said = tuple[object, tuple[int, ...]]  # what is answered or refused, and what was charged for it


@pytest.fixture(scope="module")
def brokers() -> Brokers:
    return {fate: Broker(fate) for fate in Fate}


def said(broker: Broker, who: Actor, question: net.Question) -> Said:
    """Any other exception than a refusal fails the test: it would end the session."""
    charged: list[int] = []
    try:
        answer = shape(broker.answer(who, question, charged.append))
    except Refused as why:
        fields = tuple(field for field in why.data.fields if field[0] != "judged")
        answer = (why.code, why.reason, fields)
    return answer, tuple(charged)


def shape(answer: object) -> object:
    """What an answer says, but for its proofs and as of when."""
    match answer:
        case Pushed():
            return (shape(answer.answer), answer.messages, answer.more)
        case net.Proven() | net.Head():
            return [(entry.key, entry.value) for entry in answer.entries]
        case net.SplicedFetched():
            return (answer.head.key, answer.head.value, len(answer.blocks))
        case net.PreparedDelivery():
            return len(answer.blocks)
        case _:
            return answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fate", [Fate.HIDDEN, Fate.DELETED], ids=lambda one: one.value)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.__name__)
def test_a_topic_is_answered_for_as_if_it_had_never_been(
    brokers: Brokers, question: type, fate: Fate, kind: str
) -> None:
    who, absent = KINDS[kind], brokers[Fate.ABSENT]
    for asked in QUESTIONS[question](absent, who):
        assert said(brokers[fate], who, asked) == said(absent, who, asked), asked


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.__name__)
def test_those_who_may_know_of_a_topic_are_answered_otherwise(brokers: Brokers, question: type) -> None:
    """Or the test above would find nothing wherever it looks."""
    hidden, deleted, absent = (brokers[fate] for fate in (Fate.HIDDEN, Fate.DELETED, Fate.ABSENT))
    for one, other in ((hidden, absent), (hidden, deleted)):
        asked = QUESTIONS[question](absent, OWNER)
        assert any(said(one, OWNER, each) != said(other, OWNER, each) for each in asked)


def test_the_brokers_differ_in_the_topic_alone(brokers: Brokers) -> None:
    assert len({broker.view.height for broker in brokers.values()}) == 1
    assert len({broker.began for broker in brokers.values()}) == 1
