"""Catching up where no two views follow each other: nothing becomes final on the way, and branches come and go."""

from __future__ import annotations

import pytest
from tests.sync.branches import Branch
from tests.sync.laggard import Laggard

from parley.sync.messages import BlocksResponse


def test_more_blocks_than_fit_an_answer_arrive_although_none_of_them_is_final() -> None:
    branch, laggard = Branch(150, step=2), Laggard()
    branch.show(laggard, 150)
    for _ in range(7):
        laggard.ask(branch.answer)
    # Progress is by member, so that nobody can set the others back.
    assert [request.above for _, request in laggard.questions] == [0, 0, 0, 63, 63, 63, 126]
    assert laggard.height == 0
    assert laggard.member.replica.fire(0, laggard.timers[-1]) == []
    assert not laggard.member.refused


@pytest.mark.parametrize("liar", [0, 1, 2])
def test_a_member_that_answers_nothing_sets_nobody_back(liar: int) -> None:
    branch, laggard = Branch(300, step=2), Laggard()
    branch.show(laggard, 300)
    for _ in range(30):
        to, request = laggard.questions[-1]
        empty = BlocksResponse(request.target, (), None)
        laggard.hear(to, empty if to == liar else branch.answer(request))
        if laggard.member.replica._machine.known(branch.blocks[300].id):
            return
    pytest.fail("one member that answers nothing holds up the fetch")


def test_a_target_on_another_branch_is_fetched_too() -> None:
    old, new, laggard = Branch(100, step=2), Branch(100, step=3), Laggard()
    old.show(laggard, 70)
    laggard.ask(old.answer)
    new.show(laggard, 100)
    laggard.ask(old.answer)  # still the question about the old branch
    assert laggard.questions[-1][1].target == new.blocks[100].id
    for _ in range(3):
        laggard.ask(new.answer)
    assert laggard.member.replica._machine.known(new.blocks[100].id)
    assert laggard.member.replica.fire(0, laggard.timers[-1]) == []
