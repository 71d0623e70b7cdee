"""The questions alone, without a replica around them."""

from __future__ import annotations

import pytest
from tests.sync.laggard import ME, recorded

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Send, SetTimer, VerifiedQC
from parley.consensus.verify import Verifier
from parley.sync.blocks import RETRY, BlockSync, Effect, SyncTimer
from parley.sync.messages import BlocksRequest


def new_sync() -> BlockSync:
    chain = recorded()
    verifier = Verifier(chain.committee.instance, chain.committee.authority.scheme(), chain.blocks[0])
    return BlockSync(ME, 4, verifier)


def target(height: int) -> VerifiedQC:
    return VerifiedQC(recorded().qc(height))


def question(effects: list[Effect]) -> tuple[int, BlocksRequest, SyncTimer]:
    send, timer = effects
    assert isinstance(send, Send)
    assert isinstance(send.message, BlocksRequest)
    assert isinstance(timer, SetTimer)
    assert timer.delay == RETRY
    return send.to, send.message, timer.timer


def never(_qc: VerifiedQC) -> bool:
    return False


def always(_qc: VerifiedQC) -> bool:
    return True


def test_an_older_target_than_the_current_one_is_ignored() -> None:
    sync = new_sync()
    _, first, timer = question(sync.want(target(20), 0))
    assert sync.want(target(10), 0) == []
    _, second, _ = question(sync.on_timer(timer, 0, never, paused=False))
    assert first == second


def test_a_target_that_arrived_by_itself_is_forgotten_at_the_timer() -> None:
    sync = new_sync()
    to, request, timer = question(sync.want(target(20), 0))
    assert sync.on_timer(timer, 20, always, paused=False) == []
    with pytest.raises(Refused) as refused:
        sync.receive(to, recorded().answer(request), lambda _block: False)
    assert refused.value.reason is Reason.UNSOLICITED
    assert question(sync.want(target(30), 20))[1].above == 20


def test_a_paused_fetch_asks_nobody_but_keeps_its_timer() -> None:
    sync = new_sync()
    _, _, timer = question(sync.want(target(20), 0))
    assert sync.on_timer(timer, 0, never, paused=True) == [SetTimer(timer, RETRY)]
    assert question(sync.on_timer(timer, 0, never, paused=False))


def test_without_a_target_nothing_resumes_and_no_timer_counts() -> None:
    sync = new_sync()
    assert sync.resume(0, never) == []
    assert sync.on_timer(SyncTimer(0), 0, never, paused=False) == []


def test_an_open_question_is_not_asked_twice() -> None:
    sync = new_sync()
    sync.want(target(20), 0)
    assert sync.resume(0, never) == []


def test_members_without_a_connection_are_passed_over_as_long_as_there_are_others() -> None:
    sync = new_sync()
    others = [member for member in range(4) if member != ME]
    sync.connected(others[0], up=False)
    asked, _, timer = question(sync.want(target(3), 0))
    again = [
        question(sync.on_timer(SyncTimer(timer.attempt + step), 0, never, paused=False))[0]
        for step in range(3)
    ]
    assert {asked, *again} == set(others[1:])
    for member in others[1:]:
        sync.connected(member, up=False)
    assert question(sync.on_timer(SyncTimer(timer.attempt + 3), 0, never, paused=False))[0] in others
    sync.connected(others[0], up=True)
    assert question(sync.on_timer(SyncTimer(timer.attempt + 4), 0, never, paused=False))[0] == others[0]
