"""Who is how far is read off the chain: by who proposes and who votes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.replica.driver import Cluster

from parley.consensus.types import Block
from parley.ledger.bodies import GRACE
from parley.replica.progress import Progress


def chain(*absent: int, heights: int) -> list[Block]:
    """Genesis first. Those who are absent are so from the beginning."""
    cluster = Cluster().start()
    cluster.absent = set(absent)
    return cluster.run_until(lambda: cluster.heights()[0] >= heights, 20_000).members[0].blocks()


class Reading:
    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self.heights: list[int] = []

    def __call__(self, height: int) -> Block | None:
        self.heights.append(height)
        return self.blocks[height]


ALL = chain(heights=GRACE + 20)
WITHOUT = chain(2, heights=GRACE + 20)


def told(blocks: list[Block], start: int, stored: Callable[[int], Block | None]) -> Progress:
    found = Progress(0, 4, start, stored)
    for block in blocks[start + 1 :]:
        found.executed(block)
    return found


def test_members_that_propose_and_vote_are_near_and_one_that_does_not_falls_behind() -> None:
    assert told(ALL, 0, Reading(ALL)).all_near()
    assert not told(WITHOUT, 0, Reading(WITHOUT)).all_near()
    assert told(WITHOUT[: GRACE + 1], 0, Reading(WITHOUT)).all_near()


def test_a_start_looks_back_as_far_as_it_takes_to_see_everybody() -> None:
    last = len(ALL) - 1
    reading = Reading(ALL)
    assert Progress(0, 4, last, reading).all_near()
    assert len(reading.heights) < 12
    assert not Progress(0, 4, len(WITHOUT) - 1, Reading(WITHOUT)).all_near()


def test_a_start_looks_back_no_further_than_to_where_nobody_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("parley.replica.progress.AWAY", GRACE + 5)
    reading = Reading(WITHOUT)
    assert not Progress(0, 4, len(WITHOUT) - 1, reading).all_near()
    assert len(reading.heights) == GRACE + 6


def test_blocks_that_are_missing_after_a_snapshot_say_nothing() -> None:
    last = len(WITHOUT) - 1
    assert Progress(0, 4, last, lambda height: WITHOUT[height] if height > last - 8 else None).all_near()
