"""Lists, and what else a client takes from f+1 brokers or from one that does not lie: no single broker hides or invents anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN
from tests.client.ledger import note
from tests.client.stage import Lie, Stage, on_stage

from parley.client import state
from parley.client.client import Client
from parley.client.errors import Busy, ParleyError, PermissionDenied, Stalled
from parley.client.history import common_prefix
from parley.modules.advertisements.tables import ADVERTISEMENTS
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.messages import (
    MAX_KEY,
    MAX_KEYS,
    Answer,
    Blocks,
    EvidenceList,
    Failure,
    Listed,
    ListKeys,
    Prove,
    Proven,
    Question,
    ShownHeader,
)

FIRST = "broker-hospital-a"
SOON = 15.0


def liars(client: Client) -> list[str]:
    return [lie.broker for lie in client.misbehaviour]


def refusing(code: str) -> Lie:
    return lambda question, answer: (
        Failure(question.id, code, "so it says", ()) if isinstance(question, ListKeys) else answer
    )


def hiding(_: Question, answer: Answer) -> Answer:
    return replace(answer, keys=(), more=False) if isinstance(answer, Listed) else answer


async def topics(stage: Stage) -> tuple[list[str], list[str]]:
    """What a client finds that asks the first broker first, and the brokers that it calls liars."""
    async with stage.client(stage.known(ADMIN), first=FIRST) as client, asyncio.timeout(SOON):
        found = await client.entries(TOPICS)
        return [name for (name,), _ in found], liars(client)


@on_stage
async def test_a_list_that_nobody_proves_as_new_ends_as_soon_as_any_other_question(stage: Stage) -> None:
    """It is not asked of every broker in turn, each of which would take the whole patience."""
    stage.ahead = 3_600_000
    async with stage.client(stage.known(ADMIN), first=FIRST, patience=0.5) as client:
        with pytest.raises(Stalled, match="ahead of the brokers' clocks"):
            await client.entries(TOPICS)
    assert stage.asked("ListKeys") == 1


@on_stage
async def test_one_broker_hides_nothing_in_a_list_while_others_are_busy(stage: Stage) -> None:
    """Those who cannot answer now have not refused: there is another one to be asked."""
    stage[FIRST].lie = hiding
    for broker in stage.brokers[1:3]:
        broker.lie = refusing(Busy.code)
    assert await topics(stage) == (["notes"], [])


@on_stage
async def test_one_broker_makes_no_list_alone_while_all_others_are_busy(stage: Stage) -> None:
    stage[FIRST].lie = hiding
    for broker in stage.brokers[1:]:
        broker.lie = refusing(Busy.code)
    with pytest.raises(Busy):
        await topics(stage)


@on_stage
async def test_what_f_plus_one_brokers_refuse_is_refused_whatever_one_lists(stage: Stage) -> None:
    stage[FIRST].lie = hiding
    for broker in stage.brokers[1:]:
        broker.lie = refusing(PermissionDenied.code)
    with pytest.raises(PermissionDenied):
        await topics(stage)


@on_stage
async def test_one_broker_that_refuses_a_list_does_not_keep_it_from_the_client(stage: Stage) -> None:
    stage[FIRST].lie = refusing(PermissionDenied.code)
    assert await topics(stage) == (["notes"], [])


def endless(numbers: Callable[[], int]) -> Lie:
    def lie(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, ListKeys):
            return answer
        return Listed(question.id, (TOPICS.key(f"zzz{numbers():09}"),), more=True)

    return lie


def empty(question: Question, answer: Answer) -> Answer:
    return replace(answer, keys=(), more=True) if isinstance(answer, Listed) else answer


@pytest.mark.parametrize("lie", [endless(count().__next__), empty], ids=["endless", "empty"])
def test_a_broker_whose_list_never_ends_is_left(
    lie: Lie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_LISTED", 20)

    @on_stage
    async def story(stage: Stage) -> None:
        stage[FIRST].lie = lie
        assert await topics(stage) == (["notes"], [FIRST])

    story(tmp_path)


def changing(times: int) -> tuple[Lie, Callable[[], int]]:
    """A list of two pages, whose second one is refused so often; and how often pages were asked for."""
    asked: list[bytes] = []

    def lie(question: Question, answer: Answer) -> Answer:
        if not (isinstance(question, ListKeys) and isinstance(answer, Listed)):
            return answer
        asked.append(question.after)
        if not question.after:
            return replace(answer, keys=answer.keys[:1], more=True)
        if len([one for one in asked if one]) <= times:
            return Failure.of(question.id, PermissionDenied("list_after"))
        return answer

    return lie, lambda: len(asked)


@pytest.mark.parametrize(("times", "pages"), [(1, 4), (99, 8)])
def test_a_list_begins_again_but_not_for_ever_when_what_it_goes_on_after_is_hidden_meanwhile(
    times: int, pages: int, tmp_path: Path
) -> None:
    @on_stage
    async def story(stage: Stage) -> None:
        stage.ledger.topic("wards")
        stage[FIRST].lie, asked = changing(times)
        assert await topics(stage) == (["notes", "wards"], [])
        assert asked() == pages

    story(tmp_path)


@on_stage
async def test_a_key_that_no_question_can_hold_ends_the_list_of_its_broker(stage: Stage) -> None:
    """Honest brokers could not read the question for it, and would count it against the client."""

    def invent(_: Question, answer: Answer) -> Answer:
        keys = TOPICS.key("z" * MAX_KEY)
        return replace(answer, keys=(*answer.keys, keys)) if isinstance(answer, Listed) else answer

    stage[FIRST].lie = invent
    assert await topics(stage) == (["notes"], [FIRST])


def absent(question: Question, answer: Answer) -> Answer:
    """Very many keys under which there certainly is nothing, page by page."""
    if not isinstance(question, ListKeys) or not isinstance(answer, Listed):
        return answer
    first = int.from_bytes(question.after[-32:], "big") + 1 if question.after else 0
    keys = (ADVERTISEMENTS.key("notes", at.to_bytes(32, "big")) for at in range(first, first + MAX_KEYS))
    return replace(answer, keys=tuple(keys), more=first < 5 * state.MAX_ABSENT)


@on_stage
async def test_a_broker_that_lists_much_that_is_not_there_is_left(stage: Stage) -> None:
    stage[FIRST].lie = absent
    async with stage.client(stage.known(ADMIN), first=FIRST) as client, asyncio.timeout(SOON):
        assert await client.entries(ADVERTISEMENTS, "notes") == []
        assert [doubt.broker for doubt in client.doubts] == [FIRST]
    assert stage.asked("Prove") <= state.MAX_ABSENT // MAX_KEYS + 2


@on_stage
async def test_a_list_holds_only_what_was_asked_for(stage: Stage) -> None:
    """A whole key of the same table, of another topic."""
    stage.ledger.topic("other")

    def more(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Listed):
            return answer
        return replace(answer, keys=(*answer.keys, HEADS.key("other", 0)))

    stage[FIRST].lie = more
    async with stage.client(stage.known(ADMIN), first=FIRST) as client:
        assert [key for key, _ in await client.entries(HEADS, "notes")] == [("notes", at) for at in range(3)]
        assert liars(client) == [FIRST]


@on_stage
async def test_an_answer_to_another_question_is_a_lie(stage: Stage) -> None:
    def other(question: Question, answer: Answer) -> Answer:
        return Listed(question.id, (), more=False) if isinstance(answer, Proven) else answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = other
        assert await client.entry(TOPICS, "notes") is not None
        assert liars(client) == [FIRST]
        assert client._quorum.candidates()[-1] == FIRST, "liars are asked last"


# -- heights -----------------------------------------------------------------------------------------------------------


@on_stage
async def test_one_broker_that_is_behind_does_not_make_a_block_vanish(stage: Stage) -> None:
    """Its header is fresh, and covers less: that there is no such block yet is said by f+1 brokers, or by none."""
    before = stage.ledger.anchor()
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage.ledger.apply()
        height = stage.ledger.height - 1

        def behind(question: Question, answer: Answer) -> Answer:
            return ShownHeader(question.id, before, None) if isinstance(answer, ShownHeader) else answer

        stage[FIRST].lie = behind
        named = await client.observer.block(height)
        assert named is not None
        assert (named.height, named.id) == (height, stage.ledger.blocks[height - 1][0].id)
        assert await client.observer.block(stage.ledger.height + 5) is None


@on_stage
async def test_the_height_of_a_client_only_grows(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        seen = client.height
        client._quorum.saw(seen - 1)
        assert client.height == seen
        client._quorum.saw(seen + 1)
        assert client.height == seen + 1


@on_stage
async def test_of_several_brokers_the_lowest_height_counts(stage: Stage) -> None:
    """One of them may claim any height, which nobody proves at this level."""

    def ahead(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Proven):
            return answer
        header = replace(answer.anchor.header, executed_height=10**6)
        return replace(answer, anchor=replace(answer.anchor, header=header))

    stage[FIRST].lie = ahead
    async with stage.client(stage.registered("alice"), first=FIRST, verify="quorum") as client:
        assert await client.entry(TOPICS, "notes") is not None
        assert client.height <= stage.ledger.height


def test_an_empty_page_needs_as_many_voices_as_a_message() -> None:
    assert common_prefix([[], ["a"]], 2) is None
    assert common_prefix([["a"], []], 2) is None
    assert common_prefix([["a"], ["b"]], 2) is None
    assert common_prefix([[], ["a"], []], 2) == (0, 0)
    assert common_prefix([[], ["a", "b"], ["a"]], 2) == (1, 1)


@on_stage
async def test_a_block_that_was_seen_is_not_hidden_by_an_old_header(stage: Stage) -> None:
    """The highest one that the client knows of: a broker below it is behind, and says nothing of it."""
    before = stage.ledger.anchor()
    async with stage.client(stage.known(ADMIN), first=FIRST) as client:
        stage.ledger.apply()
        height = (await client.certified_height()).height

        def behind(_: Question, answer: Answer) -> Answer:
            return (
                replace(answer, anchor=before, blocks=(), history=None)
                if isinstance(answer, Blocks)
                else answer
            )

        stage[FIRST].lie = behind
        assert [block.height for block in await client.blocks(height)] == [height]
        assert liars(client) == []

        def nothing(_: Question, answer: Answer) -> Answer:
            return replace(answer, blocks=(), history=None) if isinstance(answer, Blocks) else answer

        stage[FIRST].lie = nothing
        assert [block.height for block in await client.blocks(height)] == [height]
        assert liars(client) == [FIRST], "its own header covers the block"


@on_stage
async def test_proofs_of_misbehaviour_that_never_come_are_not_waited_for(stage: Stage) -> None:
    def more(_: Question, answer: Answer) -> Answer:
        return replace(answer, entries=(), more=True) if isinstance(answer, EvidenceList) else answer

    async with stage.client(stage.known(ADMIN), first=FIRST) as client, asyncio.timeout(SOON):
        stage[FIRST].lie = more
        assert await client.evidence() == []
        assert liars(client) == [FIRST]


@on_stage
async def test_the_body_of_another_batch_is_not_taken_for_the_one_that_was_asked_for(stage: Stage) -> None:
    """It is whole, and signed by its publisher."""
    alice = stage.registered("alice")
    bodies = [stage.ledger.publication(alice, "notes", note(text)) for text in ("one", "two")]
    stage.apply(*bodies)
    height = stage.ledger.height

    def swapped(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Blocks):
            return answer
        blocks = tuple(replace(one, bodies=one.bodies[::-1]) for one in answer.blocks)
        return replace(answer, blocks=blocks)

    async with stage.client(stage.known(ADMIN), first=FIRST) as client:
        stage[FIRST].lie = swapped
        (block,) = await client.blocks(height)
        assert block.bodies == tuple(one.body for one in bodies)
        assert liars(client) == [FIRST]


# -- levels ------------------------------------------------------------------------------------------------------------


@on_stage
async def test_a_client_that_trusts_its_own_organisation_asks_nobody_else(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), verify="trusted", patience=0.5) as client:
        assert client._quorum.candidates() == [FIRST]
        await stage[FIRST].stop()
        with pytest.raises(ParleyError):
            await client.entry(TOPICS, "notes")
    assert {broker.name for broker in stage.brokers if broker.asked} == {FIRST}


@on_stage
async def test_where_answers_are_compared_one_broker_is_not_believed(stage: Stage) -> None:
    def none(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Proven):
            return answer
        return replace(answer, entries=tuple(replace(entry, value=None) for entry in answer.entries))

    lied = asyncio.Event()

    async def after_the_lie(question: Question, _: Answer) -> None:
        if isinstance(question, Prove):
            await lied.wait()

    async def first(question: Question, _: Answer) -> None:
        if isinstance(question, Prove):
            asyncio.get_running_loop().call_later(0.1, lied.set)

    async with stage.client(stage.registered("alice"), first=FIRST, verify="quorum") as client:
        stage[FIRST].lie, stage[FIRST].slow = none, first
        for broker in stage.brokers[1:]:
            broker.slow = after_the_lie
        assert await client.entry(TOPICS, "notes") is not None
