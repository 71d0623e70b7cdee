"""The table of services: every question stands in it once and costs something, and a new one is a row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.application.codes import INSURER, with_rights
from tests.application.world import ADMIN, ADMINS, Actor, actor
from tests.client.ledger import note
from tests.node.ledger_broker import LedgerBroker
from tests.node.serving import FOREVER, FRESHNESS, Desk, Guest

from parley.application.work import OPERATION
from parley.model.advisories import Advisory, Standpoint, sign_advisory
from parley.model.credentials import issue_credential
from parley.model.expressions import parse_constraint
from parley.model.refusals import Invalid, NotReady, PermissionDenied, Refused
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.operations import DeleteTopic
from parley.modules.topics.tables import TOPICS
from parley.net.limits import TokenBucket
from parley.net.messages import (
    EXCHANGES,
    Advise,
    Answer,
    CloseStream,
    Credit,
    Failure,
    Fetch,
    Fetched,
    ListKeys,
    OpenStream,
    Prove,
    Question,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
    SplicedFetched,
    StatusRequest,
    StreamPosition,
    Submit,
    decoder_of,
    encode,
)
from parley.node.access import Caller
from parley.node.advisories import ADVISORY_WORK, LOOK_WORK
from parley.node.answers import KEY_WORK, LEAF_WORK, PROOF_WORK
from parley.node.services.asking import Asking
from parley.node.services.auditing import BLOCK_COST, BODY_COST
from parley.node.services.fetching import BATCH_WORK, SPLICED_WORK
from parley.node.services.proving import JUDGED_WORK
from parley.node.services.service import Acting, Cost, Judged, Right, Service, Showing, Table
from parley.node.services.table import TABLE
from parley.node.view import View

TOPIC, CONSTRAINT = "notes", ""


class Scene:
    """A broker with a topic, a block with one publication, and a subscription of Alice's that came after it."""

    def __init__(self, folder: Path, *more: Service[Any]) -> None:
        broker = LedgerBroker()
        with_rights(broker.ledger)
        self.desk = Desk(folder, broker=broker, table=(*TABLE, *more))
        self.ledger = self.desk.made
        self.alice = self.ledger.client("alice")
        self.ledger.topic(TOPIC)
        self.ledger.publish(self.alice, TOPIC, note("one"))
        self.published = self.ledger.height
        (start,) = self.ledger.subscribe(self.alice, TOPIC)
        self.position = StreamPosition(start.partition, start.incarnation, start.next_ps)
        self.desk.certify()

    def advise(self, number: int) -> Advise:
        who, anchor = self.alice, actor("anchor", self.alice.organisation).secret
        credential = issue_credential(
            self.ledger.chain, who.organisation, who.name, who.key, not_after=FOREVER, anchor=anchor
        )
        advisory = Advisory(credential, "query", "run", TOPIC, (Standpoint(0, 1, 1),), self.desk.now)
        return Advise(number, *sign_advisory(advisory, who.secret))

    def caller(self, who: Actor) -> Caller:
        return self.desk.broker.caller(who)


Story = Callable[[Scene], Awaitable[None]]


def play(story: Story, folder: Path, *more: Service[Any]) -> None:
    async def run() -> None:
        scene = Scene(folder, *more)
        async with scene.desk.open():
            await story(scene)

    with capture_logs():
        asyncio.run(run())


# -- what the table says -----------------------------------------------------------------------------------------------


def test_every_question_of_the_protocol_has_one_row() -> None:
    assert len(TABLE) == len(EXCHANGES)
    assert {service.question for service in TABLE} == set(EXCHANGES)


def test_every_answer_of_the_protocol_is_that_of_one_row() -> None:
    for service in TABLE:
        assert set(service.answers) >= set(EXCHANGES[service.question])
    kinds = [kind for service in TABLE for kind in service.answers]
    assert len(kinds) == len(set(kinds))


def test_every_row_says_who_may_ask_and_what_it_costs() -> None:
    for service in TABLE:
        assert service.right.about
        assert service.cost.about
    free = {service.question for service in TABLE if service.cost.bytes_only}
    assert free == {Credit, CloseStream}


@pytest.mark.parametrize(
    "declare",
    [
        partial(Cost, "nothing is charged"),
        partial(Cost, "nothing is charged", before=0),
        partial(Cost, "", before=1),
        partial(Cost, "", bytes_only=True),
        partial(Cost, "both", before=1, bytes_only=True),
        partial(Cost, "less than nothing", before=-1),
    ],
)
def test_a_question_that_is_free_of_charge_without_a_reason_cannot_be_declared(
    declare: Callable[[], Cost],
) -> None:
    with pytest.raises(ValueError, match="cost"):
        declare()


def test_a_question_without_a_cost_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="cost"):
        Acting(question=Weigh, answers=(Weighed,), right=Right("anyone"), act=lambda *_: None)  # type: ignore[call-arg]


def test_a_question_stands_in_a_table_once() -> None:
    for service in TABLE:
        with pytest.raises(ValueError, match="twice"):
            Table((*TABLE, service))


def test_an_answer_has_one_cost() -> None:
    with pytest.raises(ValueError, match="twice"):
        Table((*TABLE, toy(answers=(Fetched,))))


def test_an_answer_that_is_of_no_row_is_not_sent_for_free() -> None:
    with pytest.raises(KeyError):
        Table(TABLE).work(Weighed(1, 1))


# -- what each question costs ------------------------------------------------------------------------------------------

Work = tuple[Actor, Question, int]  # who asks what, and what it costs besides bytes

WORK: dict[type[Question], Callable[[Scene], Work]] = {
    Submit: lambda scene: (
        scene.alice,
        Submit(1, scene.ledger.publication(scene.alice, TOPIC, note("two")).body),
        0,
    ),
    Fetch: lambda scene: (
        scene.alice,
        Fetch(1, TOPIC, 0, 0, 10_000, 0),
        PROOF_WORK + LEAF_WORK + BATCH_WORK + SPLICED_WORK,
    ),
    OpenStream: lambda scene: (
        scene.alice,
        OpenStream(1, TOPIC, parse_constraint(CONSTRAINT).id, (scene.position,), 10),
        KEY_WORK,  # of the head that is pushed first
    ),
    Credit: lambda scene: (scene.alice, Credit(1, 1), 0),
    CloseStream: lambda scene: (scene.alice, CloseStream(1), 0),
    Prove: lambda scene: (scene.alice, Prove(1, (CLIENTS.key(scene.alice.key),) * 2), 2 * KEY_WORK),
    ListKeys: lambda scene: (scene.alice, ListKeys(1, TOPICS.prefix(), b""), JUDGED_WORK),
    StatusRequest: lambda scene: (scene.alice, StatusRequest(1), LOOK_WORK),
    ReadBlocks: lambda scene: (
        ADMINS[INSURER],
        ReadBlocks(1, scene.ledger.height, 10_000, bodies=True),
        2 * BLOCK_COST + BODY_COST,
    ),
    ReadBodies: lambda _: (ADMINS[INSURER], ReadBodies(1, (bytes(32),) * 2), BLOCK_COST + 2 * BODY_COST),
    ReadEvidence: lambda _: (ADMINS[INSURER], ReadEvidence(1, 0), BLOCK_COST),
    Advise: lambda scene: (scene.alice, scene.advise(1), ADVISORY_WORK),
    ReadHeader: lambda scene: (
        scene.alice,
        ReadHeader(1, scene.published),
        KEY_WORK + scene.desk.broker.archive.header(scene.published)[3],
    ),
}


def test_every_question_has_an_example_here() -> None:
    assert set(WORK) == set(EXCHANGES)


UNANSWERED = (Submit, Credit, CloseStream)  # at once


def used(bucket: TokenBucket) -> int:
    return (bucket._full - bucket._parts) // 1_000


async def work_of(scene: Scene, guest: Guest, question: Question) -> int:
    """What its client has paid besides the bytes of question and answer."""
    account = scene.desk.account(guest.who)
    before = used(account.bytes)
    asked, others = [question], 0
    if isinstance(question, UNANSWERED):
        asked.append(ReadHeader(2, 2**40))  # what is answered next
        others = KEY_WORK
    for one in asked:
        guest.send(one)
    frame = await guest.stream.read()
    assert frame is not None
    sizes = len(frame) + sum(len(encode(one)) for one in asked)
    return used(account.bytes) - before - sizes - others


@pytest.mark.parametrize("kind", EXCHANGES, ids=lambda kind: kind.__name__)
def test_a_question_costs_what_its_row_says(kind: type[Question], tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        who, question, work = WORK[kind](scene)
        assert type(question) is kind
        async with scene.desk.guest(scene.alice) as reader:
            assert not isinstance(await reader.ask(scene.advise(9)), Failure)
        async with scene.desk.guest(who) as guest:
            assert isinstance(await guest.ask(ReadHeader(2, 2**40)), Answer)
            assert await work_of(scene, guest, question) == work
            assert work > 0 or Table(TABLE).of(question).cost.bytes_only or kind is Submit

    play(story, tmp_path)


def test_an_operation_costs_what_it_will_touch(tmp_path: Path) -> None:
    """And a publication its bytes only: every broker counts what comes in batches by the block."""

    async def story(scene: Scene) -> None:
        async with scene.desk.guest(ADMIN) as guest:
            requests = scene.desk.account(ADMIN).requests
            assert isinstance(await guest.ask(StatusRequest(1)), Answer)
            before = used(requests)
            guest.send(Submit(2, scene.ledger.control(ADMIN, DeleteTopic("none")).body))
            assert isinstance(await guest.ask(StatusRequest(3)), Answer)
            assert used(requests) - before >= 2 + OPERATION

    play(story, tmp_path)


# -- a question that is new --------------------------------------------------------------------------------------------

BEFORE, AFTER = 5_000, 70_000


class Weigh(Question, frozen=True, tag=98):
    """How heavy so many stones are."""

    stones: int


class Weighed(Answer, frozen=True, tag=99):
    weight: int


def _may_weigh(_view: View, caller: Caller, question: Weigh) -> str:
    """The organisation on whose scales it is weighed."""
    if caller.administers is None:
        raise PermissionDenied("hidden")
    if question.stones > 9:
        raise Invalid("number", number=question.stones)
    return caller.administers


def _weigh(_asking: Asking, view: View, question: Weigh, organisation: str) -> Weighed:
    assert organisation == ADMIN.organisation
    return Weighed(question.id, view.height * question.stones)


def toy(answers: tuple[type[Answer], ...] = (Weighed,)) -> Service[Weigh]:
    return Showing(
        question=Weigh,
        answers=answers,
        right=Judged("administrators, of few stones", _may_weigh),
        cost=Cost("much", before=BEFORE, after=lambda answer: AFTER * answer.weight),
        fresh=True,
        show=_weigh,
    )


decode: Callable[[bytes], Answer] = decoder_of([Weighed, Failure])


async def asked(guest: Guest, question: Question) -> tuple[Answer, int]:
    """The answer, and the bytes of question and answer."""
    guest.send(question)
    frame = await guest.stream.read()
    assert frame is not None
    return decode(frame), len(frame) + len(encode(question))


def test_a_question_of_ones_own_is_answered_by_its_row_and_charged(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        async with scene.desk.guest(ADMIN) as guest:
            assert isinstance(await guest.ask(StatusRequest(1)), Answer)
            account = scene.desk.account(ADMIN)
            before = used(account.bytes)
            answer, size = await asked(guest, Weigh(7, 3))
            weight = 3 * scene.ledger.height
            assert answer == Weighed(7, weight)
            assert used(account.bytes) - before == size + BEFORE + AFTER * weight

    play(story, tmp_path, toy())


def test_a_question_of_ones_own_is_refused_to_those_without_its_right_who_pay_for_asking(
    tmp_path: Path,
) -> None:
    async def story(scene: Scene) -> None:
        for who, question, code in (
            (scene.alice, Weigh(7, 3), PermissionDenied.code),
            (ADMIN, Weigh(7, 10), Invalid.code),
        ):
            async with scene.desk.guest(who) as guest:
                assert isinstance(await guest.ask(StatusRequest(1)), Answer)
                account = scene.desk.account(who)
                before = used(account.bytes)
                answer, _ = await asked(guest, question)
                assert isinstance(answer, Failure)
                assert (answer.id, answer.code) == (7, code)
                assert used(account.bytes) - before == len(encode(question)) + BEFORE

    play(story, tmp_path, toy())


def test_a_question_of_ones_own_is_not_answered_by_a_broker_that_is_cut_off(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.desk.late = FRESHNESS + 1
        async with scene.desk.guest(ADMIN) as guest:
            answer, _ = await asked(guest, Weigh(7, 3))
            assert isinstance(answer, Failure)
            assert answer.code == NotReady.code

    play(story, tmp_path, toy())


def test_a_broker_without_its_row_takes_it_for_no_question(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        async with scene.desk.guest(ADMIN) as guest:
            answer, _ = await asked(guest, Weigh(7, 3))
            assert isinstance(answer, Failure)
            assert (answer.id, answer.code, answer.reason) == (0, "Malformed", "question")

    play(story, tmp_path)


# -- another adapter than frames ---------------------------------------------------------------------------------------


def answered_once(asking: Asking, question: Question) -> Answer:
    """All that an adapter needs that gives one answer and has no connection: decoded, judged, answered, charged."""
    table = asking.services.table
    question = table.decode(encode(question))
    service = table.of(question)
    said = service.take(asking, question)
    while not isinstance(said, Answer):
        assert said is not None
        said = service.go_on(asking, said)
    asking.charge(len(encode(said)) + table.work(said))
    return said


NEEDS_CONNECTION = (Submit, OpenStream, Credit, CloseStream)
ANSWERED_ONCE = [kind for kind in EXCHANGES if kind not in NEEDS_CONNECTION]


@pytest.mark.parametrize("kind", NEEDS_CONNECTION, ids=lambda kind: kind.__name__)
def test_an_adapter_without_connections_refuses_what_needs_one(kind: type[Question], tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    who, question, _ = WORK[kind](scene)
    with pytest.raises(Invalid, match="connection"):
        answered_once(Asking(scene.desk.services, scene.caller(who), lambda _: None), question)


@pytest.mark.parametrize("kind", ANSWERED_ONCE, ids=lambda kind: kind.__name__)
def test_an_adapter_without_connections_asks_the_same_table(kind: type[Question], tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    who, question, work = WORK[kind](scene)
    charged: list[int] = []
    asking = Asking(scene.desk.services, scene.caller(who), charged.append)
    answered_once(Asking(scene.desk.services, scene.caller(scene.alice), lambda _: None), scene.advise(9))
    answer = answered_once(asking, question)
    assert answer.id == 1
    assert sum(charged) == len(encode(answer)) + work


AT_ANY_AGE = (
    Prove,
    ListKeys,
    StatusRequest,
)  # their answers say by which header they are, or are not about the ledger


@pytest.mark.parametrize("kind", ANSWERED_ONCE, ids=lambda kind: kind.__name__)
def test_a_broker_that_is_cut_off_shows_nothing_for_which_a_right_is_needed(
    kind: type[Question], tmp_path: Path
) -> None:
    """The caller has the right: it is not refused for another reason."""
    scene = Scene(tmp_path)
    who, question, _ = WORK[kind](scene)
    asking = Asking(scene.desk.services, scene.caller(who), lambda _: None)
    scene.desk.late = FRESHNESS + 1
    if kind in AT_ANY_AGE:
        assert answered_once(asking, question).id == 1
        return
    with pytest.raises(NotReady, match="header"):
        answered_once(asking, question)


def test_without_a_connection_a_long_fetch_is_answered_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asking = Asking(scene.desk.services, scene.caller(scene.alice), lambda _: None)
    answer = answered_once(asking, Fetch(1, TOPIC, 0, 1, 10_000, 60_000))
    assert isinstance(answer, SplicedFetched)
    assert answer.blocks == ()


def test_without_a_connection_a_right_is_judged_as_well(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asking = Asking(scene.desk.services, scene.caller(scene.alice), lambda _: None)
    with pytest.raises(PermissionDenied):
        answered_once(asking, ReadEvidence(1, 0))


def test_a_refusal_by_an_old_state_is_none(tmp_path: Path) -> None:
    """What is shown of old states shows its age; a refusal by one might be of a right that was given since."""
    scene = Scene(tmp_path)
    asking = Asking(scene.desk.services, scene.caller(scene.alice), lambda _: None)
    hidden, unlisted = Prove(1, (b"nothing",)), ListKeys(2, b"nothing", b"")
    for late, code in ((FRESHNESS, PermissionDenied.code), (FRESHNESS + 1, NotReady.code)):
        scene.desk.late = late
        for question in (hidden, unlisted):
            with pytest.raises(Refused) as refused:
                answered_once(asking, question)
            assert refused.value.code == code
    assert msgspec.structs.asdict(answered_once(asking, Prove(1, (CLIENTS.key(scene.alice.key),))))
