"""Refusals speak for themselves."""

from parley.consensus.errors import Reason, Refused


def test_a_refusal_reads_as_its_reason_and_detail() -> None:
    assert str(Refused(Reason.STALE, "view 3")) == "for a view or height that is over: view 3"


def test_a_refusal_without_detail_reads_as_its_reason() -> None:
    assert str(Refused(Reason.STALE)) == "for a view or height that is over"


def test_every_reason_has_its_own_words() -> None:
    assert len({reason.value for reason in Reason}) == len(Reason)
