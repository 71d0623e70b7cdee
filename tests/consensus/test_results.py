"""What this replica computed and what quorums certified must be the same (P2)."""

from tests.consensus.chains import Committee, roots_at

from parley.consensus.events import Diverged
from parley.consensus.results import Results
from parley.consensus.types import Block

COMMITTEE = Committee()
WRONG = roots_at(99)


def claim(height: int, *, right: bool = True) -> Block:
    roots = roots_at(height) if right else WRONG
    return COMMITTEE.block(executed_height=height, state_root=roots.state, history_root=roots.history)


def results(*heights: int) -> Results:
    return Results({height: roots_at(height) for height in heights})


def test_results_are_kept_by_height() -> None:
    kept = results(0, 1)
    assert (kept.at(1), kept.at(2)) == (roots_at(1), None)


def test_a_header_agrees_or_not_or_cannot_be_judged_yet() -> None:
    kept = results(0, 1)
    assert kept.agree(claim(1).header) is True
    assert kept.agree(claim(1, right=False).header) is False
    assert kept.agree(claim(2).header) is None


def test_a_header_with_one_wrong_root_does_not_agree() -> None:
    kept = results(0)
    assert kept.agree(COMMITTEE.block(state_root=bytes(32)).header) is False
    assert kept.agree(COMMITTEE.block(history_root=bytes(32)).header) is False


def test_a_certified_right_claim_is_no_divergence() -> None:
    kept = results(0, 1)
    assert kept.certified(claim(1).header) is None
    assert not kept.diverged


def test_a_certified_claim_that_contradicts_is_a_divergence() -> None:
    kept, wrong = results(0, 1), claim(1, right=False)
    assert kept.certified(wrong.header) == Diverged(1, wrong.id)
    assert kept.diverged


def test_a_claim_certified_before_execution_is_compared_when_execution_arrives() -> None:
    kept, wrong = results(0), claim(2, right=False)
    assert kept.certified(wrong.header) is None
    assert kept.executed(1, roots_at(1)) is None
    assert kept.executed(2, roots_at(2)) == Diverged(2, wrong.id)


def test_a_right_claim_certified_before_execution_is_no_divergence() -> None:
    kept = results(0)
    kept.certified(claim(1).header)
    assert kept.executed(1, roots_at(1)) is None
    assert kept.at(1) == roots_at(1)


def test_a_wrong_claim_about_a_height_executed_meanwhile_is_found_at_once() -> None:
    kept, wrong = results(0), claim(1, right=False)
    kept.executed(1, roots_at(1))
    assert kept.certified(wrong.header) == Diverged(1, wrong.id)


def test_a_divergence_is_reported_once() -> None:
    kept = results(0, 1)
    kept.certified(claim(0, right=False).header)
    assert kept.certified(claim(1, right=False).header) is None
    assert kept.diverged


def test_a_claim_about_a_forgotten_height_is_not_judged() -> None:
    kept = results(0, 1, 2)
    kept.forget_below(2)
    assert kept.certified(claim(1, right=False).header) is None
    assert (kept.at(1), kept.at(2)) == (None, roots_at(2))


def test_claims_ahead_are_kept_even_when_every_result_was_forgotten() -> None:
    """A replica that catches up commits many blocks before it executes the first."""
    kept, wrong = results(0), claim(9, right=False)
    kept.forget_below(8)
    assert kept.certified(wrong.header) is None
    assert kept.executed(9, roots_at(9)) == Diverged(9, wrong.id)
