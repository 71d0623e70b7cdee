"""The small parts of a node that guard memory: caches, queues, accounts, quiet logs, and proofs from whole trees."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.crypto import merkle
from parley.model.advisories import MAX_ADVISORY
from parley.net import messages as net
from parley.net.messages import MAX_QUESTION
from parley.node.allowances import Accounts, pay
from parley.node.cache import Cache
from parley.node.config import Limits
from parley.node.links import FIRST_PAUSE, LONGEST_PAUSE, Backoff, Outbox
from parley.node.logs import BURST_OF_LINES, MAX_THROTTLED, MAX_VALUE, Lines, Throttled, presentable

leaves = st.lists(st.binary(max_size=4), min_size=1, max_size=40)


@given(leaves, st.data())
def test_proofs_from_a_kept_tree_are_those_of_merkle(found: list[bytes], data: st.DataObject) -> None:
    positions = sorted(data.draw(st.sets(st.integers(0, len(found) - 1), min_size=1)))
    tree = merkle.Tree(found)
    assert tree.root == merkle.root(found)
    assert tree.prove(positions) == merkle.prove_many(found, positions)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_a_cache_gives_what_was_made_and_never_costs_more_than_its_budget(
    asked: list[tuple[int, int]],
) -> None:
    cache: Cache[int, int] = Cache(100)
    costs = dict(asked)
    for key, _ in asked:
        assert cache.get(key, partial(lambda key: (key, costs[key]), key)) == key
        assert cache.cost <= 100


def test_a_cache_makes_a_value_once_and_forgets_the_least_used() -> None:
    made: list[str] = []
    cache: Cache[str, str] = Cache(2)

    def make(key: str) -> tuple[str, int]:
        made.append(key)
        return key, 1

    for key in ("a", "b", "a", "c", "a", "b"):
        assert cache.get(key, partial(make, key)) == key
    assert made == ["a", "b", "c", "b"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=50))
def test_a_full_outbox_drops_the_oldest_and_counts_them(messages: list[bytes]) -> None:
    outbox = Outbox(max_bytes=100, max_messages=5)
    for data in messages:
        outbox.put(data)
    kept = [outbox.take() for _ in range(len(outbox))]
    assert kept == messages[len(messages) - len(kept) :]
    assert outbox.dropped == len(messages) - len(kept)
    assert sum(map(len, kept)) <= 100
    assert len(kept) <= 5


def test_pauses_grow_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(20)]
    assert FIRST_PAUSE / 2 <= pauses[0] <= FIRST_PAUSE
    assert all(pause <= LONGEST_PAUSE for pause in pauses)
    assert pauses[-1] >= LONGEST_PAUSE / 2
    backoff.succeeded()
    assert backoff.next() <= FIRST_PAUSE


def test_an_account_lasts_as_long_as_a_connection_and_has_a_limit() -> None:
    accounts = Accounts(Limits(), connections=2)
    first, second = accounts.enter("a"), accounts.enter("a")
    assert first is second is not None
    assert accounts.enter("a") is None
    accounts.leave("a")
    assert accounts.enter("a") is first
    accounts.leave("a")
    accounts.leave("a")
    assert len(accounts) == 0
    assert accounts.enter("b") is not first


@pytest.mark.parametrize(
    ("limits", "frames"),
    [
        (Limits(requests_per_second=100), [b"x"] * 1_024),
        (Limits(bytes_per_second=64 * 1024), [bytes(MAX_QUESTION)] * 2),
    ],
)
def test_a_client_that_is_too_fast_is_read_more_slowly(limits: Limits, frames: list[bytes]) -> None:
    account = Accounts(limits, connections=1).enter("a")
    assert account is not None

    async def story() -> None:
        await pay([account], frames, lambda: 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pay([account], frames, lambda: 0)
        await pay([account], frames[:1], lambda: 10**6)

    asyncio.run(story())


def test_the_same_is_said_once_in_a_while_with_how_often_it_happened() -> None:
    throttled = Throttled(quiet_ms=100)
    counts = [throttled.count("event", "subject", now) for now in (0, 10, 50, 99, 100, 150, 300)]
    assert counts == [1, 0, 0, 0, 4, 0, 2]
    assert throttled.count("event", "other", 10) == 1


def test_what_is_remembered_to_be_quiet_is_bounded() -> None:
    throttled = Throttled()
    for subject in range(MAX_THROTTLED + 100):
        assert throttled.count("event", subject, subject * 1_000) == 1
    assert len(throttled._last) == MAX_THROTTLED


def test_ever_new_subjects_do_not_flood_the_log() -> None:
    throttled = Throttled()
    assert sum(throttled.count("event", subject, 0) for subject in range(10_000)) == BURST_OF_LINES


def test_no_bytes_and_no_long_values_reach_the_log() -> None:
    event = presentable(None, "info", {"key": b"secret", "long": "x" * 10_000, "n": 5, "none": None})
    assert event["key"] == "<6 bytes>"
    assert len(event["long"]) == MAX_VALUE + 1
    assert (event["n"], event["none"]) == (5, None)


def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb", buffering=0) as file:
        lines = Lines(file)
        lines.info("kept")
    lines.critical("lost")
    with Path("/dev/full").open("wb", buffering=0) as full:
        Lines(full).error("lost")
    assert path.read_bytes() == b"kept\n"


@pytest.mark.parametrize(
    "change",
    [
        {"note": "x" * (net.MAX_WORDS + 1)},
        {"damage": ("x" * (net.MAX_WORDS + 1),)},
        {"damage": ("x",) * (net.MAX_TOLD + 1)},
        {"misbehaviour": (net.Misbehaviour("b", "votes", 1),) * (net.MAX_TOLD + 1)},
        {"readers": (net.SignedAdvisory(b"x", bytes(64)),) * (net.MAX_READERS + 1)},
        {"readers": (net.SignedAdvisory(b"x" * (MAX_ADVISORY + 1), bytes(64)),)},
    ],
)
def test_what_a_broker_can_say_of_itself_and_others_is_bounded(change: dict[str, Any]) -> None:
    status = net.Status(1, "b", "o", 0, "1", "ready", "", 0, 0, 1, 1, 1, "b", 1, 0, (), (), ())
    assert net.decode_answer(net.encode(status)) == status
    with pytest.raises(net.WireError):
        net.decode_answer(net.encode(replace(status, **change)))
