"""Every reason that the network refuses for has an exception of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

import parley
from parley.applications import DATA_SHARD
from parley.client import errors
from parley.client.texts import TEXTS
from parley.model.refusals import Refusal, classes
from parley.model.texts import known_texts

REFUSALS = (
    "BadSignature",
    "Busy",
    "ClientExists",
    "Expired",
    "Invalid",
    "LimitExceeded",
    "Malformed",
    "NotAuthenticated",
    "NotFound",
    "NotReady",
    "NotStaged",
    "NotSubscribed",
    "OutOfSequence",
    "Oversized",
    "PermissionDenied",
    "Pruned",
    "Revoked",
    "SequenceReused",
    "StageOver",
    "TopicExists",
    "TopicReplaced",
    "UnknownClient",
    "UnknownPartition",
    "UnknownTopic",
    "Unsupported",
    "WrongChain",
    "WrongLedger",
)


@pytest.mark.parametrize("code", REFUSALS)
def test_every_refusal_has_its_class(code: str) -> None:
    error = Refusal(code, "because", ()).error()
    assert type(error) is not errors.Refused
    assert (error.code, error.detail, str(error)) == (code, "because", f"{code}: because")
    assert type(error).__name__ == code
    assert getattr(errors, code) is type(error)


def test_no_two_codes_share_a_class() -> None:
    assert len({type(Refusal(code, "", ()).error()) for code in REFUSALS}) == len(REFUSALS)


def test_no_refusal_of_the_network_is_missing_here() -> None:
    ours = {code for code, kind in classes().items() if kind.__module__.startswith("parley.")}
    assert ours == set(REFUSALS)
    assert {kind.code for module in DATA_SHARD.modules for kind in module.refusals} <= ours


def test_a_refusal_that_this_version_does_not_know_still_names_its_code() -> None:
    error = Refusal("TooLoud", "at_night", (("limit", 3),)).error()
    assert type(error) is errors.Refused
    assert str(error) == "TooLoud: at_night (limit 3)"


def test_the_client_has_texts_for_what_it_refuses_itself() -> None:
    lost = errors.Pruned("unread", topic="notes", starts="partition 0 starts at offset 3")
    assert (
        lost.detail == "messages of notes were not kept until they were read: partition 0 starts at offset 3"
    )
    assert known_texts().items() >= TEXTS.items()


def test_a_denial_names_the_rule() -> None:
    rule = 'role == "nurse" and not x'
    fields = (("action", "publish"), ("rule", rule), ("topic", "a/b"))
    denied = Refusal("PermissionDenied", "rule", fields).error()
    assert isinstance(denied, errors.PermissionDenied)
    assert denied.rule == 'role == "nurse" and not x'
    assert denied.detail == f"rule 'publish' of topic a/b: {rule}"
    other = errors.PermissionDenied("create_topics", organisation="alpha")
    assert other.detail == "only an administrator of alpha may create topics of its own"
    assert other.rule == ""


def test_errors_are_what_they_are_to_the_rest_of_python() -> None:
    unreachable = errors.Unreachable({"alpha-1": "refused", "beta-1": "timed out"})
    assert isinstance(unreachable, ConnectionError)
    assert "alpha-1: refused; beta-1: timed out" in str(unreachable)
    stalled = errors.Stalled("publishing", {"alpha-1": "busy"})
    assert isinstance(stalled, TimeoutError)
    assert "alpha-1: busy" in str(stalled)
    assert "`parley status`" in str(stalled)
    assert "clock" not in str(stalled)
    assert isinstance(errors.InvalidRule("x <", 3, "expected a value"), ValueError)


def test_what_several_brokers_have_in_common_is_said_once() -> None:
    tried = {"alpha-1": "refused", "beta-1": "timed out", "gamma-1": "refused"}
    told = "(alpha-1 at h:1, gamma-1 at h:3: refused; beta-1: timed out)"
    assert told in str(errors.Unreachable(tried, {"alpha-1": "h:1", "gamma-1": "h:3"}))
    for kind in (errors.Stalled, errors.Overloaded):
        assert "(alpha-1, gamma-1: refused; beta-1: timed out)" in str(kind("publishing", tried))


def test_every_public_error_is_one_of_ours_and_at_hand() -> None:
    kinds = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    ours = {name for name, kind in kinds.items() if issubclass(kind, errors.ParleyError) and name[0] != "_"}
    assert set(errors.__all__) == ours, "an error is missing in the list"
    assert set(errors.__all__) > set(REFUSALS)
    for name in errors.__all__:
        found = getattr(errors, name)
        assert issubclass(found, errors.ParleyError)
        assert getattr(parley, name) is found


def test_the_front_offers_what_it_lists() -> None:
    offered = parley.__all__  # type: ignore[attr-defined]
    assert all(getattr(parley, name) is not None for name in offered)
    assert set(offered) <= set(dir(parley))
    assert {*REFUSALS, "Client", "connect", "ParleyError", "Stalled", "__version__"} <= set(offered)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        parley.nothing  # type: ignore[attr-defined] # noqa: B018


def test_parts_of_the_package_do_not_load_the_client_and_the_client_does_not_load_the_node() -> None:
    program = """
import sys
import parley.crypto.merkle
assert not {"asyncio", "ssl", "parley.client"} & set(sys.modules), "a part loads the client"
import parley
parley.connect, parley.connect_blocking
heavy = {"aiohttp", "cryptography", "rocksdict", "structlog", "uvloop", "prometheus_client", "parley.node"}
heavy |= {"parley.mempool", "parley.sync"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
