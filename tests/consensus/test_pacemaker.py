"""Views are entered by certificates only (T11, T12)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Committee

from parley.consensus.events import VerifiedQC, VerifiedTC
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.pacemaker import Pacemaker

COMMITTEE = Committee()
GENESIS = VerifiedQC(COMMITTEE.genesis_qc)


def qc(view: int) -> VerifiedQC:
    return VerifiedQC(COMMITTEE.qc(COMMITTEE.block(view=view)))


def tc(view: int) -> VerifiedTC:
    return VerifiedTC(COMMITTEE.tc(view))


def pacemaker() -> Pacemaker:
    return Pacemaker(GENESIS, None)


def test_the_first_view_follows_block_0() -> None:
    assert pacemaker().view == 1


@pytest.mark.parametrize("view", [1, 2, 49, 10_000])
def test_t12_a_certificate_opens_the_view_after_it_at_once(view: int) -> None:
    by_qc, by_tc = pacemaker(), pacemaker()
    assert by_qc.on_qc(qc(view))
    assert by_tc.on_tc(tc(view))
    assert (by_qc.view, by_tc.view) == (view + 1, view + 1)
    assert (by_qc.entered_by, by_tc.entered_by) == (EnteredBy.QC, EnteredBy.TC)


def test_a_late_qc_of_the_view_before_replaces_the_tc_as_what_opened_the_view() -> None:
    pace = pacemaker()
    pace.on_tc(tc(5))
    assert not pace.on_qc(qc(5))
    assert (pace.view, pace.entered_by) == (6, EnteredBy.QC)


def test_an_old_qc_changes_nothing() -> None:
    pace = pacemaker()
    newest = qc(5)
    pace.on_qc(newest)
    assert not pace.on_qc(qc(4))
    assert (pace.view, pace.high_qc) == (6, newest)


def test_an_old_tc_changes_nothing() -> None:
    pace = pacemaker()
    pace.on_qc(qc(5))
    assert not pace.on_tc(tc(5))
    assert (pace.view, pace.high_tc) == (6, None)


def test_a_restart_takes_up_the_view_of_the_stored_certificates() -> None:
    assert Pacemaker(qc(4), tc(7)).view == 8
    assert Pacemaker(qc(9), tc(7)).view == 10


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=30))
def test_t11_the_view_is_always_one_after_the_newest_certificate(
    certificates: list[tuple[bool, int]],
) -> None:
    pace, newest = pacemaker(), 0
    for is_qc, view in certificates:
        entered = pace.on_qc(qc(view)) if is_qc else pace.on_tc(tc(view))
        assert entered == (view > newest)
        newest = max(newest, view)
        assert pace.view == newest + 1


def test_views_that_a_timeout_certificate_ended_are_counted_once_each() -> None:
    pace = pacemaker()
    for certificate in (tc(1), tc(1), tc(5), tc(3)):
        pace.on_tc(certificate)
    pace.on_qc(qc(9))
    assert pace.given_up == 2
