"""Leaders are a pure function of the view and the ancestry (P8)."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Committee

from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.leader.round_robin import RoundRobin

HEADERS = [block.header for block in Committee().chain(1, 2, 4)]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    size=st.integers(1, 200),
    views=st.lists(st.integers(0, 2**40), max_size=10),
    entered=st.sampled_from(EnteredBy),
)
def test_the_leader_does_not_depend_on_what_was_asked_before(
    size: int, views: list[int], entered: EnteredBy
) -> None:
    used, fresh = RoundRobin(size), RoundRobin(size)
    answers = [used.leader(view, entered, iter(HEADERS)) for view in views]
    assert answers == [fresh.leader(view, entered, iter(HEADERS)) for view in reversed(views)][::-1]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(size=st.integers(1, 200), view=st.integers(0, 2**40))
def test_round_robin_reads_neither_history_nor_certificate(size: int, view: int) -> None:
    scheme: LeaderScheme = RoundRobin(size)
    assert scheme.memory == 0
    assert scheme.leader(view, EnteredBy.QC, HEADERS) == scheme.leader(view, EnteredBy.TC, ())


@settings(derandomize=True, max_examples=50, deadline=None)
@given(size=st.integers(1, 200), start=st.integers(0, 2**40))
def test_in_any_n_consecutive_views_each_member_leads_once(size: int, start: int) -> None:
    scheme = RoundRobin(size)
    leaders = [scheme.leader(view, EnteredBy.QC, ()) for view in range(start, start + size)]
    assert sorted(leaders) == list(range(size))
