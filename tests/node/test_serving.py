"""Sessions: what ends one, what it may hold open, what it costs, and what a broker must not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.application.world import ADMIN, Actor
from tests.client.ledger import note
from tests.node.serving import FRESHNESS, Desk, Guest

from parley.ledger import layout
from parley.ledger.application import Receipt
from parley.mempool.pool import Intake
from parley.model.batches import Message
from parley.model.expressions import parse_constraint
from parley.model.principals import Principal
from parley.model.refusals import (
    OK,
    Busy,
    Invalid,
    LimitExceeded,
    NotAuthenticated,
    NotReady,
    PermissionDenied,
)
from parley.modules.registry.operations import AlterClient
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.operations import AlterTopic, CreateTopic, Policy
from parley.modules.topics.tables import TOPICS, TopicRecord
from parley.net.frames import FrameError
from parley.net.messages import (
    Advise,
    CloseStream,
    Credit,
    Delivery,
    Failure,
    Fetch,
    Fetched,
    Head,
    Listed,
    ListKeys,
    OpenStream,
    Prove,
    Proven,
    Question,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
    ShownHeader,
    Status,
    StatusRequest,
    StreamPosition,
    Submit,
)
from parley.node import sessions
from parley.node.access import require_readable
from parley.node.answers import KEY_WORK
from parley.node.config import Limits
from parley.node.door import BAN_MS, STRIKES
from parley.node.services import fetching, streaming
from parley.node.services.proving import ENTRY_WORK, EXAMINED_AT_ONCE
from parley.node.view import View

CONSTRAINT = parse_constraint("").id


class World:
    """A desk with the topic `notes`, which Alice follows and Bob writes to."""

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.desk = Desk(folder, limits)
        ledger = self.desk.made
        self.alice, self.anna = ledger.client("alice"), ledger.client("anna")
        self.bob = ledger.client("bob", "hospital-b")
        ledger.topic("notes")
        (start,) = ledger.subscribe(self.alice, "notes")
        self.position = StreamPosition(start.partition, start.incarnation, start.next_ps)
        self.desk.certify()

    def publish(self, *texts: str) -> None:
        """Each text in a block of its own."""
        for text in texts:
            self.desk.made.publish(self.bob, "notes", note(text))
        self.desk.certify()

    def stream(self, number: int, credit: int = 100) -> OpenStream:
        return OpenStream(number, "notes", CONSTRAINT, (self.position,), credit)

    def fetch(self, number: int, offset: int = 0, wait: int = 0) -> Fetch:
        return Fetch(number, "notes", 0, offset, 10_000, wait)


Test = Callable[[World, Guest], Awaitable[None]]


@asynccontextmanager
async def served(
    folder: Path, limits: Limits | None = None, ends_in: int = 2**60
) -> AsyncIterator[tuple[World, Guest]]:
    world = World(folder, limits)
    async with world.desk.open(), world.desk.guest(world.alice, not_after=world.desk.now + ends_in) as guest:
        yield world, guest


def serving(limits: Limits | None = None, ends_in: int = 2**60) -> Callable[[Test], Callable[[Path], None]]:
    """A test with Alice's connection; her credential ends in so many ms."""

    def decorate(test: Test) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def play() -> None:
                async with served(tmp_path, limits, ends_in) as (world, guest):
                    await test(world, guest)

            with capture_logs():
                asyncio.run(play())

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


def shown(answers: Sequence[object]) -> list[str]:
    return [
        content.payload.decode()
        for answer in answers
        if isinstance(answer, Delivery)
        for block in answer.blocks
        for content in block.contents
        if isinstance(content, Message)
    ]


# -- a broker that is cut off, or does not have everything -------------------------------------------------------------

READS: dict[str, Question] = {
    "fetch": Fetch(7, "notes", 0, 0, 10_000, 0),
    "long fetch": Fetch(7, "notes", 0, 0, 10_000, 1_000),
    "header": ReadHeader(7, 1),
    "blocks": ReadBlocks(7, 1, 10_000, bodies=False),
    "bodies": ReadBodies(7, (bytes(32),)),
    "evidence": ReadEvidence(7, 0),
    "advisory": Advise(7, b"x", bytes(64)),
    "stream": OpenStream(7, "notes", CONSTRAINT, (StreamPosition(0, (1, 0), 0),), 1),
}


@pytest.mark.parametrize("name", READS)
def test_a_broker_that_is_cut_off_answers_nobody_who_may_have_lost_a_right_since(
    name: str, tmp_path: Path
) -> None:
    @serving()
    async def story(world: World, guest: Guest) -> None:
        world.desk.late = FRESHNESS
        answer = await guest.ask(READS[name]) if name != "long fetch" else None
        assert not isinstance(answer, Failure) or answer.code != NotReady.code
        world.desk.late = FRESHNESS + 1
        # Other questions are answered, because what they show cannot be taken away or is old for everybody.
        assert isinstance(await guest.ask(Prove(8, (CLIENTS.key(world.alice.key),))), Proven)
        assert await guest.refused(READS[name]) == NotReady.code

    story(tmp_path)


@serving()
async def test_a_stream_waits_while_its_broker_is_cut_off(world: World, guest: Guest) -> None:
    assert isinstance(await guest.ask(world.stream(5)), Head)
    world.desk.late = FRESHNESS + 1
    world.publish("one")
    assert shown(await guest.settle()) == []
    world.desk.late = 0
    world.desk.made.apply()
    world.desk.certify()
    assert shown(await guest.settle()) == ["one"]


@pytest.mark.parametrize("name", [name for name in READS if name != "advisory"])
def test_a_broker_that_fills_in_its_history_does_not_answer_as_if_nothing_had_been(
    name: str, tmp_path: Path
) -> None:
    @serving()
    async def story(world: World, guest: Guest) -> None:
        world.desk.broker.store.write([(layout.BACKFILL, b"x")])
        assert isinstance(await guest.ask(Prove(8, (CLIENTS.key(world.alice.key),))), Proven)
        answer = await guest.ask(READS[name])
        assert isinstance(answer, Failure)
        assert (answer.code, answer.reason) == (NotReady.code, "filling_in")

    story(tmp_path)


@serving()
async def test_a_broker_that_fills_in_its_history_says_by_its_newest_header_what_time_it_is(
    world: World, guest: Guest
) -> None:
    """All of them may fill in after a restart, and clients whose clocks are behind compare these headers."""
    world.desk.broker.store.write([(layout.BACKFILL, b"x")])
    assert isinstance(await guest.ask(ReadHeader(7, 0)), ShownHeader)


@serving()
async def test_every_certified_header_is_shown_as_soon_as_it_is_there(world: World, guest: Guest) -> None:
    for number in range(3):
        answer = await guest.ask(world.fetch(number, number))
        assert isinstance(answer, Fetched)
        assert answer.anchor == world.desk.made.anchor()
        world.publish("more")


def test_a_broker_that_has_executed_nothing_has_nothing_to_show(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.feed.certified(desk.made.anchor())
    with pytest.raises(NotReady):
        desk.ledger.view()
    desk.made.apply()
    desk.certify()
    assert desk.ledger.view().height == 1


# -- credentials -------------------------------------------------------------------------------------------------------


@serving(ends_in=FRESHNESS)
async def test_nothing_is_answered_after_the_credential_has_ended(world: World, guest: Guest) -> None:
    world.desk.late = FRESHNESS - (world.desk.now - world.desk.made.time)
    assert isinstance(await guest.ask(StatusRequest(1)), Status), "it is good in its last millisecond"
    world.desk.late += 1
    guest.send(StatusRequest(2))
    assert [(one.id, _code(one)) for one in await guest.ended()] == [(0, NotAuthenticated.code)]


@serving(ends_in=FRESHNESS // 2)
async def test_a_stream_does_not_outlive_the_credential_of_its_reader(world: World, guest: Guest) -> None:
    """The reader says nothing more: what comes by itself is judged, too."""
    assert isinstance(await guest.ask(world.stream(5)), Head)
    world.desk.late = FRESHNESS // 2 + 1
    world.publish("one")
    assert [(one.id, _code(one)) for one in await guest.ended()] == [(0, NotAuthenticated.code)]


@serving(ends_in=FRESHNESS // 2)
async def test_a_receipt_that_comes_after_the_credential_has_ended_is_not_shown(
    world: World, guest: Guest
) -> None:
    desk = world.desk
    batch = desk.made.publication(world.alice, "notes", note("mine"))
    guest.send(Submit(1, batch.body))
    assert await guest.settle() == []
    desk.made.apply(batch)
    desk.broker.execute()
    desk.feed.applied(desk.made.height, [Receipt(batch.digest, OK, 0)])
    desk.late = FRESHNESS
    desk.certify()
    assert [(one.id, _code(one)) for one in await guest.ended()] == [(0, NotAuthenticated.code)]


# -- what a connection may hold open -----------------------------------------------------------------------------------


@serving()
async def test_the_number_of_what_is_open_is_not_taken_again(world: World, guest: Guest) -> None:
    assert isinstance(await guest.ask(world.stream(5)), Head)
    guest.send(world.fetch(6, wait=60_000))
    await guest.settle()
    for number in (5, 6):
        batch = world.desk.made.publication(world.alice, "notes", note(str(number)))
        assert await guest.refused(Submit(number, batch.body)) == Invalid.code
        assert await guest.refused(world.fetch(number)) == Invalid.code


@serving(Limits(questions_in_flight=2))
async def test_streams_and_long_fetches_count_as_questions_in_flight(world: World, guest: Guest) -> None:
    assert isinstance(await guest.ask(world.stream(5)), Head)
    guest.send(world.fetch(6, wait=60_000))
    assert await guest.refused(world.fetch(7)) == Busy.code
    assert await guest.refused(world.stream(7)) == Busy.code
    guest.send(CloseStream(5))
    assert isinstance(await guest.ask(world.stream(7)), Head)


def test_a_connection_has_so_many_streams_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "MAX_STREAMS", 1)

    @serving()
    async def story(world: World, guest: Guest) -> None:
        assert isinstance(await guest.ask(world.stream(5)), Head)
        assert await guest.refused(world.stream(6)) == LimitExceeded.code

    story(tmp_path)


@serving()
async def test_a_stream_that_was_closed_says_nothing_more(world: World, guest: Guest) -> None:
    assert isinstance(await guest.ask(world.stream(5)), Head)
    guest.send(CloseStream(5))
    await guest.settle()
    world.publish("one")
    assert await guest.settle() == []


@serving()
async def test_a_stream_that_was_refused_is_forgotten(world: World, guest: Guest) -> None:
    """When it opens or later; its number is free, and nothing is tried again by itself."""
    ledger = world.desk.made
    elsewhere = OpenStream(5, "elsewhere", CONSTRAINT, (world.position,), 10)
    assert isinstance(await guest.ask(elsewhere), Failure)
    assert isinstance(await guest.ask(world.stream(5)), Head)
    ledger.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
    world.desk.ticks += FRESHNESS  # a head is due: nothing else is to be said
    world.desk.certify()
    assert _code(await guest.receive()) == PermissionDenied.code
    ledger.do(ADMIN, AlterTopic("notes", None, None, None, ""))
    world.publish("one")
    assert await guest.settle() == []
    assert isinstance(await guest.ask(world.stream(5)), Delivery)


@serving()
async def test_credit_is_for_the_stream_that_it_names(world: World, guest: Guest) -> None:
    for number in (5, 6):
        assert isinstance(await guest.ask(world.stream(number, credit=1)), Head)
    world.publish("one", "two")
    assert shown(await guest.settle()) == ["one", "one"]
    guest.send(Credit(6, 1))
    said = [one for one in await guest.settle() if isinstance(one, Delivery)]
    assert (shown(said), [one.id for one in said]) == (["two"], [6])


# -- long fetches ------------------------------------------------------------------------------------------------------


@serving()
async def test_a_long_fetch_is_answered_when_something_comes_and_not_before(
    world: World, guest: Guest
) -> None:
    guest.send(world.fetch(5, wait=60_000))
    assert await guest.settle() == []
    world.publish("one")
    answer = await guest.receive()
    assert isinstance(answer, Fetched)
    assert len(answer.blocks) == 1


@serving()
async def test_a_long_fetch_is_refused_when_the_right_is_lost_and_does_not_wait_for_what_comes_later(
    world: World, guest: Guest
) -> None:
    guest.send(world.fetch(5, wait=60_000))
    assert await guest.settle() == []
    world.desk.made.do(ADMIN, AlterTopic("notes", None, None, None, 'role == "doctor"'))
    world.desk.certify()
    assert _code(await guest.receive()) == PermissionDenied.code


@serving()
async def test_a_long_fetch_judges_its_right_again_only_when_a_record_changes(
    world: World, guest: Guest
) -> None:
    """Rules cost what a liar writes into them, and headers come many times a second."""
    judged: list[str] = []

    def counted(view: View, principal: Principal, name: str, partition: int = 0) -> TopicRecord:
        judged.append(name)
        return require_readable(view, principal, name, partition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "require_readable", counted)
        guest.send(world.fetch(5, wait=60_000))
        for _ in range(5):
            world.desk.made.wait(1)
            world.desk.certify()
            assert await guest.settle() == []
        assert judged == ["notes"]
        for number, change in enumerate(
            (AlterTopic("notes", None, None, "false", None), AlterClient("alice", (("role", "nurse"),), ()))
        ):
            guest.send(world.fetch(6 + number, wait=60_000))
            await guest.settle()
            judged.clear()
            assert world.desk.made.do(ADMIN, change).is_done
            world.desk.certify()
            answer = await guest.receive()
            assert isinstance(answer, Fetched)
            assert answer.blocks == ()
            assert judged


def test_a_long_fetch_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "TICK_SECONDS", 0.01)

    @serving()
    async def story(world: World, guest: Guest) -> None:
        guest.send(world.fetch(5, wait=1_000))
        assert await guest.settle() == []
        world.desk.ticks = 999
        assert await guest.settle() == []
        world.desk.ticks = 1_000
        answer = await guest.receive()
        assert isinstance(answer, Fetched)
        assert answer.blocks == ()

    story(tmp_path)


# -- costs and garbage -------------------------------------------------------------------------------------------------

POOR = Limits(bytes_per_second=65_536)


@serving(POOR)
async def test_questions_answers_and_what_they_took_are_paid_for(world: World, guest: Guest) -> None:
    requests = world.desk.account(world.alice).requests
    burst = max(world.desk.limits.requests_per_second, 1_024)
    before, asked = world.desk.spent(world.alice), requests.wait_ms(burst, 0)
    assert isinstance(await guest.ask(Prove(1, (CLIENTS.key(world.alice.key),))), Proven)
    proof = world.desk.spent(world.alice) - before
    assert proof >= KEY_WORK
    assert asked is not None
    assert requests.wait_ms(burst, 0) != asked, "the question itself counts, too"
    before = world.desk.spent(world.alice)
    assert isinstance(await guest.ask(ListKeys(2, TOPICS.prefix(), b"")), Listed)
    assert world.desk.spent(world.alice) - before >= ENTRY_WORK


@serving()
async def test_a_list_that_takes_several_turns_is_answered_once(world: World, guest: Guest) -> None:
    names = sorted(f"t{number}" for number in range(2 * EXAMINED_AT_ONCE))
    for name in names:
        assert world.desk.made.do(ADMIN, CreateTopic(name, 1, Policy(), "", "")).is_done
    world.desk.certify()
    page = await guest.ask(ListKeys(1, TOPICS.prefix(), b""))
    assert isinstance(page, Listed)
    assert [name for (name,) in map(TOPICS.unpack, page.keys) if name in names] == names
    again = await guest.ask(ListKeys(2, TOPICS.prefix(), page.keys[-2]))
    assert isinstance(again, Listed)
    assert again.keys == page.keys[-1:]
    assert [answer.id for answer in guest.said if isinstance(answer, Listed)] == [1, 2]


@serving()
async def test_who_asks_more_than_it_may_is_answered_later(world: World, guest: Guest) -> None:
    """What was used beyond the allowance is paid for before anything else is done, even what costs nothing itself."""
    account = world.desk.account(world.alice)
    assert isinstance(await guest.ask(StatusRequest(1)), Status)
    limits = world.desk.limits
    account.bytes.charge(limits.bytes_per_second + limits.bytes_per_second // 4, world.desk.ticks)
    late = asyncio.create_task(guest.ask(StatusRequest(2)))
    async with world.desk.guest(world.anna) as other:
        await other.settle()  # each client pays for itself
    assert not late.done()
    world.desk.ticks += 2_000
    assert isinstance(await late, Status)


@serving()
async def test_what_is_pushed_waits_for_debts_as_well(world: World, guest: Guest) -> None:
    """It comes by itself, without a question that would have to be paid for."""
    assert isinstance(await guest.ask(world.stream(5)), Head)
    limits = world.desk.limits
    world.desk.account(world.alice).bytes.charge(limits.bytes_per_second + limits.bytes_per_second // 4, 0)
    world.publish("one")
    pushed = asyncio.create_task(guest.receive())
    async with world.desk.guest(world.anna) as other:
        await other.settle()
    assert not pushed.done()
    world.desk.ticks += 2_000
    assert shown([await pushed]) == ["one"]


@serving()
async def test_noise_ends_the_connection_and_keeps_its_sender_out_for_a_while(
    world: World, guest: Guest
) -> None:
    for _ in range(STRIKES + 5):
        guest.stream.write(b"\xc1noise")
    assert len(await guest.ended()) == STRIKES
    desk = world.desk
    async with desk.guest(world.alice) as again:
        (refused,) = await again.ended()
        assert _code(refused) == Busy.code
    async with desk.guest(world.anna) as other:
        assert isinstance(await other.ask(StatusRequest(1)), Status), "her organisation is not struck"
    desk.ticks += BAN_MS
    async with desk.guest(world.alice) as again:
        assert isinstance(await again.ask(StatusRequest(1)), Status)


@serving()
async def test_batches_that_are_refused_in_good_faith_are_no_garbage(world: World, guest: Guest) -> None:
    world.desk.intake.says = Intake.FULL
    for number in range(1, STRIKES + 5):
        batch = world.desk.made.publication(world.alice, "notes", note(str(number)))
        assert await guest.refused(Submit(number, batch.body)) == Busy.code


@serving()
async def test_a_batch_of_somebody_else_is_not_taken(world: World, guest: Guest) -> None:
    batch = world.desk.made.publication(world.bob, "notes", note("mine"))
    assert await guest.refused(Submit(1, batch.body)) == PermissionDenied.code
    assert world.desk.intake.taken == []


@serving(Limits(connections=4, connections_per_address=4))
async def test_a_place_is_given_back_when_its_connection_ends(world: World, guest: Guest) -> None:
    """There is one for each organisation."""
    await guest.stream.wait_closed()
    for _ in range(3):
        await _until_admitted(world.desk, world.anna)


@serving(Limits(connections_per_client=1))
async def test_a_connection_that_was_refused_makes_no_room_for_the_next(world: World, guest: Guest) -> None:
    for _ in range(3):
        async with world.desk.guest(world.alice) as again:
            (refused,) = await again.ended()
            assert _code(refused) == Busy.code
    assert isinstance(await guest.ask(StatusRequest(1)), Status)


async def _until_admitted(desk: Desk, who: Actor) -> None:
    """The broker may not have noticed yet that the last one has gone."""
    for _ in range(100):
        async with desk.guest(who) as guest:
            guest.send(StatusRequest(1))
            try:
                if isinstance(await guest.receive(), Status):
                    return
            except FrameError:
                pass
        await asyncio.sleep(0)
    raise AssertionError("there is no place")


def _code(answer: object) -> str:
    assert isinstance(answer, Failure), answer
    return answer.code
