"""Options as people write them: Kafka's names in any case, one mistake per error, and the nearest right word."""

from __future__ import annotations

import pytest

from parley.spark.errors import BadOption
from parley.spark.options import (
    EARLIEST,
    LATEST,
    Assigned,
    Pattern,
    ReadOptions,
    Start,
    Subscribed,
    read_options,
    table_of,
    table_options,
    write_options,
)

BASE = {"directory": "/net", "subscribe": "demo"}


def read(stream: bool = True, **more: str) -> ReadOptions:
    return read_options({**BASE, **more}, stream=stream)


def test_names_are_the_same_in_upper_and_lower_case() -> None:
    options = read(STARTINGOFFSETS="earliest", MaxOffsetsPerTrigger="7", FAILONDATALOSS="False")
    assert (options.start, options.max_offsets, options.fail_on_data_loss) == (Start(EARLIEST), 7, False)


def test_streams_begin_at_the_end_and_batches_at_the_beginning() -> None:
    assert read(stream=True).start == Start(LATEST)
    assert (read(stream=False).start, read(stream=False).end) == (Start(EARLIEST), Start(LATEST))


def test_topics_are_named_listed_or_matched() -> None:
    assert read(subscribe=" b , a,b").topics == Subscribed(("b", "a"))
    named = {"directory": "/net", "subscribePattern": "ward-.*"}
    assert read_options(named, stream=True).topics == Pattern("ward-.*")
    named = {"directory": "/net", "assign": '{"b": [1, 0], "a": [3]}'}
    assert read_options(named, stream=True).topics == Assigned((("a", (3,)), ("b", (0, 1))))


@pytest.mark.parametrize(
    "options", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}, {"subscribe": "a", "subscribePattern": "a"}]
)
def test_exactly_one_way_to_name_topics_is_given(options: dict[str, str]) -> None:
    with pytest.raises(BadOption, match="exactly one of subscribe, subscribePattern, assign"):
        read_options({"directory": "/net", **options}, stream=True)


def test_offsets_are_words_or_json() -> None:
    offsets = read(startingOffsets='{"demo": {"0": 23, "1": -1, "2": -2}}').start.offsets
    assert offsets == {"demo": {0: 23, 1: LATEST, 2: EARLIEST}}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "newest"),
        ("startingOffsets", '{"demo": {"0": -3}}'),
        ("startingOffsets", '{"demo": {"x": 1}}'),
        ("startingOffsets", '{"demo": 1}'),
        ("startingOffsets", '{"demo": {"0": true}}'),
        ("assign", '{"demo": 0}'),
        ("assign", '{"demo": []}'),
        ("assign", '{"demo": [-1]}'),
        ("assign", "[" * 100_000),
        ("subscribePattern", "("),
        ("subscribe", " , "),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "1.5"),
        ("minPartitions", "-1"),
        ("failOnDataLoss", "yes"),
        ("where", 'ward = "er'),
        ("where", 'ward < "er"'),
        ("verify", "never"),
        ("timeout", "0"),
        ("timeout", "99999"),
        ("endingOffsets", "latest"),  # of a stream
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_option(option: str, value: str) -> None:
    base = {"directory": "/net"} if option in {"assign", "subscribePattern"} else BASE
    with pytest.raises(BadOption, match=option):
        read_options({**base, option: value}, stream=True)


@pytest.mark.parametrize(
    ("option", "value"),
    [("startingOffsets", "latest"), ("endingOffsets", "earliest"), ("endingOffsets", '{"demo": {"0": -2}}')],
)
def test_a_batch_that_would_read_nothing_is_an_error(option: str, value: str) -> None:
    with pytest.raises(BadOption, match="nothing would be read"):
        read(stream=False, **{option: value})


def test_two_beginnings_are_one_too_many() -> None:
    with pytest.raises(BadOption, match="contradict"):
        read(startingOffsets="earliest", startingTimestamp="1700000000000")


def test_an_unknown_option_is_answered_with_the_nearest_right_one() -> None:
    with pytest.raises(BadOption, match="did you mean 'startingOffsets'"):
        read(startingOffset="earliest")
    with pytest.raises(BadOption, match="did you mean 'topic'"):
        write_options({"directory": "/net", "topics": "demo"})
    with pytest.raises(BadOption, match="did you mean 'blocks'"):
        table_options({"directory": "/net", "table": "block"})


@pytest.mark.parametrize("value", ["aa" * 32, '{"key": "x"}', "-----BEGIN PRIVATE KEY-----", "line\nline"])
def test_what_looks_like_a_key_is_not_taken_and_not_repeated(value: str) -> None:
    with pytest.raises(BadOption, match="Give the path") as caught:
        read(identity=value)
    assert value not in str(caught.value)


def test_options_that_spark_adds_are_no_mistake() -> None:
    assert read(path="/x", checkpointLocation="/y").topics == Subscribed(("demo",))


def test_a_table_is_asked_for_by_its_option() -> None:
    assert table_of({"TABLE": "blocks"}) == "blocks"
    assert table_of(BASE) is None


def test_where_is_kept_in_its_canonical_form() -> None:
    assert read(where='ward = "er" && bed != 3').where == read(where='bed != 3 and ward == "er"').where
