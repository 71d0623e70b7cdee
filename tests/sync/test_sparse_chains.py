"""Catching up where no two views follow each other: nothing becomes final on the way, and branches come and go."""

from __future__ import annotations

from tests.sync.branches import Branch
from tests.sync.laggard import Laggard

from parley.consensus.errors import Reason
from parley.replica.ports import Refused


def test_more_blocks_than_fit_an_answer_arrive_although_none_of_them_is_final() -> None:
    branch, laggard = Branch(150, step=2), Laggard()
    branch.show(laggard, 150)
    for _ in range(3):
        laggard.ask(branch.answer)
    assert [request.above for _, request in laggard.questions] == [0, 63, 126]
    assert laggard.height == 0
    assert laggard.member.replica.fire(0, laggard.timers[-1]) == []
    assert not laggard.member.refused


def test_a_target_on_another_branch_is_fetched_from_the_last_committed_block_on() -> None:
    old, new, laggard = Branch(100, step=2), Branch(100, step=3), Laggard()
    old.show(laggard, 70)
    laggard.ask(old.answer)
    new.show(laggard, 100)
    laggard.ask(old.answer)  # still the question about the old branch
    to, request = laggard.questions[-1]
    assert (request.target, request.above) == (new.blocks[100].id, 70)
    effects = laggard.hear(to, new.answer(request))
    assert [effect.reason for effect in effects if isinstance(effect, Refused)] == [Reason.CONFLICT]
    assert laggard.questions[-1][0] != to
    assert laggard.questions[-1][1].above == 0
    laggard.ask(new.answer)
    laggard.ask(new.answer)
    assert laggard.member.replica.fire(0, laggard.timers[-1]) == []
