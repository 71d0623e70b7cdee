"""The sink: what a row may be, and that every row is published once, whatever is repeated, lost or refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.client.stage import Stage, on_stage
from tests.node.network import LocalNetwork
from tests.spark.sinks import add_partitions, create_topic, held, options, rows, texts, topic_options

from parley.client.compose import partition_of
from parley.client.errors import LimitExceeded
from parley.model.batches import decode_message_header
from parley.modules.staging.tables import STAGES
from parley.net.messages import Answer, Prove, Question
from parley.spark.errors import (
    BadIdentity,
    BadOption,
    BadRow,
    NotAllowed,
    StageFailed,
    TopicGone,
    Unreachable,
)
from parley.spark.gateway import gateway
from parley.spark.options import Network, WriteOptions, write_options
from parley.spark.repeating import Plan, RowSum, plan_of, rows_digest
from parley.spark.rows import Faulty, Publication, Rows
from parley.spark.sink import (
    BatchWriter,
    StreamWriter,
    _Commit,
    batch_writer,
    query_run,
    stage_of,
    stream_writer,
)
from parley.spark.writing import TaskMessage, TopicPart, limit_text, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NETWORK = {"directory": "/nowhere"}
LARGE = "x" * (1024 * 1024)


# -- rows --------------------------------------------------------------------------------------------------------------


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


TEXT, BINARY = StringType(), BinaryType()
VALUE = schema(value=TEXT)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (schema(key=TEXT), "'value' is missing"),
        (schema(value=IntegerType()), "'value' is of type int; it must be string or binary"),
        (schema(value=TEXT, kye=TEXT), "no column 'kye'.*Did you mean 'key'"),
        (schema(value=TEXT, timestamp=TimestampType()), "no column 'timestamp'"),
        (schema(value=TEXT, partition=TEXT), "'partition' is of type string; it must be int"),
        (schema(value=TEXT, topic=IntegerType()), "'topic' is of type int"),
        (schema(value=TEXT, tags=MapType(TEXT, DoubleType())), "'tags' is of type map<string,double>"),
        (schema(value=TEXT, tags=ArrayType(TEXT)), "'tags' is of type"),
        (schema(value=TEXT, tags=schema(bed=DoubleType())), "'tags' is of type"),
        (schema(value=TEXT, headers=MapType(TEXT, BINARY)), "'headers' is of type"),
        (schema(value=TEXT, headers=ArrayType(schema(name=TEXT, value=BINARY))), "'headers' is of type"),
        (schema(value=TEXT, rule=BINARY), "'rule' is of type binary"),
        (StructType([*VALUE.fields, *VALUE.fields]), "twice"),
    ],
)
def test_columns_that_no_publication_has_are_refused_at_once(columns: StructType, problem: str) -> None:
    with pytest.raises(BadRow, match=problem):
        stream_writer(columns, {**NETWORK, "topic": "notes"})
    with pytest.raises(BadRow, match=problem):
        batch_writer(columns, {**NETWORK, "topic": "notes"}, overwrite=False)


def test_a_place_to_publish_must_be_named() -> None:
    with pytest.raises(BadRow, match="option `topic`, or a column 'topic'"):
        stream_writer(VALUE, NETWORK)
    stream_writer(schema(value=TEXT, topic=TEXT), NETWORK)


def test_what_the_source_gives_can_be_published_again() -> None:
    headers, tags = ArrayType(schema(key=TEXT, value=BINARY)), MapType(TEXT, TEXT)
    stream_writer(
        schema(
            key=BINARY,
            value=BINARY,
            topic=TEXT,
            partition=IntegerType(),
            headers=headers,
            tags=tags,
            rule=TEXT,
        ),
        NETWORK,
    )


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"topc": "notes"}, "did you mean 'topic'"),
        ({"topic": "not a topic"}, "cannot be the name of a topic"),
        ({"topic": "notes", "rule": "role =="}, "Option rule"),
        ({"topic": "notes", "batchSize": "0"}, "batchSize"),
        ({"topic": "notes", "batchBytes": "99999999"}, "batchBytes is at most"),
        ({"topic": "notes", "stageBlocks": "1000000"}, "stageBlocks is at most"),
        ({"topic": "notes", "runId": "today"}, "runId is for df.write"),
        ({"topic": "notes", "identity": '{"secret": 1}'}, "looks like the contents of a file"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(more: dict[str, str], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        stream_writer(VALUE, {**NETWORK, **more})


def test_a_write_names_its_network(tmp_path: Path) -> None:
    """Spark writes to a table without the options it was made with, and the current context may be another network."""
    columns = schema(value=TEXT, topic=TEXT)
    with pytest.raises(BadOption, match=r"No option is given.*CREATE TEMPORARY VIEW"):
        batch_writer(columns, {}, overwrite=False)
    sparks = {"path": "/warehouse/t", "checkpointLocation": str(tmp_path), "queryName": "ours"}
    with pytest.raises(BadOption, match="No option is given"):
        stream_writer(columns, sparks)
    stream_writer(columns, sparks | NETWORK)


def test_nothing_can_be_overwritten() -> None:
    with pytest.raises(BadOption, match="append"):
        batch_writer(VALUE, {**NETWORK, "topic": "notes"}, overwrite=True)


def made(*found: Publication | Faulty) -> list[Publication]:
    assert all(isinstance(one, Publication) for one in found)
    return [one for one in found if isinstance(one, Publication)]


def test_a_row_becomes_the_message_that_its_columns_say() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None]),
            "value": pa.array(["grün", ""], pa.large_string()),
            "partition": pa.array([3, None], pa.int32()),
            "tags": pa.array([[("ward", "er"), ("bed", None)], None], pa.map_(pa.string(), pa.string())),
            "headers": pa.array([[{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}], []]),
            "rule": pa.array(['role=="nurse"', None]),
        }
    )
    first, second = made(*Rows("notes", 'role == "clerk"').of(batch))
    header = decode_message_header(first.message.header)
    assert (first.topic, first.partition, first.key) == ("notes", 3, b"k")
    assert (first.message.payload.decode(), first.message.rule) == ("grün", 'role == "nurse"')
    assert (header.key, header.tags) == (b"k", (("ward", "er"),))
    assert header.headers == (("a", b"1"), ("a", b"2"))
    assert (second.partition, second.key, second.message.payload) == (None, None, b"")
    assert second.message.rule == 'role == "clerk"'
    assert first.message.salt != second.message.salt


def test_tags_may_be_a_struct_of_different_types() -> None:
    tags = pa.array([{"urgent": True, "bed": 7, "ward": "er", "none": None}])
    (found,) = made(*Rows("notes").of(pa.RecordBatch.from_pydict({"value": [b"x"], "tags": tags})))
    pairs = decode_message_header(found.message.header).tags
    assert pairs == (("bed", 7), ("urgent", True), ("ward", "er"))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": pa.array([None], pa.string())}, "its value is null"),
        ({"value": [LARGE]}, r"it takes \d+ bytes, and at most \d+ fit into a batch"),
        ({"value": ["x"], "key": ["k" * 5_000]}, "message header"),
        ({"value": ["x"], "topic": [None]}, "its topic is null"),
        ({"value": ["x"], "topic": ["not a topic"]}, "cannot be the name of a topic"),
        ({"value": ["x"], "topic": [LARGE]}, "cannot be the name of a topic"),
        ({"value": ["x"], "rule": ["role =="]}, "the rule 'role ==' cannot be read"),
        ({"value": ["x"], "tags": [{"no way": "x"}]}, "'no way' cannot be the name of a tag"),
        ({"value": ["x"], "tags": [{"and": "x"}]}, "'and' cannot be the name of a tag"),
        ({"value": ["x"], "tags": [{"Not": 1}]}, "'Not' cannot be the name of a tag"),
        ({"value": ["x"], "headers": [[{"key": None, "value": b"x"}]]}, "a header has no name"),
    ],
)
def test_a_row_that_cannot_be_published_is_told_apart(columns: dict[str, object], problem: str) -> None:
    topic = "" if "topic" in columns else "notes"
    (found,) = Rows(topic).of(pa.RecordBatch.from_pydict(columns))
    assert isinstance(found, Faulty)
    with pytest.raises(BadRow, match=problem) as error:
        raise found.error()
    assert "deadLetterTopic" in str(error.value)
    letter = json.loads(found.letter("letters").message.payload)
    assert letter["reason"] == found.reason


@pytest.mark.parametrize("name", ["topic", "rule", "tags", "headers"])
def test_text_that_is_no_text_spoils_its_own_row_only(name: str) -> None:
    """A cast from binary makes such strings, and Spark hands them on."""
    texts = pa.array([b"notes", b"\xff\xfe"]).view(pa.string())
    ends = pa.array([0, 1, 2], pa.int32())
    held = {
        "topic": texts,
        "rule": pa.array([b"", b"\xff"]).view(pa.string()),
        "tags": pa.MapArray.from_arrays(ends, pa.array(["a", "a"]), texts),
        "headers": pa.ListArray.from_arrays(
            ends, pa.StructArray.from_arrays([texts, pa.array([b"1", b"2"])], ["key", "value"])
        ),
    }
    batch = pa.RecordBatch.from_pydict({"value": ["fine", "broken"], name: held[name]})
    fine, broken = Rows("" if name == "topic" else "notes").of(batch)
    (found,) = made(fine)
    assert found.message.payload == b"fine"
    assert isinstance(broken, Faulty)
    assert broken.reason == "a text in it is not UTF-8"


def test_an_error_names_the_row_by_its_key_and_size() -> None:
    (found,) = Rows("notes").of(rows(LARGE, key=["patient-7"]))
    assert isinstance(found, Faulty)
    assert "The row for topic notes with key 'patient-7' cannot be published: it takes 10" in str(
        found.error()
    )


# -- what executors and driver do, without Spark -------------------------------------------------------------------------


def attempt(
    chosen: WriteOptions, run: str, batch: int, *values: str, task: int = 0, **columns: list[object]
) -> TaskMessage:
    """One task of one attempt at a batch; what it tells the driver travels as Spark would carry it."""
    made = write_rows(chosen, run, stage_of(batch), task, [rows(*values, **columns)])
    carried = loads(dumps(made))  # type: ignore[no-untyped-call]
    assert isinstance(carried, TaskMessage)
    return carried


def test_a_batch_is_published_when_it_is_committed_and_not_before(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/plain", partitions=3)
    chosen = topic_options(network, topic, batchSize="2")
    writer = loads(dumps(StreamWriter(chosen)))  # type: ignore[no-untyped-call]
    keys = [f"key-{number}" for number in range(7)]
    message = attempt(chosen, "q", 0, *(f"value of {key}" for key in keys), key=list(keys))
    other = attempt(chosen, "q", 0, "alone", task=1)
    assert texts(network, topic) == []
    writer.commit([other, message, None], 0)
    found = held(network, topic)
    assert sorted(one.text for one in found) == sorted(["alone", *(f"value of {key}" for key in keys)])
    for one in found:
        if one.key is not None:
            assert one.partition == partition_of(one.key, 3)
            assert one.text == f"value of {one.key.decode()}"
    assert sum(part.rows.count for one in (message, other) for part in one.parts) == 8


def test_the_partition_of_a_row_is_its_column_or_one_after_the_other(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/partitions", partitions=4)
    chosen = topic_options(network, topic, batchSize="1")
    placed = attempt(chosen, "q", 0, "a", "b", "c", key=["k", None, "k"], partition=[3, 1, 0])
    StreamWriter(chosen).commit([placed], 0)
    assert {(one.text, one.partition) for one in held(network, topic)} == {("a", 3), ("b", 1), ("c", 0)}
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, *"wxyz")], 1)
    later = [one.partition for one in held(network, topic) if one.text in "wxyz"]
    assert sorted(later) == [0, 1, 2, 3]
    with pytest.raises(BadRow, match="no partition 4: sink/partitions has partitions 0 to 3"):
        attempt(chosen, "q", 2, "far", partition=[4])


def test_a_repeated_batch_publishes_nothing(network: LocalNetwork) -> None:
    """Spark died between the commit on the ledger and its own note of it."""
    topic = create_topic(network, "sink/repeated")
    chosen = topic_options(network, topic)
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "first", "other")], 0)
    again = attempt(chosen, "q", 0, "other"), attempt(chosen, "q", 0, "first", task=1)
    assert [(part.over, part.digests) for one in again for part in one.parts] == [(True, ())] * 2
    StreamWriter(chosen).commit([*again], 0)
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, "next")], 1)
    assert texts(network, topic) == ["first", "next", "other"]


def checkpoint(folder: Path, query: str, *batches: str) -> str:
    """As Spark writes it, as far as the sink reads it."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    for number, offsets in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(offsets)
    return str(folder)


@pytest.mark.parametrize("staged_first", [False, True])
def test_other_rows_under_the_number_of_a_committed_batch_are_an_error(
    network: LocalNetwork, caplog: pytest.LogCaptureFixture, *, staged_first: bool
) -> None:
    """A checkpoint that is one batch old plans other rows, which were lost without a word."""
    topic = create_topic(network, f"sink/other-rows-{staged_first}")
    chosen = topic_options(network, topic)
    early = attempt(chosen, "q", 0, "second")  # also one that staged before the other committed
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "first")], 0)
    other = early if staged_first else attempt(chosen, "q", 0, "second")
    with pytest.raises(StageFailed, match=r"Batch 0 of this query.*with other rows.*onRepeat=keepFirst"):
        StreamWriter(chosen).commit([other], 0)
    keeping = topic_options(network, topic, onRepeat="keepFirst")
    with caplog.at_level("WARNING", logger="parley.spark"):
        StreamWriter(keeping).commit([other], 0)
    assert "keepFirst drops rows. Batch 0 of this query was committed" in caplog.text
    assert "set the option" not in caplog.text
    StreamWriter(keeping).commit([attempt(keeping, "q", 1, "next")], 1)
    assert texts(network, topic) == ["first", "next"]
    with pytest.raises(StageFailed, match="committed up to batch 1"):  # older still: not even with the option
        StreamWriter(keeping).commit([attempt(keeping, "q", 0, "third")], 0)


def test_other_rows_of_the_same_plan_are_a_repetition_and_the_same_rows_of_another_are_not(
    network: LocalNetwork, tmp_path: Path
) -> None:
    topic, run = create_topic(network, "sink/planned"), query_run("id")
    folder = checkpoint(tmp_path / "mine", "id", "offsets 0")
    chosen = topic_options(network, topic, checkpointLocation=folder)
    StreamWriter(chosen).commit([attempt(chosen, run, 0, "first")], 0)
    StreamWriter(chosen).commit([attempt(chosen, run, 0, "drawn anew")], 0)
    checkpoint(tmp_path / "mine", "id", "other offsets 0")
    with pytest.raises(StageFailed, match=r"Batch 0 of this query.*from other offsets.*onRepeat=keepFirst"):
        StreamWriter(chosen).commit([attempt(chosen, run, 0, "first")], 0)
    keeping = topic_options(network, topic, checkpointLocation=folder, onRepeat="keepfirst")
    StreamWriter(keeping).commit([attempt(keeping, run, 0, "first")], 0)
    assert texts(network, topic) == ["first"]


def test_where_one_attempt_cannot_read_the_plan_the_rows_decide(
    network: LocalNetwork, tmp_path: Path
) -> None:
    topic, run = create_topic(network, "sink/two-ways"), query_run("id")
    folder = checkpoint(tmp_path / "mine", "id", "offsets 0", "offsets 1")
    of_another = checkpoint(tmp_path / "another", "another id", "offsets 0", "offsets 1")
    reading = topic_options(network, topic, checkpointLocation=f"file://{folder}")
    blind = [
        topic_options(network, topic),
        topic_options(network, topic, checkpointLocation="s3a://bucket/checkpoint"),
        topic_options(network, topic, checkpointLocation=of_another),
    ]
    for batch, (first, second) in enumerate([(reading, blind), (blind[0], [reading])]):
        StreamWriter(first).commit([attempt(first, run, batch, f"row {batch}")], batch)
        for chosen in second:
            StreamWriter(chosen).commit([attempt(chosen, run, batch, f"row {batch}")], batch)
            with pytest.raises(StageFailed, match=r"with other rows.*checkpointLocation as an option"):
                StreamWriter(chosen).commit([attempt(chosen, run, batch, "another row")], batch)
    assert texts(network, topic) == ["row 0", "row 1"]


def test_a_topic_that_is_no_repetition_keeps_all_others_of_the_batch_back(network: LocalNetwork) -> None:
    one, two = create_topic(network, "sink/first-of-two"), create_topic(network, "sink/second-of-two")
    chosen = write_options(options(network))
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "a", topic=[two])], 0)
    with pytest.raises(StageFailed, match="with other rows for sink/second-of-two") as error:
        StreamWriter(chosen).commit([attempt(chosen, "q", 0, "b", "c", topic=[one, two])], 0)
    assert "Committed before that" not in str(error.value)
    assert (texts(network, one), texts(network, two)) == ([], ["a"])


@pytest.mark.parametrize("staged_first", [False, True])
def test_rows_that_go_to_other_topics_when_they_are_repeated_are_neither_lost_nor_doubled(
    network: LocalNetwork, tmp_path: Path, *, staged_first: bool
) -> None:
    """An upstream that routes by chance: the plan is the same, and the rows of each topic are not."""
    one = create_topic(network, f"sink/routed-one-{staged_first}")
    two = create_topic(network, f"sink/routed-two-{staged_first}")
    folder, run = checkpoint(tmp_path / "mine", "id", "offsets 0"), query_run("id")
    chosen = write_options(options(network, checkpointLocation=folder))
    early = attempt(chosen, run, 0, "a", "b", topic=[two, one])
    first = attempt(chosen, run, 0, "a", "b", topic=[one, two])
    StreamWriter(chosen).commit([TaskMessage(0, run, first.parts[:1])], 0)  # and then the driver was killed
    again = early if staged_first else attempt(chosen, run, 0, "a", "b", topic=[two, one])
    with pytest.raises(StageFailed, match=r"Batch 0.*with other rows.*onRepeat=keepFirst"):
        StreamWriter(chosen).commit([again], 0)
    assert (texts(network, one), texts(network, two)) == (["a"], [])


@pytest.mark.parametrize("staged_first", [False, True])
def test_rows_that_are_dropped_because_the_first_ones_are_kept_are_told_of_in_the_log(
    network: LocalNetwork, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, staged_first: bool
) -> None:
    """Also if the plan is equal: the row that was to go to the first topic now is lost, the other is there twice."""
    one = create_topic(network, f"sink/kept-one-{staged_first}")
    two = create_topic(network, f"sink/kept-two-{staged_first}")
    folder, run = checkpoint(tmp_path / "mine", "id", "offsets 0"), query_run("id")
    chosen = write_options(options(network, checkpointLocation=folder, onRepeat="keepFirst"))
    early = attempt(chosen, run, 0, "a", "b", topic=[two, one])
    first = attempt(chosen, run, 0, "a", "b", topic=[one, two])
    with caplog.at_level("WARNING", logger="parley.spark"):
        StreamWriter(chosen).commit(
            [TaskMessage(0, run, first.parts[:1])], 0
        )  # and then the driver was killed
        assert caplog.text == ""
        again = early if staged_first else attempt(chosen, run, 0, "a", "b", topic=[two, one])
        StreamWriter(chosen).commit([again], 0)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert f"keepFirst drops rows. Batch 0 of this query was committed for {one} and" in told[0]
        assert "set the option" not in told[0]
        StreamWriter(chosen).commit(
            [attempt(chosen, run, 0, "a", topic=[one])], 0
        )  # the same rows: no reason to warn
        assert len(caplog.records) == 1
    assert (texts(network, one), texts(network, two)) == (["a"], ["a"])


def test_a_row_that_was_a_letter_at_first_is_not_lost(network: LocalNetwork, tmp_path: Path) -> None:
    topic, letters = create_topic(network, "sink/drawn"), create_topic(network, "sink/written-off")
    folder, run = checkpoint(tmp_path / "mine", "id", "offsets 0"), query_run("id")
    chosen = topic_options(network, topic, checkpointLocation=folder, deadLetterTopic=letters)
    first = attempt(chosen, run, 0, "fine", "b", key=["a", "b"], partition=[0, 99])
    StreamWriter(chosen).commit([TaskMessage(0, run, first.parts[:1])], 0)  # and then the driver was killed
    assert (texts(network, topic), texts(network, letters)) == (["fine"], [])
    drawn_anew = attempt(chosen, run, 0, "fine", "b", key=["a", "b"], partition=[0, 0])
    with pytest.raises(StageFailed, match="with other rows"):
        StreamWriter(chosen).commit([drawn_anew], 0)


@pytest.mark.parametrize("planned", [True, False])
def test_a_row_whose_letter_was_published_is_not_published_as_well(
    network: LocalNetwork, tmp_path: Path, *, planned: bool
) -> None:
    topic, letters = create_topic(network, f"sink/z-{planned}"), create_topic(network, f"sink/a-{planned}")
    folder, run = checkpoint(tmp_path / "mine", "id", "offsets 0"), query_run("id")
    more = {"checkpointLocation": folder} if planned else {}
    chosen = topic_options(network, topic, deadLetterTopic=letters, **more)
    first = attempt(chosen, run, 0, "b", key=["b"], partition=[99])
    StreamWriter(chosen).commit([first], 0)
    with pytest.raises(StageFailed, match=f"(committed for|other rows for) {letters}"):
        StreamWriter(chosen).commit([attempt(chosen, run, 0, "b", key=["b"], partition=[0])], 0)
    assert (texts(network, topic), len(texts(network, letters))) == ([], 1)


def test_a_row_whose_letter_was_published_is_not_published_by_a_second_run_of_the_job(
    network: LocalNetwork,
) -> None:
    topic, letters = create_topic(network, "sink/z-job"), create_topic(network, "sink/a-job")
    chosen = topic_options(network, topic, deadLetterTopic=letters, runId="nightly")
    run = "run nightly"
    BatchWriter(chosen).commit([attempt(chosen, run, 0, "b", key=["b"], partition=[99])])
    with pytest.raises(StageFailed, match=f"other rows for {letters}"):
        BatchWriter(chosen).commit([attempt(chosen, run, 0, "b", key=["b"], partition=[0])])
    assert (texts(network, topic), len(texts(network, letters))) == ([], 1)


def test_a_repetition_is_known_also_if_a_letter_names_a_partition_of_a_topic_that_has_grown(
    network: LocalNetwork,
) -> None:
    topic, letters = create_topic(network, "sink/grown"), create_topic(network, "sink/letters-of-grown")
    chosen = topic_options(network, topic, deadLetterTopic=letters)

    def whole() -> TaskMessage:
        return attempt(chosen, "q", 0, "fine", "far", key=["a", "b"], partition=[0, 99])

    StreamWriter(chosen).commit([whole()], 0)
    add_partitions(network, topic, 3)
    StreamWriter(chosen).commit([whole()], 0)
    assert len(texts(network, letters)) == 1


def test_an_old_checkpoint_is_refused_also_if_its_first_batches_have_no_rows(
    network: LocalNetwork, tmp_path: Path
) -> None:
    """It is run again with a lower maxOffsetsPerTrigger, and a filter leaves nothing of its first pieces."""
    topic, run = create_topic(network, "sink/empty"), query_run("id")
    folder = checkpoint(tmp_path / "mine", "id", "offsets 0", "offsets 1")
    chosen = topic_options(network, topic, checkpointLocation=folder)
    StreamWriter(chosen).commit([attempt(chosen, run, 0, "a")], 0)
    StreamWriter(chosen).commit([attempt(chosen, run, 1, "b", "c")], 1)
    nothing = TaskMessage(0, run, ())
    StreamWriter(chosen).commit([nothing], 1)  # a filter by chance: the plan says that it is a repetition
    checkpoint(tmp_path / "mine", "id", "offsets 0", "other offsets 1", "other offsets 2")
    for batch, problem in ((0, "committed up to batch 1"), (1, "from other offsets")):
        with pytest.raises(StageFailed, match=problem):
            StreamWriter(chosen).commit([nothing], batch)
    StreamWriter(chosen).commit([nothing], 2)
    assert texts(network, topic) == ["a", "b", "c"]


def test_an_old_checkpoint_that_cannot_be_read_is_refused_also_if_its_first_batches_have_no_rows(
    network: LocalNetwork,
) -> None:
    """Without the plan its rows decide, and none are others than those that were committed."""
    topic = create_topic(network, "sink/empty-unplanned")
    chosen, nothing = topic_options(network, topic), TaskMessage(0, "q", ())
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "a")], 0)
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, "b")], 1)
    for batch, problem in ((0, "committed up to batch 1"), (1, "with other rows")):
        with pytest.raises(StageFailed, match=problem):
            StreamWriter(chosen).commit([nothing], batch)
    StreamWriter(chosen).commit([nothing], 2)
    StreamWriter(chosen).commit([], 1)  # Spark ran no task: nobody says which query it was
    assert texts(network, topic) == ["a", "b"]


def test_equal_rows_of_two_stages_look_different_on_the_ledger(network: LocalNetwork) -> None:
    """As equal messages do, which are salted for this."""
    topic, other = create_topic(network, "sink/said"), create_topic(network, "sink/said-elsewhere")
    found = set()
    for name, batch in ((topic, 0), (topic, 1), (other, 0)):
        chosen = topic_options(network, name)
        StreamWriter(chosen).commit([attempt(chosen, "q", batch, "alarm")], batch)
        source = gateway(chosen.network)
        record = source.run(source.client.stage_record(name, source.client.writer(name, "q")))
        assert record is not None
        found.add(record.source.rows)
    assert len(found) == 3


@on_stage
async def test_a_broker_that_is_a_little_behind_makes_no_error_of_a_repetition(stage: Stage) -> None:
    """It shows a header that is still fresh; a driver that was just started knows of no later height."""
    alice = stage.registered("alice")
    async with stage.client(alice) as client, stage.client(alice) as restarted:
        writer, rows = client.writer("notes", "query"), RowSum()
        before = stage.ledger.proven(STAGES.key("notes", stage.ledger.topic_id("notes"), alice.key, writer))
        source = client.stage_source(writer, 1, rows=rows_digest([rows]))
        await client.commit_stage("notes", writer, 1, (), source)
        behind = iter([before])

        def shown(question: Question, answer: Answer) -> Answer:
            earlier = next(behind, None) if isinstance(question, Prove) else None
            return answer if earlier is None else replace(earlier, id=question.id)

        for broker in stage.brokers:
            broker.lie = shown
        over = TopicPart("notes", writer, 1, (), rows, over=True)
        await _Commit(restarted, WriteOptions(Network(), "notes"), [over], None).commit()
        assert next(behind, None) is None


def row_sum(*batches: pa.RecordBatch, rule: str = "", key: bytes = b"k" * 32) -> bytes:
    """Of the rows of some tasks."""
    sums = []
    for batch in batches:
        sums.append(RowSum())
        for row in made(*Rows("notes", rule).of(batch)):
            sums[-1].add(row, key)
    return rows_digest(sums)


def test_the_digest_of_rows_depends_on_all_that_is_published_and_not_on_order_tasks_and_salts() -> None:
    tagged: dict[str, list[object]] = {
        "tags": [{"a": 1}, {"a": 2}],
        "key": ["k", None],
        "partition": [None, 1],
    }
    there = row_sum(rows("x", "y", **tagged))

    def changed(**more: list[object]) -> bytes:
        return row_sum(rows("x", "y", **(tagged | more)))

    back = {name: column[::-1] for name, column in tagged.items()}
    assert there == row_sum(rows("y", "x", **back))
    assert row_sum(rows("x", "y", "x")) == row_sum(rows("x"), rows("x", "y")) == row_sum(rows("x", "x", "y"))
    different = [
        there,
        row_sum(),
        row_sum(rows("x", "y")),
        row_sum(rows("x")),
        row_sum(rows("x", "x")),
        row_sum(rows("y", "y")),  # pairs cancel each other where hashes are combined by XOR
        row_sum(rows("x", "x", "y")),
        changed(tags=[{"a": 1}, {"a": 3}]),
        changed(tags=[{"a": "1"}, {"a": "2"}]),
        changed(key=["l", None]),
        changed(partition=[None, 0]),
        changed(partition=[0, 1]),
        row_sum(rows("x", "y", **tagged), rule='role == "nurse"'),
    ]
    assert len(set(different)) == len(different)


def test_equal_rows_have_another_digest_under_another_key() -> None:
    """A sum of hashes that everybody can compute can be forged: many rows are found that have the sum of others."""
    mine, other = b"k" * 32, b"l" * 32
    assert row_sum(rows("x", "y"), key=mine) != row_sum(rows("x", "y"), key=other)
    alone, without = (
        [int.from_bytes(row_sum(one, key=key)[8:], "big") for key in (mine, other)]
        for one in (rows("x"), rows())
    )
    assert alone[0] != alone[1]
    assert without == [0, 0]  # the key is in the hash of each row, not added to their sum


def test_tasks_count_rows_under_the_key_of_their_stage_and_do_not_tell_it(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/keyed")
    chosen = topic_options(network, topic)
    client = gateway(chosen.network).client
    writer = client.writer(topic, "q")
    sums = set()
    for batch in (0, 1):
        message, again = attempt(chosen, "q", batch, "a", "b"), attempt(chosen, "q", batch, "b", "a")
        key = client.stage_row_key(writer, stage_of(batch))
        digests = {rows_digest(part.rows for part in one.parts) for one in (message, again)}
        assert digests == {row_sum(rows("a", "b"), key=key)}
        assert key not in dumps(message)  # type: ignore[no-untyped-call]
        sums |= digests
    assert len(sums) == 2


def test_a_plan_is_read_from_local_folders_only(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "a", "id", "offsets 0", "offsets 1")
    plans = [plan_of(folder, batch) for batch in (0, 1)]
    assert plans[0] == plan_of(f"file:{folder}", 0) == plan_of(f"FILE://{folder}", 0)
    assert plans[0] == Plan("id", hashlib.sha256(b"offsets 0").digest())
    assert plans[1] is not None
    assert plans[1] != plans[0]
    # Spark takes `..` off before the file system sees it, so a symbolic link leads nowhere else.
    (tmp_path / "elsewhere" / "of").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "of")
    checkpoint(tmp_path / "elsewhere" / "a", "another id", "other offsets 0")
    assert plans[0] == plan_of(f"{tmp_path}/link/../a", 0) == plan_of(f"file://{tmp_path}/link/../a", 0)
    (tmp_path / "a" / "metadata").write_text("[]")
    missing = [(folder, 0), (str(tmp_path), 0), (f"hdfs://host{folder}", 1), ("s3a://bucket/a", 1), (None, 0)]
    assert [plan_of(*one) for one in missing] == [None] * len(missing)


def test_one_key_of_a_batch_goes_to_one_partition_even_if_the_topic_grows_meanwhile(
    network: LocalNetwork,
) -> None:
    topic = create_topic(network, "sink/growing", partitions=2)
    chosen, keys = topic_options(network, topic), [f"key {number}" for number in range(20)]
    early = attempt(chosen, "q", 0, *keys, key=list(keys))
    add_partitions(network, topic, 3)
    late = attempt(chosen, "q", 0, *keys, task=1, key=list(keys))
    with pytest.raises(StageFailed, match="tasks found 2 and 3"):
        StreamWriter(chosen).commit([early, late], 0)
    assert texts(network, topic) == []
    again = attempt(chosen, "q", 0, *keys, key=list(keys))
    unkeyed = attempt(chosen, "q", 0, "any", task=1, partition=[2])
    StreamWriter(chosen).commit([again, unkeyed, late], 0)
    for one in held(network, topic):
        assert one.key is None or one.partition == partition_of(one.key, 3)


def test_repetitions_are_asked_for_by_other_words_in_vain() -> None:
    for word, keeps in (("fail", False), (" KEEPFIRST ", True)):
        assert write_options({**NETWORK, "onRepeat": word}).keep_first is keeps
    with pytest.raises(BadOption, match="onRepeat is fail or keepFirst, not 'ignore'"):
        write_options({**NETWORK, "onRepeat": "ignore"})


def test_a_query_of_another_name_is_another_writer(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/writers")
    chosen = topic_options(network, topic)
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "first")], 0)
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, "next")], 1)
    assert texts(network, topic) == ["first", "next"]
    StreamWriter(chosen).commit([attempt(chosen, "another query", 0, "its own")], 0)
    assert texts(network, topic) == ["first", "its own", "next"]


def test_what_an_attempt_staged_and_never_committed_is_never_seen(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/abandoned")
    chosen = topic_options(network, topic)
    lost = attempt(chosen, "q", 0, "lost")
    speculative = attempt(chosen, "q", 0, "slow")
    kept = attempt(chosen, "q", 0, "kept")
    StreamWriter(chosen).abort([lost], 0)
    StreamWriter(chosen).commit([kept], 0)
    assert texts(network, topic) == ["kept"]
    with pytest.raises(StageFailed, match="with other rows"):  # of a driver that does not know it is dead
        StreamWriter(chosen).commit([speculative], 0)
    assert texts(network, topic) == ["kept"]


def test_a_query_that_was_overtaken_by_another_run_of_itself_stops(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/overtaken")
    chosen = topic_options(network, topic)
    slow = attempt(chosen, "q", 0, "slow")
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, "fast")], 1)
    with pytest.raises(StageFailed, match="must not share a checkpoint"):
        StreamWriter(chosen).commit([slow], 0)
    with pytest.raises(StageFailed, match="another batch than 7"):
        StreamWriter(chosen).commit([slow], 7)
    # Tasks that find their stage over stage nothing; but rows of an old checkpoint must not be lost without a word.
    old = attempt(chosen, "q", 0, "from an old checkpoint", LARGE)
    assert [(part.over, part.digests) for part in old.parts] == [(True, ())]
    with pytest.raises(StageFailed, match="restored from an older copy"):
        StreamWriter(chosen).commit([old], 0)
    assert texts(network, topic) == ["fast"]


def test_a_task_without_rows_asks_nobody() -> None:
    chosen = write_options({**NETWORK, "topic": "notes"})
    empty = rows().slice(0, 0)
    assert write_rows(chosen, "q", 1, 3, [empty, empty]) == TaskMessage(3, "q", ())


def test_several_topics_are_committed_each_for_itself_and_the_rest_on_repetition(
    network: LocalNetwork,
) -> None:
    one, two = create_topic(network, "sink/one"), create_topic(network, "sink/two")
    chosen = write_options(options(network))
    message = attempt(chosen, "q", 0, "a", "b", "c", topic=[one, two, one])
    assert [part.topic for part in message.parts] == [one, two]
    half = TaskMessage(0, "q", message.parts[:1])
    StreamWriter(chosen).commit([half], 0)  # and then the driver was killed
    again = attempt(chosen, "q", 0, "a", "b", "c", topic=[one, two, one])
    StreamWriter(chosen).commit([again], 0)
    assert (texts(network, one), texts(network, two)) == (["a", "c"], ["b"])


def test_the_option_topic_is_where_all_rows_go_whatever_their_column_says(network: LocalNetwork) -> None:
    one, two = create_topic(network, "sink/named"), create_topic(network, "sink/in-the-column")
    chosen = topic_options(network, one)
    StreamWriter(chosen).commit([attempt(chosen, "q", 0, "a", "b", topic=[two, None])], 0)
    assert (texts(network, one), texts(network, two)) == (["a", "b"], [])


def test_a_letter_is_not_lost_if_the_driver_dies_between_the_topics(network: LocalNetwork) -> None:
    """The repetition finds the rows committed; what was to be said of the others is still to come."""
    topic, letters = create_topic(network, "sink/first"), create_topic(network, "sink/then-letters")
    chosen = topic_options(network, topic, deadLetterTopic=letters)
    whole = attempt(chosen, "q", 0, "fine", LARGE, "far", key=["a", "b", "c"], partition=[0, 0, 99])
    StreamWriter(chosen).commit([TaskMessage(0, "q", whole.parts[:1])], 0)  # and then the driver was killed
    assert (texts(network, topic), texts(network, letters)) == (["fine"], [])
    again = attempt(chosen, "q", 0, "fine", LARGE, "far", key=["a", "b", "c"], partition=[0, 0, 99])
    StreamWriter(chosen).commit([again], 0)
    assert texts(network, topic) == ["fine"]
    assert sorted(json.loads(text)["key"] for text in texts(network, letters)) == ["b", "c"]


def test_rows_that_cannot_be_published_may_be_told_of_in_a_topic(network: LocalNetwork) -> None:
    topic, letters = create_topic(network, "sink/checked"), create_topic(network, "sink/letters")
    with pytest.raises(BadRow, match="key 'b'"):
        attempt(topic_options(network, topic), "strict", 0, "fine", LARGE, key=["a", "b"])
    chosen = topic_options(network, topic, deadLetterTopic=letters)
    message = attempt(chosen, "q", 0, "fine", LARGE, "far", key=["a", "b", "c"], partition=[0, 0, 99])
    StreamWriter(chosen).commit([message], 0)
    assert texts(network, topic) == ["fine"]
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, LARGE, key=["d"], partition=[0])], 1)
    StreamWriter(chosen).commit([attempt(chosen, "q", 1, LARGE, key=["d"], partition=[0])], 1)
    told = [json.loads(text) for text in texts(network, letters)]
    assert sorted((one["topic"], one["key"]) for one in told) == [(topic, "b"), (topic, "c"), (topic, "d")]


def test_what_is_refused_has_its_own_error(network: LocalNetwork, tmp_path: Path) -> None:
    closed = create_topic(network, "sink/closed", publish='role == "surgeon"')
    with pytest.raises(NotAllowed, match='role == "surgeon"'):
        attempt(topic_options(network, closed), "q", 0, "mine")
    with pytest.raises(TopicGone, match="sink/nowhere"):
        attempt(topic_options(network, "sink/nowhere"), "q", 0, "mine")
    with pytest.raises(BadIdentity, match=r"missing identity"):
        attempt(
            topic_options(network, closed, identity=str(tmp_path / "missing identity.json")), "q", 0, "mine"
        )
    dead = LocalNetwork(tmp_path / "dead")
    with pytest.raises(Unreachable):
        attempt(topic_options(dead, "notes", timeout="1"), "q", 0, "mine")
    with pytest.raises(Unreachable):
        StreamWriter(topic_options(dead, "notes", timeout="1")).commit(
            [attempt(topic_options(network, create_topic(network, "sink/lost")), "q", 0, "x")], 0
        )


def test_a_stage_that_has_expired_says_what_to_do(network: LocalNetwork) -> None:
    topic, other = create_topic(network, "sink/expired"), create_topic(network, "sink/other")
    chosen = topic_options(network, topic, stageBlocks="5")
    message = attempt(chosen, "q", 0, "late")
    source = gateway(chosen.network)
    reached = source.client.height + 6
    while source.client.height < reached:  # an idle network makes blocks, too
        source.run(source.client.publish(other, "time passes"))
    with pytest.raises(StageFailed, match=r"Run the query again.*stageBlocks"):
        StreamWriter(chosen).commit([message], 0)
    StreamWriter(chosen).commit([attempt(topic_options(network, topic), "q", 0, "in time")], 0)
    assert texts(network, topic) == ["in time"]


@on_stage
async def test_a_commit_of_too_many_batches_is_told_to_have_larger_ones(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        many = TopicPart("notes", client.writer("notes", "query"), 1, (b"d" * 32,) * 16_385, RowSum())
        with pytest.raises(
            StageFailed, match=r"takes 16384 batches, and 16385 were.*more rows: options batchSize"
        ):
            await _Commit(client, WriteOptions(Network(), "notes"), [many], None).commit()


def test_a_limit_of_what_is_staged_is_told_with_what_helps() -> None:
    """The batch is planned, so fewer offsets for later ones do not help it."""
    chosen = write_options({**NETWORK, "topic": "notes", "stageBlocks": "70"})
    full = LimitExceeded("staged_of_network", limit=9)
    told = limit_text(full, "notes", chosen)
    assert full.detail in told
    assert "Nothing of this stage was published to notes" in told
    assert "stageBlocks heights at the latest (70 in this attempt): run the query again then" in told
    assert "maxOffsetsPerTrigger applies to batches that are not planned yet" in told
    assert "batchSize" not in told


def test_a_batch_that_is_refused_for_itself_is_told_to_be_made_smaller() -> None:
    costly = LimitExceeded("comparisons", limit=9)
    told = limit_text(costly, "notes", write_options({**NETWORK, "topic": "notes", "batchSize": "12"}))
    assert costly.detail in told
    assert "the option batchSize is 12 now" in told
    assert "maxOffsetsPerTrigger" not in told


# -- with Spark ----------------------------------------------------------------------------------------------------------


def frame(spark: SparkSession, *values: str) -> DataFrame:
    return spark.createDataFrame([(value, value.upper()) for value in values], "key string, value string")


def test_a_data_frame_is_published_once_per_run(spark: SparkSession, network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/frame")
    values = [f"row {number}" for number in range(50)]
    write = frame(spark, *values).repartition(3).write.format("parley")
    for _ in range(2):  # a run with a name is one run, however often it is begun
        write.options(**options(network, topic=topic, runId="monday")).mode("append").save()
        assert texts(network, topic) == sorted(value.upper() for value in values)
    other = frame(spark, "other").write.format("parley").mode("append")
    repeated = options(network, topic=topic, runId="monday")
    with pytest.raises(Exception, match=r"\[PARLEY_STAGE\] The run 'monday'.*other rows.*onRepeat=keepFirst"):
        other.options(**repeated).save()
    other.options(**repeated, onRepeat="keepFirst").save()
    assert texts(network, topic) == sorted(value.upper() for value in values)
    without_spark = BatchWriter(topic_options(network, topic)), BatchWriter(topic_options(network, topic))
    for writer in without_spark:  # one without a name is another one each time
        writer.commit([writer.write(iter([rows("again")]))])
    assert texts(network, topic).count("again") == 2


def test_a_task_that_is_tried_again_publishes_once(spark: SparkSession, network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/retried")
    frame(spark, *(f"row {number}" for number in range(40))).repartition(2).mapInArrow(
        fail_at_first, "key string, value string"
    ).write.format("parley").options(**options(network, topic=topic, batchSize="1")).mode("append").save()
    assert texts(network, topic) == sorted(f"ROW {number}" for number in range(40))


def fail_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext  # noqa: PLC0415 - this runs in another process

    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails after its rows were staged")


def test_a_job_that_fails_publishes_nothing_and_leaves_nothing(
    spark: SparkSession, network: LocalNetwork
) -> None:
    topic = create_topic(network, "sink/failed")
    good, bad = frame(spark, *"abc"), frame(spark, "bad").selectExpr("key", "cast(null as string) as value")
    with pytest.raises(Exception, match=r"\[PARLEY_ROW\].*key 'bad'.*its value is null"):
        good.union(bad).write.format("parley").options(**options(network, topic=topic)).mode("append").save()
    with pytest.raises(Exception, match=r"\[PARLEY_OPTION\]"):
        good.write.format("parley").options(**options(network, topic=topic)).mode("overwrite").save()
    assert texts(network, topic) == []


def test_abort_drops_what_was_staged_and_ends_the_run(network: LocalNetwork) -> None:
    topic = create_topic(network, "sink/aborted")
    writer = BatchWriter(topic_options(network, topic))
    message = writer.write(iter([rows("lost")]))
    writer.abort([message, None])
    with pytest.raises(StageFailed, match="dropped"):
        writer.commit([message])
    assert texts(network, topic) == []


class Streaming:
    """A stream of a folder's files into a topic, which may be run again and again.

    Its checkpoint is an option, which the sink sees, or a setting of the session, of which it does not know.
    """

    def __init__(
        self, spark: SparkSession, network: LocalNetwork, topic: str, folder: Path, way: str
    ) -> None:
        self._spark = spark.newSession()
        self._options = options(network, topic=topic)
        self._files, self._way = folder / "in", way
        self._files.mkdir()
        self.checkpoint = folder / "checkpoints" / "ours"
        if way == "setting":
            self._spark.conf.set("spark.sql.streaming.checkpointLocation", str(self.checkpoint.parent))

    def add(self, name: str, *lines: str) -> None:
        (self._files / name).write_text("\n".join(lines))

    def run(self, value: str = "value", **more: str) -> None:
        """All that has come, in an order of chance."""
        query = (
            self._spark.readStream.text(str(self._files))
            .repartition(2)
            .selectExpr("value as key", f"{value} as value")
            .writeStream.format("parley")
            .options(**self._options, **more)
            .queryName("ours")
            .trigger(availableNow=True)
        )
        if self._way == "option":
            query = query.option("checkpointLocation", str(self.checkpoint))
        assert query.start().awaitTermination(120)

    def forget_last(self) -> None:
        """Spark's note of the end of its last batch, and the checksum of that."""
        last = max(int(note.name) for note in self.checkpoint.glob("commits/[0-9]*") if note.name.isdigit())
        for note in self.checkpoint.glob(f"commits/*{last}*"):
            note.unlink()


@pytest.mark.parametrize(
    ("way", "value"),
    # Other bytes each time, by which a repetition would be seen; but then only the plan can show what it is.
    [("option", "concat(value, ' ', cast(rand() as string))"), ("setting", "concat(value, ' once')")],
)
def test_a_stream_whose_last_batch_spark_forgot_publishes_it_once(
    spark: SparkSession, network: LocalNetwork, tmp_path: Path, way: str, value: str
) -> None:
    topic = create_topic(network, f"sink/stream-{way}")
    stream = Streaming(spark, network, topic, tmp_path, way)
    stream.add("1.txt", *(f"row {number}" for number in range(20)))
    stream.run(value)
    first = texts(network, topic)
    assert len(first) == 20
    stream.forget_last()
    stream.run(value)
    assert texts(network, topic) == first
    stream.add("2.txt", "one more")
    stream.run(value)
    later = texts(network, topic)
    assert set(first) < set(later)
    assert len(later) == 21


@pytest.mark.parametrize("way", ["option", "setting"])
def test_a_checkpoint_that_is_one_batch_old_loses_no_row_without_a_word(
    spark: SparkSession, network: LocalNetwork, tmp_path: Path, way: str
) -> None:
    topic = create_topic(network, f"sink/one-batch-old-{way}")
    stream = Streaming(spark, network, topic, tmp_path, way)
    stream.add("1.txt", "a")
    stream.run()
    copytree(stream.checkpoint, tmp_path / "copy")
    stream.add("2.txt", "b")
    stream.run()
    rmtree(stream.checkpoint)
    copytree(tmp_path / "copy", stream.checkpoint)
    stream.add("3.txt", "c")  # it comes under the number that b had
    with pytest.raises(Exception, match=r"\[PARLEY_STAGE\] Batch 1 of this query.*onRepeat=keepFirst"):
        stream.run()
    assert texts(network, topic) == ["a", "b"]
    stream.run(onRepeat="keepFirst")  # by the will of a person, who has read what it means
    stream.add("4.txt", "d")
    stream.run()
    assert texts(network, topic) == ["a", "b", "d"]


def test_rows_do_not_go_to_another_network_than_the_table_names(
    spark: SparkSession, network: LocalNetwork, tmp_path: Path
) -> None:
    """Without the table's options they would go to the network of the current context."""
    topic = create_topic(network, "sink/catalogued")
    words = ", ".join(f"`{name}` '{value}'" for name, value in options(network, topic=topic).items())
    spark.sql(f"CREATE TABLE published (value STRING, topic STRING) USING parley OPTIONS ({words})")
    insert = f"published {{}} VALUES ('row', '{topic}')"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("row")
    stream = (
        spark.readStream.text(str(tmp_path / "in"))
        .selectExpr("value", f"'{topic}' as topic")
        .writeStream.format("parley")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    refused = r"\[PARLEY_OPTION\] No option is given.*CREATE TEMPORARY VIEW"
    try:
        with pytest.raises(Exception, match=refused):
            spark.sql("INSERT INTO " + insert.format(""))
        with pytest.raises(Exception, match=refused):
            spark.sql(f"CREATE TABLE selected USING parley OPTIONS ({words}) AS SELECT 'row' AS value")
        with pytest.raises(Exception, match=refused):
            stream.toTable("published").awaitTermination(120)
        assert texts(network, topic) == []
        spark.sql("INSERT INTO " + insert.format(f"WITH ({words})"))
    finally:
        spark.sql("DROP TABLE published")
    spark.sql(f"CREATE TEMPORARY VIEW publishing (value STRING) USING parley OPTIONS ({words})")
    spark.sql("INSERT INTO publishing VALUES ('another')")
    assert texts(network, topic) == ["another", "row"]


def test_what_went_wrong_in_a_stream_can_be_read_in_its_error(
    spark: SparkSession, network: LocalNetwork, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("row")
    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .writeStream.format("parley")
        .options(**options(network, topic="sink/unknown"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r"\[PARLEY_TOPIC_GONE\]"):
        query.awaitTermination(120)
