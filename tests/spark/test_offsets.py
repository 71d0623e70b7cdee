"""The offsets of a checkpoint, and how rows and ranges are shared out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.spark.errors import BackwardOffset
from parley.spark.offsets import Offsets, Place, TopicPartition, decode, encode, split, split_fairly

BLOCK = "ab" * 32


def offsets() -> Offsets:
    places = {
        ("b", 10): Place(5, 40, BLOCK, 0, 0, (3, 1), 39),
        ("b", 2): Place(7, 40, BLOCK, 0, 0, (3, 1), 39),
        ("a", 0): Place(1, 12, BLOCK, 0, 0, (2, 0), 12),
    }
    attributes: dict[int, dict[str, str | int | bool]] = {
        39: {"role": "nurse", "level": 3, "on": True},
        12: {},
        1: {"old": 1},
    }
    return Offsets(BLOCK, places, attributes)


def test_offsets_come_back_from_a_checkpoint_as_they_were() -> None:
    written = json.dumps(encode(offsets()))
    found = decode(json.loads(written))
    assert found.places == offsets().places
    assert found.rights(("b", 2)) == {"role": "nurse", "level": 3, "on": True}
    assert json.dumps(encode(found)) == written  # Spark compares texts


def test_only_attributes_that_a_place_names_are_written() -> None:
    assert set(encode(offsets())["attributes"]) == {"12", "39"}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"chain": "short"},
        {
            "topics": {
                "a": {
                    "0": {
                        "offset": -1,
                        "height": 1,
                        "block": BLOCK,
                        "shard": 0,
                        "epoch": 0,
                        "topic_id": [2, 0],
                        "rights": 1,
                    }
                }
            }
        },
        {
            "topics": {
                "a": {
                    "x": {
                        "offset": 1,
                        "height": 1,
                        "block": BLOCK,
                        "shard": 0,
                        "epoch": 0,
                        "topic_id": [2, 0],
                        "rights": 1,
                    }
                }
            }
        },
        {"topics": {"a": {"0": 23}}},
        {"topics": {"a": {"0": {"offset": 1, "height": 1, "block": BLOCK, "epoch": 0, "rights": 1}}}},
        {"more": 1},
    ],
)
def test_an_offset_of_anything_else_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises(BackwardOffset, match="new checkpoint"):
        decode({**encode(offsets()), **change})


def test_an_offset_of_kafka_is_an_error() -> None:
    with pytest.raises(BackwardOffset):
        decode({"topic": {"0": 23}})


waiting = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)), st.integers(0, 1_000), max_size=8
)


@given(waiting, st.integers(1, 3_000), st.integers(0, 100))
def test_a_limit_is_used_up_and_nobody_gets_more_than_waits(
    waits: dict[TopicPartition, int], limit: int, turn: int
) -> None:
    taken = split_fairly(waits, limit, turn)
    assert sum(taken.values()) == min(limit, sum(waits.values()))
    assert all(0 <= taken[spot] <= waits[spot] for spot in waits)


@given(waiting, st.integers(1, 3_000), st.integers(0, 100))
def test_who_waits_for_less_than_a_fair_share_gets_all_of_it(
    waits: dict[TopicPartition, int], limit: int, turn: int
) -> None:
    taken = split_fairly(waits, limit, turn)
    served = [spot for spot in waits if waits[spot]]
    for spot in served:
        if waits[spot] <= limit // len(served):
            assert taken[spot] == waits[spot]


def test_with_fewer_rows_than_partitions_all_have_a_turn() -> None:
    waits = {("a", at): 10 for at in range(5)}
    first = {spot for turn in range(5) for spot, count in split_fairly(waits, 1, turn).items() if count}
    assert first == set(waits)


ranges = st.lists(
    st.tuples(st.tuples(st.just("a"), st.integers(0, 9)), st.integers(0, 99), st.integers(0, 999))
)


@given(ranges, st.none() | st.integers(1, 50))
def test_pieces_cover_their_ranges_without_a_gap(
    given_ranges: list[tuple[TopicPartition, int, int]], least: int | None
) -> None:
    wanted = [(spot, at) for spot, start, end in given_ranges for at in range(start, end)]
    pieces = split(given_ranges, least)
    assert [(spot, at) for spot, start, end in pieces for at in range(start, end)] == wanted
    assert all(start < end for _, start, end in pieces)
    if least is not None:
        assert len(pieces) >= min(least, len(wanted))
