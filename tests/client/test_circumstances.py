"""A client that waits in vain says what is true: who answers, how many are missing, how old the news is, and no more."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.client.stage import TIMEOUTS, Stage, on_stage, on_stage_with
from tests.client.test_publishing import FIRST, SECOND

from parley.client.circumstances import CLOCK_TOLERANCE, Circumstances, clock_ahead
from parley.client.client import Client
from parley.client.errors import Stalled
from parley.modules.topics.tables import TOPICS
from parley.net.messages import Answer, Prove, Proven, Question, Submit

HASTY = replace(TIMEOUTS, ack=50)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (
            Circumstances(("a", "b"), ("c", "d"), 4, 3, 41_250),
            "2 of 4 brokers answer (a, b); 3 are needed, 1 missing. The newest certified header that was shown is 41.2 s old.",
        ),
        (Circumstances((), ("a", "b", "c", "d"), 4, 3), "0 of 4 brokers answer; 3 are needed, 3 missing."),
        (Circumstances(("a", "b", "c"), ("d",), 4, 3), "3 of 4 brokers answer (a, b, c)."),
        (Circumstances((), ("a",), 4, 3), "0 of 1 brokers that were asked answer."),
        (
            Circumstances(("a", "b", "c"), ("d",), 4, 3, None, 5_000),
            "3 of 4 brokers answer (a, b, c). This machine's clock may be wrong: it is 5.0 s ahead of the brokers' clocks.",
        ),
        (
            Circumstances(("a",), (), 1, 1, None, -2_500),
            "1 of 1 brokers answer (a). This machine's clock may be wrong: it is 2.5 s behind the brokers' clocks.",
        ),
    ],
)  # fmt: skip
def test_the_words_say_who_answers_and_how_many_are_missing(known: Circumstances, words: str) -> None:
    assert str(known) == words


@pytest.mark.parametrize(
    ("offsets", "ahead"),
    [
        ([], 0),
        ([-60_000], 0),  # one broker alone may lie
        ([-60_000, 0, 0, 0], 0),
        ([60_000, 0, 0, 0], 0),
        ([-60_000, -60_000, 0], 60_000),
        ([-90_000, -60_000, -61_000, -62_000], 62_000),  # of the two highest the one that another bears out
        ([60_000, 61_000, 62_000, 0], -61_000),
        ([-CLOCK_TOLERANCE] * 4, 0),
        ([CLOCK_TOLERANCE] * 4, 0),
    ],
)
def test_the_clock_is_doubted_only_if_f_plus_one_brokers_differ_from_it(
    offsets: list[int], ahead: int
) -> None:
    assert clock_ahead(offsets, 2) == ahead


@on_stage
async def test_a_client_says_who_answers_who_does_not_and_how_old_the_news_is(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST, patience=1) as client:
        for broker in stage.brokers[2:]:
            await broker.stop()
        stage.late = 60_000
        with pytest.raises(Stalled) as caught:
            await client.topic("notes")
    known = caught.value.circumstances
    assert known is not None
    assert (set(known.answered), known.missing, known.header_age) == ({FIRST, SECOND}, 1, 60_000)
    assert set(known.silent) == {broker.name for broker in stage.brokers[2:]}
    text = str(caught.value)
    assert "3 are needed, 1 missing. The newest certified header that was shown is 60.0 s old." in text
    assert "cannot be reached" in text
    assert "clock" not in text


@on_stage
async def test_a_client_whose_clock_is_wrong_says_so_and_calls_nobody_missing(stage: Stage) -> None:
    stage.ahead = 3_600_000
    async with stage.client(stage.registered("alice"), patience=1) as client:
        with pytest.raises(Stalled, match=r"it is 3600\.0 s ahead of the brokers' clocks") as caught:
            await client.topic("notes")
    assert caught.value.circumstances is not None
    assert caught.value.circumstances.missing == 0


@on_stage_with(HASTY)
async def test_a_publisher_without_receipts_names_the_brokers_that_are_silent(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST, patience=2) as client:
        for broker in stage.brokers:
            broker.deaf = lambda question: isinstance(question, Submit)
        with pytest.raises(Stalled) as caught:
            await client.publish("notes", "one", partition=0)
    assert caught.value.circumstances is not None
    assert caught.value.circumstances.missing == 3
    assert set(caught.value.reasons) == {broker.name for broker in stage.brokers}


@on_stage
async def test_a_publisher_that_gives_up_before_others_are_asked_names_the_one_that_was(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST, patience=0.1) as client:
        await client.partitions("notes")  # what else publishing asks for is known by then
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        with pytest.raises(Stalled, match="0 of 1 brokers that were asked answer") as caught:
            await client.publish("notes", "one", partition=0)
    assert caught.value.reasons == {FIRST: "it has shown no receipt yet"}


# -- brokers that do less than others -----------------------------------------------------------------------------------


def doubted(client: Client) -> list[str]:
    return [one.broker for one in client.doubts]


@on_stage_with(HASTY)
async def test_a_broker_that_shows_no_receipt_where_others_do_is_named(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        await client.publish("notes", "one", partition=0)
        assert [one.broker for one in client.doubts] == [FIRST]
        assert client.misbehaviour == ()
        assert str(client.doubts[0]) == (
            f"Broker {FIRST} is suspected: it has shown no receipt for a batch within 0.05 s, while others answered. It may be "
            "cut off or slow, or hide something."
        )


@on_stage
async def test_a_broker_that_shows_old_headers_where_others_show_new_ones_is_named(
    stage: Stage,
) -> None:
    keys = [TOPICS.key("notes")]
    old: list[Proven] = []

    def replay(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, Prove) or not isinstance(answer, Proven):
            return answer
        old.append(answer)
        return replace(old[0], id=question.id)

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = replay
        await client.observer.entries(keys)
        assert doubted(client) == []
        stage.apply(time=stage.ledger.time + 60_000)
        await client.observer.entries(keys)
        assert doubted(client) == [FIRST]
        assert "its newest header is 60000 ms old" in client.doubts[0].problem
        assert client.misbehaviour == ()


@on_stage
async def test_brokers_of_a_network_that_stands_still_are_not_doubted(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), patience=1) as client:
        stage.late = 60_000
        with pytest.raises(Stalled):
            await client.topic("notes")
        assert client.doubts == ()


@on_stage
async def test_one_broker_is_not_doubted_aloud_again_and_again(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice")) as client:
        brokers = client._quorum.brokers
        for name in (FIRST, FIRST, SECOND):
            brokers.doubt(name, "it is silent")
        assert [one.broker for one in client.doubts] == [FIRST, SECOND]
