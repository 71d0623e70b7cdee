"""The ledger as tables: complete, in order, linked, once each in a stream; and for auditors only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType
from tests.ledger.shard import ALICE, GENESIS, staged
from tests.node.network import SECONDS, LocalNetwork
from tests.spark.ledger import verified
from tests.spark.sinks import client, create_topic

import parley
from parley.applications import DATA_SHARD
from parley.client.ledger import VerifiedBlock
from parley.model.receipts import BatchReceipt, Rejected, encode_leaf
from parley.model.refusals import Invalid
from parley.node.provision import identity_path
from parley.spark import ledger_columns, tables
from parley.spark.arrow import columns_of
from parley.spark.errors import BackwardOffset, BadOption, NotAllowed
from parley.spark.ledger_columns import ledger_tables, record_batches
from parley.spark.options import read_options, table_options
from parley.spark.tables import Heights, TableStreamReader, split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "ledgered"
TABLES = ledger_tables(DATA_SHARD)


# -- rows of blocks, without a network -------------------------------------------------------------------------------


def arrow(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """What a reader yields: Spark's types allow tuples as well."""
    for batch in batches:
        assert isinstance(batch, pa.RecordBatch)
        yield batch


def rows(table: str, blocks: list[VerifiedBlock]) -> list[dict[str, Any]]:
    batches = record_batches(TABLES[table], blocks, GENESIS, DATA_SHARD)
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_table_is_in_the_order_of_the_ledger_and_has_its_columns() -> None:
    for name, table in TABLES.items():
        found = rows(name, verified())
        assert found, name
        assert [row["height"] for row in found] == sorted(row["height"] for row in found)
        assert list(found[0]) == table.schema.names
        assert all(row["time"].tzinfo is not None for row in found)


def test_operations_have_the_receipts_that_the_ledger_gave() -> None:
    found = rows("operations", verified())
    kinds = [row["operation"] for row in found]
    assert kinds == ["register_client", "create_topic", "subscribe", *["publish"] * 5]
    assert [row["first_offset"] for row in found[3:]] == [0, 3, 6, 9, 12]
    assert {row["code"] for row in found} == {"Ok"}
    assert [row["outcome"] for row in found[:4]] == ["done", "done", "subscribed", "published"]
    assert found[3]["publisher"] == "hospital-a/alice"
    assert found[3]["publisher_key"] == ALICE.key
    assert sum(row["publications"] for row in rows("blocks", verified())) == 15


def test_a_record_batch_is_of_few_blocks_if_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = verified()
    (whole,) = record_batches(TABLES["operations"], blocks, GENESIS, DATA_SHARD)
    monkeypatch.setattr(ledger_columns, "BYTES", 1)
    parts = list(record_batches(TABLES["operations"], blocks, GENESIS, DATA_SHARD))
    assert len(parts) == len({row["height"] for row in whole.to_pylist()}) > 1
    assert pa.Table.from_batches(parts).to_pylist() == whole.to_pylist()


def test_whatever_a_client_can_sign_is_a_row() -> None:
    """Also what was refused: one batch with a strange number would otherwise end every audit of this ledger."""
    most = 2**32 - 1
    receipt = BatchReceipt(
        bytes(32), bytes(32), "", "\x1b[2J'; --", (1, 0), most, 10_000, Rejected(Invalid.code, "\x00", (), 0)
    )
    strange = [replace(block, raw_leaves=(encode_leaf(receipt),)) for block in verified()[:1]]
    for table in ("operations", "receipts"):
        (row,) = rows(table, strange)
        assert (row["partition"], row["topic"], row["detail"]) == (most, "\x1b[2J'; --", "\x00")


def test_staged_batches_are_told_when_they_come_and_when_they_are_numbered() -> None:
    blocks = verified(staged())
    found = rows("operations", blocks)
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_kind.setdefault(row["operation"], []).append(row)
    assert {row["outcome"] for row in by_kind["stage"]} == {"staged"}
    assert {row["first_offset"] for row in by_kind["stage"]} == {None}
    numbered = by_kind["numbered"]
    assert {row["digest"] for row in numbered} < {row["digest"] for row in by_kind["stage"]}
    assert [row["first_offset"] for row in numbered][:3] == [0, 2, 4]
    published = sum(row["count"] for row in found if row["outcome"] == "published")
    assert published == sum(row["publications"] for row in rows("blocks", blocks))


def test_what_changed_clients_and_topics_is_told_with_what_it_changed() -> None:
    (registered,) = rows("clients", verified())
    assert (registered["change"], registered["client"], registered["key"]) == (
        "register_client",
        "alice",
        ALICE.key,
    )
    assert registered["attributes"] == [("role", "nurse")]
    assert registered["organisation"] == GENESIS.organisations[0].name
    (created,) = rows("topics", verified())
    assert (created["change"], created["topic"], created["partitions"]) == ("create_topic", "wards", 1)


def test_changes_name_the_administrator_that_made_them() -> None:
    """Its receipt names no client; an empty column said that nobody had done it."""
    for table in ("clients", "topics"):
        (changed,) = rows(table, verified())
        assert changed["by"] == f"administrator of {GENESIS.organisations[0].name}"
        assert changed["by_key"] in GENESIS.organisations[0].admins


def test_a_publisher_is_the_same_text_in_all_tables() -> None:
    kinds = {
        (field.name, field.dataType.simpleString())
        for schema in schemas()
        for field in schema
        if field.name.startswith("publisher")
    }
    assert kinds == {("publisher", "string"), ("publisher_key", "binary")}
    for table in ("operations", "receipts"):
        assert {row["publisher"] for row in rows(table, verified())} >= {"hospital-a/alice"}


def schemas() -> list[StructType]:
    """Of the ledger and of topics."""
    topics = columns_of(read_options({"directory": "/nowhere", "subscribe": "notes"}, stream=None))
    return [topics, *(from_arrow_schema(table.schema) for table in TABLES.values())]


def test_an_erased_body_leaves_its_receipt() -> None:
    blocks = [
        VerifiedBlock(
            block.header,
            block.id,
            block.batches,
            block.raw_leaves,
            (None,) * len(block.batches),
            (None,) * len(block.batches),
            (None,) * len(block.batches),
            block.decode_leaf,
        )
        for block in verified()
    ]
    found = rows("operations", blocks)
    assert len(found) == 8
    assert {row["operation"] for row in found} == {None}
    assert [row["first_offset"] for row in found[3:]] == [0, 3, 6, 9, 12]


def test_votes_name_every_broker_of_every_certificate() -> None:
    found = [row for row in rows("votes", verified()) if row["kind"] == "vote"]
    by_height: dict[int, list[bool]] = {}
    for row in found:
        by_height.setdefault(row["height"], []).append(row["voted"])
        assert row["voted_height"] == row["height"] - 1
    assert 1 not in by_height  # block 0 was made by nobody
    assert all(len(voted) == 4 and sum(voted) >= 3 for voted in by_height.values())


def test_heights_are_shared_out_whole_and_the_last_one_is_bound() -> None:
    for first, last, least in ((1, 10, 3), (5, 5, 4), (1, 5000, None)):
        parts = split(first, last, least, b"id")
        assert [height for part in parts for height in range(part.first, part.last + 1)] == list(
            range(first, last + 1)
        )
        assert [part.block for part in parts] == [*[None] * (len(parts) - 1), b"id"]
    assert split(4, 3, 2) == []


# -- a real network --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audited:
    """A network with something on its ledger, and the options with which its auditor reads it."""

    network: LocalNetwork

    def options(
        self, table: str, organisation: str = "alpha", name: str = "admin", **more: str
    ) -> dict[str, str]:
        path = identity_path(self.network.directory, organisation, name)
        return {"directory": str(self.network.directory), "identity": str(path), "table": table, **more}

    def read(self, spark: SparkSession, table: str, **more: str) -> DataFrame:
        return spark.read.format("parley").options(**self.options(table, **more)).load()


@pytest.fixture(scope="module")
def audited(network: LocalNetwork) -> Audited:
    create_topic(network, TOPIC, partitions=1)

    async def story() -> None:
        async with asyncio.timeout(SECONDS), client(network, "alice") as alice:
            for number in range(4):
                await alice.publish(TOPIC, f"number {number}")
            with pytest.raises(parley.Refused):
                await alice.create_topic("hers")

    asyncio.run(story())
    return Audited(network)


def test_the_blocks_are_all_there_and_linked(spark: SparkSession, audited: Audited) -> None:
    found = audited.read(spark, "blocks", minPartitions="3").orderBy("height").collect()
    assert [row.height for row in found] == list(range(1, len(found) + 1))
    assert all(child.parent == parent.id for parent, child in pairwise(found))
    assert {row.proposer for row in found} <= set(audited.network.names)


def test_operations_and_refusals_are_there_with_their_receipts(spark: SparkSession, audited: Audited) -> None:
    found = audited.read(spark, "operations").where(f"topic = '{TOPIC}' or code != 'Ok'").collect()
    published = [row for row in found if row.operation == "publish" and row.topic == TOPIC]
    assert sorted(row.first_offset for row in published) == [0, 1, 2, 3]
    assert {row.publisher for row in published} == {"alpha/alice"}
    refused = [row for row in found if row.operation == "create_topic" and "hers" in row.arguments]
    assert [row.outcome for row in refused] == ["refused"]
    assert refused[0].code == "PermissionDenied"
    assert refused[0].detail


def test_a_stream_gives_every_row_once_over_restarts(
    spark: SparkSession, audited: Audited, tmp_path: Path
) -> None:
    newest = stream(audited).reportLatestOffset()
    assert newest is not None
    begin = str(max(1, newest["height"] - 30))

    def run() -> int:
        source = spark.readStream.format("parley").options(**audited.options("blocks"))
        query = (
            source.option("startingHeight", begin)
            .option("maxBlocksPerTrigger", "20")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        assert query.awaitTermination(120)
        return len([progress for progress in query.recentProgress if progress["numInputRows"]])

    assert run() >= 2

    async def more() -> None:
        async with asyncio.timeout(SECONDS), client(audited.network, "alice") as alice:
            await alice.publish(TOPIC, "late")

    asyncio.run(more())
    assert run() >= 1
    got = spark.read.parquet(str(tmp_path / "rows"))
    last = got.agg({"height": "max"}).collect()[0][0]
    wanted = audited.read(spark, "blocks", startingHeight=begin, endingHeight=str(last))
    columns = ["height", "id"]
    assert got.count() == wanted.count()
    assert got.select(columns).exceptAll(wanted.select(columns)).count() == 0


def test_only_auditors_read_the_ledger_and_others_hear_who_grants_it(
    spark: SparkSession, audited: Audited
) -> None:
    reader = tables.TableReader(table_options(audited.options("blocks", name="alice")))
    with pytest.raises(
        NotAllowed, match=r"An administrator of alpha grants it: parley client grant alice auditor"
    ):
        reader.partitions()
    reader = tables.TableReader(table_options(audited.options("blocks", "beta", "admin")))
    with pytest.raises(NotAllowed, match=r"gives to alpha, so that nobody in beta can grant it"):
        reader.partitions()
    with pytest.raises(PySparkException, match="PARLEY_NOT_ALLOWED"):
        spark.read.format("parley").options(**audited.options("votes", name="alice")).load().collect()


def test_a_granted_client_reads_it(audited: Audited) -> None:
    async def story() -> None:
        bob = audited.network.identity("alpha", "bob")
        async with asyncio.timeout(SECONDS), client(audited.network, "admin") as admin:
            with suppress(parley.ClientExists):
                await admin.register_client("bob", bob.credential.key, proof=bob.proof())
            await admin.grant_right("bob", "auditor")

    asyncio.run(story())
    reader = tables.TableReader(table_options(audited.options("clients", name="bob")))
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    granted = [row for row in found if row["change"] == "grant_right"]
    assert (granted[-1]["client"], granted[-1]["right"], granted[-1]["organisation"]) == (
        "bob",
        "auditor",
        "alpha",
    )


def stream(audited: Audited, **more: str) -> TableStreamReader:
    return TableStreamReader(table_options(audited.options("blocks", **more)))


def test_an_offset_that_goes_back_or_is_of_another_history_is_an_error(audited: Audited) -> None:
    reader = stream(audited)
    first = reader.initialOffset()
    newest = reader.latestOffset(first, ReadAllAvailable())
    assert newest["height"] > 5
    with pytest.raises(BackwardOffset, match="go back"):
        reader.partitions(newest, first)
    for change, said in (
        ({"chain": "00" * 32}, "another network"),
        ({"shard": 1}, "of shard 1, and this is shard 0"),
        ({"epoch": 1}, "another history"),
        ({"block": "00" * 32}, "another history"),
        ({"version": 7}, "no position of a ledger table"),
    ):
        with pytest.raises(BackwardOffset, match=said):
            stream(audited).latestOffset({**newest, **change}, ReadAllAvailable())
    with pytest.raises(BackwardOffset, match="another history"):
        list(reader.read(Heights(1, newest["height"], bytes(32))))


def test_a_checkpoint_that_is_ahead_of_the_ledger_is_an_error_once_that_is_certain(audited: Audited) -> None:
    reader = stream(audited)
    ahead = {**reader.latestOffset(reader.initialOffset(), ReadAllAvailable()), "height": 10**9}

    async def until_told() -> None:
        async with asyncio.timeout(SECONDS):
            while True:  # a broker may be behind, so it is not said at once
                assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead
                await asyncio.sleep(0.1)

    with pytest.raises(BackwardOffset, match="it went back"):
        asyncio.run(until_told())


def test_a_micro_batch_has_no_more_blocks_than_asked_for_and_replays_alike(audited: Audited) -> None:
    reader = stream(audited, maxBlocksPerTrigger="3", startingHeight="2")
    start = reader.initialOffset()
    assert start["height"] == 1
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["height"] == 4
    assert reader.latestOffset(start, ReadMaxRows(3)) == end
    assert reader.partitions(start, start) == []
    pickle: Any = CloudPickleSerializer()  # type: ignore[no-untyped-call]
    again = pickle.loads(pickle.dumps(reader))
    parts = [
        [batch.to_pylist() for part in one.partitions(start, end) for batch in one.read(part)]
        for one in (reader, again)
    ]
    assert parts[0] == parts[1]
    assert [row["height"] for batch in parts[0] for row in batch] == [2, 3, 4]


def test_available_now_ends_where_the_ledger_was(audited: Audited) -> None:
    reader = stream(audited)
    reader.prepareForTriggerAvailableNow()
    target = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(target, ReadAllAvailable()) == target


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "block"}, "did you mean 'blocks'"),
        ({"table": "blocks", "startHeight": "1"}, "did you mean 'startingHeight'"),
        ({"table": "votes", "startingHeight": "none"}, "whole number"),
    ],
)
def test_wrong_options_are_told_with_the_nearest_right_one(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        tables.table_schema({"directory": "net", **options})


def test_evidence_has_no_order_and_blocks_of_the_future_are_not_there(audited: Audited) -> None:
    options = audited.options("evidence")
    with pytest.raises(BadOption, match="no order"):
        tables.table_stream_reader(options)
    reader = tables.table_reader(options)
    assert all(batch.num_rows for part in reader.partitions() for batch in arrow(reader.read(part)))
    with pytest.raises(BadOption, match="certified up to height"):
        tables.TableReader(table_options(audited.options("blocks", endingHeight="1000000000"))).partitions()
