"""Lists, and what else a client takes from f+1 brokers or from whoever does not lie: no one of them hides or invents anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN
from tests.client.stage import Lie, Stage, on_stage

from parley.client import state
from parley.client.errors import Busy, PermissionDenied
from parley.modules.topics.tables import TOPICS
from parley.net.messages import Answer, Failure, Listed, ListKeys, Question

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"
SOON = 15.0


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
        return [name for (name,), _ in found], [lie.broker for lie in client.misbehaviour]


@on_stage
async def test_one_broker_hides_nothing_in_a_list_while_others_are_busy(stage: Stage) -> None:
    """Those who cannot answer now have not refused: there is another one to be asked."""
    stage[FIRST].lie = hiding
    for broker in stage.brokers[1:3]:
        broker.lie = refusing(Busy.code)
    assert await topics(stage) == (["notes"], [])


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
