"""The rules of misbehaviour, in memory: what is told, what is not, and that cuts and restarts change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from tests.application.world import make_genesis

from parley.model.genesis import Broker, one_shard
from parley.model.refusals import (
    DUPLICATE,
    Busy,
    Expired,
    Invalid,
    LimitExceeded,
    OutOfSequence,
    PermissionDenied,
    SequenceReused,
    UnknownClient,
)
from parley.modules.topics.refusals import UnknownTopic
from parley.spark.detect_processor import BROKERS, CLIENT, Detector
from parley.spark.detect_rules import MAX_ENTRIES, ClientState, Kind, Thresholds, counted

SECOND = 1_000
LIMITS = Thresholds(
    refusals=4, probed=3, replays=5, reused=1, window=10_000, silent_blocks=5, silent_time=3_000
)
MEMBERS = tuple(
    Broker(f"{name}-1", name, name.encode().ljust(32), "127.0.0.1:1")
    for name in ("alpha", "beta", "gamma", "delta")
)
GENESIS = msgspec.structs.replace(make_genesis(), brokers=MEMBERS, shards=one_shard(MEMBERS))
ALICE = CLIENT + "alpha/alice"


def watching() -> TwsTester:
    return TwsTester(
        Detector(GENESIS, LIMITS), timeMode="EventTime", eventTimeExtractor=lambda row: int(row.at)
    )


def operation(
    height: int, code: str, *, topic: str = "", position: int = 0, digest: str = "", what: str = "publish"
) -> Row:
    """A block a second, for short."""
    return Row(
        watched=ALICE,
        height=height,
        position=position,
        at=height * SECOND,
        word=code,
        topic=topic,
        digest=digest or f"{height}/{position}",
        operation=what,
    )


def votes(height: int, *brokers: str) -> list[Row]:
    return [
        Row(
            watched=BROKERS,
            height=height,
            position=0,
            at=height * SECOND,
            word=f"{name}-1",
            topic="",
            digest="",
            operation="",
        )
        for name in brokers
    ]


def told(rows: Iterable[Row]) -> list[tuple[str, str, str, int]]:
    return [(row.kind, row.phase, row.severity, row["count"]) for row in rows]


def test_a_burst_of_refusals_is_told_once_and_again_at_ten_times_as_much() -> None:
    rows = [operation(7, Invalid.code, position=place) for place in range(45)]
    found = watching().test(ALICE, rows)
    assert told(found) == [("refusals", "began", "warning", 4), ("refusals", "grew", "critical", 40)]
    first = found[0]
    assert (first.subject, first.organisation, first.height_from, first.height_to) == (
        "alpha/alice",
        "alpha",
        7,
        7,
    )
    assert (
        first.words == "alpha/alice, a burst of refusals: 4 operations were refused within 10 s (Invalid 4)."
    )
    assert list(first.evidence) == [7]


def test_refusals_that_are_spread_over_time_are_no_burst() -> None:
    assert watching().test(ALICE, [operation(height * 4, Invalid.code) for height in range(1, 50)]) == []


@pytest.mark.parametrize("code", [OutOfSequence.code, Busy.code])
def test_what_decides_nothing_is_not_counted(code: str) -> None:
    rows = [operation(1, code, position=place) for place in range(100)]
    assert code not in counted()
    assert watching().test(ALICE, rows) == []


def test_many_topics_are_probing_and_one_topic_many_times_is_not() -> None:
    same = [operation(height, UnknownTopic.code, topic="notes") for height in range(1, 4)]
    assert watching().test(ALICE, same) == []
    topics = [
        operation(1, UnknownTopic.code, topic="a"),
        operation(2, PermissionDenied.code, topic="b\x1b[2J"),
    ]
    found = watching().test(ALICE, [*topics, operation(3, UnknownTopic.code, topic="c")])
    assert told(found) == [("probing", "began", "warning", 3)]
    assert list(found[0].evidence) == [1, 2, 3]
    assert "\x1b" not in found[0].words


def test_refusals_without_a_topic_probe_nothing() -> None:
    found = watching().test(
        ALICE, [operation(1, PermissionDenied.code, position=place) for place in range(4)]
    )
    assert {row.kind for row in found} == {"refusals"}


def test_replays_are_told_in_numbers_only_and_blame_nobody() -> None:
    few = [operation(height, DUPLICATE) for height in range(1, 5)]
    assert watching().test(ALICE, few) == []
    found = watching().test(ALICE, [*few, operation(5, Expired.code)])
    assert told(found) == [("replays", "began", "warning", 5)]
    assert "or somebody who holds its batches" in found[0].words


def test_refused_stages_are_no_burst_because_anybody_can_have_them_refused_again() -> None:
    rows = [operation(1, LimitExceeded.code, position=place, what="stage") for place in range(20)]
    assert watching().test(ALICE, rows) == []


def test_a_reused_sequence_is_told_at_once_and_its_replay_is_not() -> None:
    watched = watching()
    reused = operation(1, SequenceReused.code, digest="one")
    assert told(watched.test(ALICE, [reused])) == [("reused-sequences", "began", "warning", 1)]
    again = [operation(2, SequenceReused.code, digest="one", position=place) for place in range(50)]
    assert watched.test(ALICE, again) == []


def test_the_end_is_told_when_block_time_passes_and_then_nothing_is_remembered() -> None:
    watched = watching()
    watched.test(ALICE, [operation(height, Invalid.code) for height in range(1, 6)])
    assert watched.setWatermark(10 * SECOND) == []
    assert watched.peekValueState("watched", ALICE) is not None
    found = watched.setWatermark(16 * SECOND)
    assert told(found) == [("refusals", "ended", "notice", 5)]
    assert (found[0].height_from, found[0].height_to, found[0].time) == (1, 5, 5 * SECOND)
    assert watched.peekValueState("watched", ALICE) is None


def test_strangers_share_one_key_and_are_named_as_such() -> None:
    rows = [operation(1, UnknownClient.code, position=place) for place in range(4)]
    found = watching().test(CLIENT, rows)
    assert [(row.subject, row.organisation) for row in found] == [("unregistered keys", "")]


@pytest.mark.parametrize("code", [Invalid.code, SequenceReused.code, UnknownTopic.code, DUPLICATE])
def test_what_is_remembered_of_a_client_has_a_limit(code: str) -> None:
    watched = watching()
    rows = [
        Row(
            watched=ALICE,
            height=n,
            position=0,
            at=SECOND + n,
            word=code,
            topic=f"t{n}",
            digest=f"d{n}",
            operation="publish",
        )
        for n in range(400)
    ]
    watched.test(ALICE, rows)
    kept = watched.peekValueState("watched", ALICE)
    assert kept is not None
    state = msgspec.msgpack.decode(kept[0], type=ClientState)
    assert max(len(tally.entries) for _, tally in state.tallies()) == MAX_ENTRIES


def test_a_broker_that_falls_silent_is_told_and_so_is_its_return() -> None:
    watched = watching()
    rows = votes(1, "alpha", "beta", "gamma", "delta")
    for height in range(2, 12):
        rows += votes(height, "alpha", "beta", "gamma")
    found = watched.test(BROKERS, rows)
    assert told(found) == [("silent-broker", "began", "warning", 5)]
    first = found[0]
    assert (first.subject, first.organisation, first.height_from, first.height_to) == (
        "delta-1",
        "delta",
        1,
        6,
    )
    back = watched.test(BROKERS, votes(12, "alpha", "gamma", "delta"))
    assert told(back) == [("silent-broker", "ended", "notice", 10)]
    assert watched.test(BROKERS, votes(13, "alpha", "beta", "gamma")) == []


def test_a_quorum_without_always_the_same_broker_is_as_it_should_be() -> None:
    names = ("alpha", "beta", "gamma", "delta")
    rows = [
        row for height in range(1, 60) for row in votes(height, *(names[(height + n) % 4] for n in range(3)))
    ]
    assert watching().test(BROKERS, rows) == []


def test_many_blocks_in_a_moment_are_no_silence() -> None:
    rows = [
        Row(
            watched=BROKERS,
            height=height,
            position=0,
            at=height,
            word="alpha-1",
            topic="",
            digest="",
            operation="",
        )
        for height in range(1, 100)
    ]
    assert watching().test(BROKERS, rows) == []


def test_whoever_begins_to_watch_in_the_middle_gives_everybody_time() -> None:
    assert watching().test(BROKERS, votes(1_000, "alpha") + votes(1_001, "alpha")) == []


_OPERATIONS = st.lists(
    st.builds(
        operation,
        st.integers(1, 60),
        st.sampled_from([Invalid.code, UnknownTopic.code, DUPLICATE, SequenceReused.code]),
        topic=st.sampled_from(["a", "b", "c", "d"]),
        position=st.integers(0, 40),
        digest=st.sampled_from(["x", "y", "z"]),
    ),
    max_size=80,
    unique_by=lambda row: (row.height, row.position),
)


@example(
    [
        operation(height, SequenceReused.code, digest=digest)
        for height, digest in ((1, "x"), (2, "y"), (3, "x"))
    ]
    + [operation(height, Invalid.code, position=1) for height in (1, 13, 14)],
    {2, 14},
)
@given(_OPERATIONS, st.sets(st.integers(1, 60), max_size=6))
def test_how_the_ledger_is_cut_into_micro_batches_changes_no_alert(rows: list[Row], cuts: set[int]) -> None:
    whole = watching()
    expected = [*whole.test(ALICE, rows), *whole.setWatermark(1_000 * SECOND)]
    assert sorted(_plain(expected)) == sorted(_plain(_cut(rows, sorted(cuts))))
    assert len({row.alert for row in expected}) == len(expected)


def _cut(rows: Sequence[Row], cuts: Sequence[int]) -> list[Row]:
    """As Spark does it: rows of a micro-batch in any order, then timers of the time that earlier ones have reached."""
    watched, reached = watching(), 0
    found: list[Row] = []
    for first, last in zip([0, *cuts], [*cuts, 61], strict=True):
        part = [row for row in rows if first <= row.height < last]
        if not part:
            continue
        found += watched.test(ALICE, part[::-1])
        found += watched.setWatermark(reached) if reached else []
        reached = max(row.at - 1 for row in part)
    return [*found, *watched.setWatermark(1_000 * SECOND)]


def _plain(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    return [(*tuple(row)[:-1], tuple(row.evidence)) for row in rows]


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("refusals", -1), ("probed", 33), ("reused", 33)])
def test_thresholds_that_make_no_sense_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        Thresholds(**{name: value})


def test_kinds_are_words_that_scripts_rely_on() -> None:
    assert [kind.value for kind in Kind] == [
        "refusals",
        "probing",
        "replays",
        "reused-sequences",
        "silent-broker",
        "equivocation",
    ]
