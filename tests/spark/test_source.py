"""The source as Spark calls it, but without Spark: what is planned, what is read, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType
from tests.node.network import LocalNetwork
from tests.spark.sources import admin, batch_rows, options, publish, rows_of, stream, topic

import parley
from parley.model.credentials import issue_credential
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.node.keys import read_key
from parley.spark.errors import (
    BackwardOffset,
    BadIdentity,
    BadOption,
    DataLoss,
    NotAllowed,
    RightsChanged,
    TopicGone,
    Unreachable,
)
from parley.spark.source import ParleySource

ALL = ReadAllAvailable()
Offset = dict[str, Any]


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"].decode() for row in rows]


def ends(offset: Offset, name: str) -> dict[str, int]:
    return {partition: place["offset"] for partition, place in offset["topics"][name].items()}


@pytest.fixture(scope="module")
def demo(network: LocalNetwork) -> str:
    """Ten messages in one partition, five in the other."""
    name = topic(network, "source-demo")
    publish(network, name, [f"a{at}" for at in range(10)], partition=0, tags={"ward": "er", "bed": 3})
    publish(
        network,
        name,
        [f"b{at}" for at in range(5)],
        partition=1,
        key="k",
        headers={"h": b"1"},
        tags={"on": True},
    )
    return name


# -- batches -----------------------------------------------------------------------------------------------------------


def test_rows_have_kafkas_columns_and_our_own(network: LocalNetwork, demo: str) -> None:
    rows = batch_rows(network, subscribe=demo, includeHeaders="true", includeProof="true")
    assert values(rows) == [f"a{at}" for at in range(10)] + [f"b{at}" for at in range(5)]
    assert [row["offset"] for row in rows] == [*range(10), *range(5)]
    row = rows[12]
    proof = decode_publication(row.pop("proof"))
    check_publication(proof, network.trust)
    assert (proof.partition, proof.offset, proof.message and proof.message.message.payload) == (1, 2, b"b2")
    assert int(row.pop("timestamp").timestamp() * 1_000) == proof.time
    assert row == {
        "key": b"k",
        "value": b"b2",
        "topic": demo,
        "partition": 1,
        "offset": 2,
        "timestampType": 1,
        "headers": [{"key": "h", "value": b"1"}],
        "publisher": "alpha/alice",
        "tags": [("on", "true")],
        "height": proof.height,
        "verified": "certified",
    }
    assert (rows[0]["key"], rows[0]["tags"]) == (None, [("bed", "3"), ("ward", "er")])


@pytest.mark.parametrize("level", ["quorum", "trusted"])
def test_other_levels_read_the_same_rows(network: LocalNetwork, demo: str, level: str) -> None:
    certified, others = batch_rows(network, subscribe=demo), batch_rows(network, subscribe=demo, verify=level)
    assert [{**row, "verified": level} for row in certified] == others


def test_rows_are_filtered_by_their_tags_and_payloads_left_out(network: LocalNetwork, demo: str) -> None:
    rows = batch_rows(network, subscribe=demo, where='ward = "er"', payload="false")
    assert [(row["partition"], row["offset"], row["value"]) for row in rows] == [
        (0, at, None) for at in range(10)
    ]


def test_a_range_of_offsets_is_read_and_cut_into_as_many_pieces_as_wanted(
    network: LocalNetwork, demo: str
) -> None:
    start, end = json.dumps({demo: {"0": 3, "1": -2}}), json.dumps({demo: {"0": 7, "1": -1}})
    for pieces in ("1", "5", "100"):
        rows = batch_rows(
            network, subscribe=demo, startingOffsets=start, endingOffsets=end, minPartitions=pieces
        )
        assert values(rows) == ["a3", "a4", "a5", "a6", "b0", "b1", "b2", "b3", "b4"]


def test_single_partitions_and_patterns_are_read(network: LocalNetwork, demo: str) -> None:
    assert values(batch_rows(network, assign=json.dumps({demo: [1]}))) == [f"b{at}" for at in range(5)]
    assert len(batch_rows(network, subscribePattern="source-d.m[aeo]")) == 15
    assert batch_rows(network, subscribePattern="source-nothing") == []


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("startingOffsets", {"0": 1}, "no offset for partition 1"),
        ("startingOffsets", {"0": 1, "1": 0, "2": 0}, "which the query does not read"),
        ("startingOffsets", {"0": 11, "1": 0}, "ends at offset 10"),
        ("endingOffsets", {"0": 11, "1": 0}, "ends at offset 10"),
    ],
)
def test_offsets_that_do_not_exist_are_an_error(
    network: LocalNetwork, demo: str, option: str, value: dict[str, int], problem: str
) -> None:
    with pytest.raises(BadOption, match=problem):
        batch_rows(network, subscribe=demo, **{option: json.dumps({demo: value})})


def test_a_time_is_found_by_certified_reading(network: LocalNetwork) -> None:
    name = topic(network, "source-times", partitions=1)
    for text in "abcde":
        publish(network, name, [text])
    rows = batch_rows(network, subscribe=name)
    times = [int(row["timestamp"].timestamp() * 1_000) for row in rows]
    for at, time in enumerate(times):
        assert values(batch_rows(network, subscribe=name, startingTimestamp=str(time))) == list("abcde"[at:])
        later = values(batch_rows(network, subscribe=name, startingTimestamp=str(time + 1)))
        assert later == list("abcde"[at + 1 :])


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_goes_from_offset_to_offset_and_a_replay_gives_the_same_rows(network: LocalNetwork) -> None:
    name = topic(network, "source-stream")
    reader = stream(network, subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) is start  # there is nothing
    publish(network, name, ["one", "two"])
    end = planned(reader, start)
    assert ends(end, name) == {"0": 2, "1": 0}
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []
    publish(network, name, ["three"], partition=1)
    last = planned(reader, end)
    again = stream(network, subscribe=name, startingOffsets="earliest")  # as after a restart
    start, end, last = (json.loads(json.dumps(one)) for one in (start, end, last))
    for one in (reader, again):
        assert values(rows_of(one, one.partitions(start, end))) == ["one", "two"]
        assert values(rows_of(one, one.partitions(end, last))) == ["three"]
    newest = reader.reportLatestOffset()
    assert newest is not None
    assert ends(newest, name) == {"0": 2, "1": 1}


def planned(reader: Any, start: Offset, limit: Any = ALL) -> Offset:  # noqa: ANN401 - a stream reader and a limit
    """The end of the next batch, once there is one: the driver's look at the network is a moment old."""
    while (end := reader.latestOffset(start, limit)) == start:
        pass
    return dict(end)


def test_a_stream_begins_at_the_end_unless_told_otherwise(network: LocalNetwork, demo: str) -> None:
    assert ends(stream(network, subscribe=demo).initialOffset(), demo) == {"0": 10, "1": 5}


def test_a_limit_is_shared_by_the_partitions_and_everything_is_read_once(
    network: LocalNetwork, demo: str
) -> None:
    reader = stream(network, subscribe=demo, startingOffsets="earliest", maxOffsetsPerTrigger="4")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, limit)) != at:
        rows = rows_of(reader, reader.partitions(at, end))
        assert 0 < len(rows) <= 4
        found += rows
        at = end
    assert sorted(values(found)) == sorted([f"a{at}" for at in range(10)] + [f"b{at}" for at in range(5)])


def test_available_now_stops_where_the_network_was(network: LocalNetwork) -> None:
    name = topic(network, "source-now", partitions=1)
    publish(network, name, ["before"])
    reader = stream(network, subscribe=name, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    publish(network, name, ["after"])
    end = planned(reader, reader.initialOffset())
    assert values(rows_of(reader, reader.partitions(reader.initialOffset(), end))) == ["before"]
    assert reader.latestOffset(end, ALL) is end


def test_new_partitions_are_read_from_their_beginning(network: LocalNetwork) -> None:
    name = topic(network, "source-grows", partitions=1)
    reader = stream(network, subscribe=name)
    start = reader.initialOffset()
    admin(network, lambda client: client.alter_topic(name, partitions=2))
    publish(network, name, ["new"], partition=1)
    end = planned(reader, start)
    assert values(rows_of(reader, reader.partitions(start, end))) == ["new"]


def changed(record: Offset, /, **places: Any) -> Offset:  # noqa: ANN401
    found = deepcopy(record)
    for partitions in found["topics"].values():
        for place in partitions.values():
            place.update(places)
    return found


def test_an_offset_of_another_history_is_an_error_and_never_a_repetition(
    network: LocalNetwork, demo: str
) -> None:
    offset = stream(network, subscribe=demo).initialOffset()
    for lie in (
        changed(offset, block="ab" * 32),
        changed(offset, height=10**9),
        {**offset, "chain": "ab" * 32},
        changed(offset, offset=1_000),
    ):
        reader = stream(network, subscribe=demo, timeout="2")
        with pytest.raises(BackwardOffset):
            reader.latestOffset(lie, ALL)
    reader = stream(network, subscribe=demo)
    earlier = changed(offset, offset=1)
    with pytest.raises(BackwardOffset, match="back to 1"):
        reader.partitions(offset, earlier)


# -- rights ------------------------------------------------------------------------------------------------------------


def test_a_replay_gives_the_rows_that_the_reader_could_see_when_it_was_planned(network: LocalNetwork) -> None:
    name = topic(network, "source-rights", partitions=1)
    publish(network, name, ["open"])
    publish(network, name, ["for nurses"], rule='role == "nurse"')
    publish(network, name, ["for doctors"], rule='role == "doctor"')
    reader = stream(network, "bob", subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = planned(reader, start)
    pieces = reader.partitions(start, end)
    assert values(rows_of(reader, pieces)) == ["open", "for nurses"]
    admin(network, lambda client: client.alter_client("bob", set={"role": "doctor"}))
    try:
        # What it may see now does not appear in a batch that was planned before; what it may not see is not to be had.
        with pytest.raises(RightsChanged, match="new checkpoint"):
            rows_of(reader, pieces)
        fresh = batch_rows(network, "bob", subscribe=name)
        assert values(fresh) == ["open", "for doctors"]
        assert values(rows_of(reader, reader.partitions(start, changed(end, offset=1)))) == ["open"]
    finally:
        admin(network, lambda client: client.alter_client("bob", set={"role": "nurse"}))


def test_rows_that_became_visible_later_stay_out_of_a_replay(network: LocalNetwork) -> None:
    name = topic(network, "source-later", partitions=1)
    publish(network, name, ["open", "for chiefs"], rule="chief == true")
    reader = stream(network, "bob", subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = planned(reader, start)
    assert rows_of(reader, reader.partitions(start, end)) == []
    admin(network, lambda client: client.alter_client("bob", set={"chief": True}))
    try:
        assert rows_of(reader, reader.partitions(start, end)) == []
        assert len(batch_rows(network, "bob", subscribe=name)) == 2
    finally:
        admin(network, lambda client: client.alter_client("bob", remove=("chief",)))


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_or_disappears_is_an_error(network: LocalNetwork) -> None:
    with pytest.raises(TopicGone, match="source-never"):
        batch_rows(network, subscribe="source-never")
    name = topic(network, "source-gone")
    reader = stream(network, subscribe=name)
    start = reader.initialOffset()
    admin(network, lambda client: client.delete_topic(name))
    with pytest.raises(TopicGone):
        planned(reader, start)


def test_a_topic_that_one_may_not_read_is_an_error(network: LocalNetwork) -> None:
    name = topic(network, "source-closed", subscribe='role == "doctor"')
    with pytest.raises(NotAllowed, match="doctor"):
        batch_rows(network, subscribe=name)


def test_pruned_offsets_are_an_error_or_are_passed_over(network: LocalNetwork) -> None:
    name = topic(network, "source-pruned", partitions=1)
    publish(network, name, ["old"])
    reader = stream(network, subscribe=name, startingOffsets="earliest")
    start = reader.initialOffset()
    end = planned(reader, start)
    admin(network, lambda client: client.alter_topic(name, retention=1))
    while not pruned(network, name):
        publish(network, name, ["new"])
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        rows_of(reader, reader.partitions(start, end))
    with pytest.raises(DataLoss, match="failOnDataLoss"):
        stream(network, subscribe=name).latestOffset(start, ALL)
    careless = stream(network, subscribe=name, failOnDataLoss="false")
    assert rows_of(careless, careless.partitions(start, end)) == []
    later = careless.latestOffset(start, ALL)
    assert "old" not in values(rows_of(careless, careless.partitions(start, later)))


def pruned(network: LocalNetwork, name: str) -> bool:
    chosen = options(network)
    with parley.connect_blocking(directory=chosen["directory"], identity=chosen["identity"]) as client:
        return client.topic(name).heads[0].start > 0


def test_an_identity_that_is_missing_or_not_registered_is_an_error(
    network: LocalNetwork, demo: str, tmp_path: Path
) -> None:
    with pytest.raises(BadIdentity, match=r"nobody\.json"):
        batch_rows(network, subscribe=demo, identity=str(tmp_path / "nobody.json"))
    stranger = network.directory / "identities" / "beta-bob.json"
    with pytest.raises(BadIdentity, match="not registered"):
        batch_rows(network, subscribe=demo, identity=str(stranger))


def test_an_identity_that_is_revoked_ends_the_query(network: LocalNetwork, demo: str) -> None:
    identity = network.identity("beta", "bob")
    key, proof = identity.credential.key, identity.proof()
    admin(network, lambda client: client.register_client("bob", key, proof=proof), organisation="beta")
    chosen = {"subscribe": demo, "identity": str(network.directory / "identities" / "beta-bob.json")}
    reader = stream(network, startingOffsets="earliest", **chosen)
    start = reader.initialOffset()
    end = planned(reader, start)
    admin(network, lambda client: client.revoke_client("bob"), organisation="beta")
    with pytest.raises(BadIdentity, match="revoked"):
        planned(reader, end)
    with pytest.raises(BadIdentity, match="revoked"):
        rows_of(reader, reader.partitions(start, end))


def test_an_identity_that_has_expired_is_an_error(network: LocalNetwork, demo: str, tmp_path: Path) -> None:
    anchor = read_key(network.directory / "organisations" / "alpha" / "anchor.key")
    own = network.identity("alpha", "alice")
    chain, key = network.genesis.chain, own.credential.key
    over = issue_credential(chain, "alpha", "alice", key, not_after=1, anchor=anchor)
    path = tmp_path / "expired.json"
    path.write_bytes(msgspec.json.encode(replace(own, credential=over)))
    path.chmod(0o600)
    with pytest.raises(BadIdentity, match="it has expired"):
        batch_rows(network, subscribe=demo, identity=str(path))


def test_how_far_behind_a_query_is_can_be_seen(network: LocalNetwork, demo: str) -> None:
    reader = stream(network, subscribe=demo, startingOffsets="earliest", queryName="vitals")
    reader.latestOffset(reader.initialOffset(), ALL)

    async def seen(client: parley.Client) -> None:
        while True:
            told = [one for one in client.readers(await client.status()) if one.query == "vitals"]
            if told:
                assert (told[0].topic, told[0].lag) == (demo, 15)
                return

    admin(network, seen)


def test_a_network_that_does_not_answer_is_an_error_in_time(tmp_path: Path) -> None:
    silent = LocalNetwork(tmp_path, clients=("alice",))
    with pytest.raises(Unreachable, match="No broker answers"):
        batch_rows(silent, subscribe="demo", timeout="1")


def test_a_schema_of_ones_own_is_an_error(network: LocalNetwork, demo: str) -> None:
    source = ParleySource(options(network, subscribe=demo))
    assert source.reader(source.schema()) is not None
    with pytest.raises(BadOption, match="columns of its own"):
        source.reader(StructType([StructField("value", LongType())]))
