"""Leaves and the operations and records of stages have one encoding each, whatever bytes somebody makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.application.operations import encode_operation
from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.model.receipts import BatchReceipt, Done, Duplicate, Leaf, Rejected, encode_leaf
from parley.model.refusals import OK, Refused, classes
from parley.modules.publishing.receipts import Published
from parley.modules.staging.operations import MAX_STAGED_BATCHES, CommitStage, Source, digests_hash
from parley.modules.staging.receipts import Staged
from parley.modules.staging.tables import STAGES, StageRecord
from parley.modules.subscriptions.receipts import Closed, Match, PartitionStart, Subscribed

hashes = st.binary(min_size=32, max_size=32)
numbers = st.integers(0, 2**62 - 1)
small = st.integers(0, 2**32 - 1)
places = st.tuples(numbers, small)
words = st.text(max_size=64)
fields = st.lists(
    st.tuples(words, st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=512))), max_size=4
).map(tuple)
outcomes = st.one_of(
    st.builds(Published, numbers),
    st.builds(Done),
    st.builds(Staged, numbers),
    st.builds(Duplicate, places),
    st.builds(Rejected, st.sampled_from(sorted(classes())), words, fields, numbers),
    st.builds(
        Subscribed,
        hashes,
        st.lists(st.builds(PartitionStart, small, places, numbers, numbers), max_size=3).map(tuple),
        numbers,
    ),
)
sources = st.builds(Source, st.none() | hashes, st.none() | hashes)
leaves = st.one_of(
    st.builds(BatchReceipt, hashes, hashes, st.text(), st.text(), places, small, small, outcomes),
    st.builds(
        Match,
        st.text(),
        small,
        hashes,
        places,
        numbers,
        st.lists(st.tuples(numbers, hashes), max_size=3).map(tuple),
    ),
    st.builds(Closed, st.text(), small, hashes, places, numbers),
)
commits = st.builds(
    CommitStage,
    st.sampled_from(("orders", "wards/er")),
    st.binary(min_size=16, max_size=16),
    numbers,
    st.lists(hashes, max_size=4).map(tuple),
    sources,
    places,
)


def changed(data: st.DataObject, encoded: bytes) -> bytes:
    at = data.draw(st.integers(0, len(encoded) - 1))
    piece = data.draw(st.binary(max_size=2))
    return encoded[:at] + piece + encoded[at + data.draw(st.integers(0, 2)) :]


@given(leaves, st.data())
def test_a_leaf_has_one_encoding(leaf: Leaf, data: st.DataObject) -> None:
    encoded = encode_leaf(leaf)
    assert DATA_SHARD.decode_leaf(encoded) == leaf
    other = changed(data, encoded)
    try:
        found = DATA_SHARD.decode_leaf(other)
    except ValueError:
        return
    assert encode_leaf(found) == other
    assert (found == leaf) == (other == encoded)


@given(commits, st.data())
def test_a_commit_has_one_encoding(commit: CommitStage, data: st.DataObject) -> None:
    encoded = encode_operation(commit)
    assert DATA_SHARD.decode_operation(encoded) == commit
    other = changed(data, encoded)
    try:
        found = DATA_SHARD.decode_operation(other)
    except Refused:
        return
    assert encode_operation(found) == other


def test_a_commit_names_a_limited_number_of_batches() -> None:
    full = CommitStage("orders", bytes(16), 0, (bytes(32),) * MAX_STAGED_BATCHES)
    assert DATA_SHARD.decode_operation(encode_operation(full)) == full
    with pytest.raises(Refused):
        DATA_SHARD.decode_operation(
            encode_operation(CommitStage("orders", bytes(16), 0, (bytes(32),) * (MAX_STAGED_BATCHES + 1)))
        )


def test_staging_and_numbering_are_acceptances() -> None:
    for outcome in (Staged(1), Published(1)):
        assert BatchReceipt(bytes(32), bytes(32), "", "t", (1, 0), 0, 1, outcome).code == OK


@given(numbers, places, hashes, small, sources)
def test_the_record_of_a_writer_is_read_as_it_was_written(
    stage: int, at: tuple[int, int], named: bytes, pending: int, source: Source
) -> None:
    record = StageRecord(stage, at, named, pending, source)
    assert STAGES.decode(encode_value(record)) == record


@given(st.lists(hashes, max_size=3), st.lists(hashes, max_size=3))
def test_commits_are_told_apart_by_what_they_name_and_in_which_order(
    first: list[bytes], second: list[bytes]
) -> None:
    assert (digests_hash(first) == digests_hash(second)) == (first == second)


def test_writers_of_different_clients_and_topics_have_different_records() -> None:
    keys = {
        STAGES.key(topic, topic_id, publisher, writer)
        for publisher in (bytes(32), b"1" * 32)
        for topic in ("a", "ab")
        for topic_id in ((1, 0), (1, 1))
        for writer in (bytes(16), b"1" * 16)
    }
    assert len(keys) == 16
