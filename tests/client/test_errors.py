"""Every reason that the network refuses for has an exception of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import parley
from parley.client import errors
from parley.model.errors import Code

REFUSALS = sorted(set(Code) - {Code.OK, Code.DUPLICATE})


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_has_its_class(code: Code) -> None:
    error = errors.refused(code, "because")
    assert type(error) is not errors.Refused
    assert (error.code, error.detail, str(error)) == (code, "because", f"{code.value}: because")
    assert type(error).__name__ == code.value


def test_no_two_codes_share_a_class() -> None:
    assert len({type(errors.refused(code, "")) for code in REFUSALS}) == len(REFUSALS)


def test_a_denial_names_the_rule() -> None:
    denied = errors.refused(
        Code.PERMISSION_DENIED, "rule 'publish' of topic a/b: role == \"nurse\" and not x"
    )
    assert isinstance(denied, errors.PermissionDenied)
    assert denied.rule == 'role == "nurse" and not x'
    other = errors.refused(Code.PERMISSION_DENIED, "only an administrator of alpha may do that")
    assert isinstance(other, errors.PermissionDenied)
    assert other.rule == ""


def test_errors_are_what_they_are_to_the_rest_of_python() -> None:
    unreachable = errors.Unreachable({"alpha-1": "refused", "beta-1": "timed out"})
    assert isinstance(unreachable, ConnectionError)
    assert "alpha-1: refused; beta-1: timed out" in str(unreachable)
    stalled = errors.Stalled("publishing", {"alpha-1": "busy"})
    assert isinstance(stalled, TimeoutError)
    assert "alpha-1: busy" in str(stalled)
    assert "quorum" in str(stalled)
    assert "`parley status`" in str(stalled)
    assert isinstance(errors.InvalidRule("x <", 3, "expected a value"), ValueError)


def test_what_several_brokers_have_in_common_is_said_once() -> None:
    tried = {"alpha-1": "refused", "beta-1": "timed out", "gamma-1": "refused"}
    told = "(alpha-1 at h:1, gamma-1 at h:3: refused; beta-1: timed out)"
    assert told in str(errors.Unreachable(tried, {"alpha-1": "h:1", "gamma-1": "h:3"}))
    for kind in (errors.Stalled, errors.Overloaded):
        assert "(alpha-1, gamma-1: refused; beta-1: timed out)" in str(kind("publishing", tried))


def test_every_public_error_is_one_of_ours_and_at_hand() -> None:
    for name in errors.__all__:
        found = getattr(errors, name)
        if isinstance(found, type):
            assert issubclass(found, errors.ParleyError)
            assert getattr(parley, name) is found


def test_the_front_offers_what_it_lists() -> None:
    assert all(getattr(parley, name) is not None for name in parley.__all__)
    assert set(parley.__all__) <= set(dir(parley))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        parley.nothing  # type: ignore[attr-defined] # noqa: B018


def test_parts_of_the_package_do_not_load_the_client_and_the_client_does_not_load_the_node() -> None:
    program = """
import sys
import parley.crypto.merkle
assert not {"asyncio", "ssl", "parley.client"} & set(sys.modules), "a part loads the client"
import parley
parley.connect, parley.connect_blocking
heavy = {"cryptography", "rocksdict", "structlog", "uvloop", "prometheus_client", "parley.node", "parley.pubsub"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
