"""The tree of a batch: what its definition says, proofs for every place in it, and none for anything else."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.crypto import merkle
from parley.crypto.encoding import enc, u32, u64
from parley.crypto.hashing import digest
from parley.model.batches import (
    FORMAT,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    batch_digest,
    encode,
    leaves_of,
)
from parley.model.leaves import GROUP, LeafProof, prove, root, verify
from parley.model.leaves import leaves_of as leaves_of_messages

OTHER = digest("tests/leaf", b"another")
LEAF = "b00d9d0bf2e92860fe8687bed6eacd09ed43787c3d3abade5654cb7523b67469"
ROOT = "6852735d0ce7591cd1028be16fa04c6ff39f79d0ab342dabb18157bd32241ab2"
DIGEST = "2407a4789f38e89a4ec15cc9b90b095f6f856bcfd50a9a48f0208056a269756d"

rules = st.sampled_from(["", 'role == "nurse"', 'ward == "ü"'])
messages = st.builds(
    Message,
    salt=st.binary(min_size=16, max_size=16),
    header=st.binary(max_size=40),
    rule=rules,
    payload=st.binary(max_size=80),
)
hashes = st.binary(min_size=32, max_size=32)
headers = st.builds(
    BatchHeader,
    format=st.integers(0, 2**32 - 1),
    chain=hashes,
    shard=st.integers(0, 2**32 - 1),
    kind=st.integers(0, 2**32 - 1),
    topic=st.text(max_size=20),
    topic_id=st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**32 - 1)),
    partition=st.integers(0, 2**32 - 1),
    publisher=hashes,
    session=st.binary(min_size=16, max_size=16),
    sequence=st.integers(0, 2**64 - 1),
    count=st.integers(0, 2**32 - 1),
    not_after=st.integers(0, 2**64 - 1),
)


def defined(message: Message) -> bytes:
    """P3, word by word."""
    hc = digest("message/header", message.salt, message.header)
    pc = digest("message/payload", message.salt, message.payload)
    return digest("message/leaf", hc, message.rule.encode(), pc)


@cache
def leaves(count: int) -> tuple[bytes, ...]:
    return tuple(digest("tests/leaf", u64(number)) for number in range(count))


# -- what is hashed ----------------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None)
@given(st.lists(messages, max_size=40))
def test_leaves_are_those_of_the_definition_whatever_rules_and_headers_are_mixed(
    found: list[Message],
) -> None:
    expected = [defined(message) for message in found]
    assert leaves_of_messages(found) == expected
    assert leaves_of(found) == expected
    assert [message.leaf() for message in found] == expected


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(messages, st.booleans()), max_size=20))
def test_what_is_withheld_has_the_leaf_of_what_it_stands_for(found: list[tuple[Message, bool]]) -> None:
    shown = [message.withheld() if hidden else message for message, hidden in found]
    assert leaves_of(shown) == [defined(message) for message, _ in found]


@pytest.mark.parametrize("count", [0, 1, 2, 15, 16, 17, 31, 32, 33, 100])
def test_the_root_is_that_of_a_tree_over_joined_groups_of_sixteen(count: int) -> None:
    found = leaves(count)
    groups = [b"".join(found[at : at + 16]) for at in range(0, count, 16)]
    assert root(found) == merkle.root(groups)


def test_a_root_of_three_groups_by_hand() -> None:
    found = leaves(2 * GROUP + 1)
    first, second, third = (
        digest("merkle/leaf", b"".join(found[at : at + GROUP])) for at in (0, GROUP, 2 * GROUP)
    )
    assert root(found) == digest("merkle/node", digest("merkle/node", first, second), third)


def test_the_leaf_the_root_and_the_digest_of_a_known_batch_never_change() -> None:
    content = tuple(
        Message(bytes([number]) * 16, encode(MessageHeader(b"k%d" % number)), rule, b"payload %d" % number)
        for number, rule in enumerate(["", 'role == "nurse"'] * 10)
    )
    header = BatchHeader(
        FORMAT, bytes(range(32)), 5, PUBLISH, "wärds", (7, 8), 3, b"\1" * 32, b"\2" * 16, 4, len(content), 99
    )
    found = leaves_of(content)
    assert found[1].hex() == LEAF
    assert root(found).hex() == ROOT
    assert batch_digest(header, found).hex() == DIGEST


@settings(derandomize=True, deadline=None)
@given(headers)
def test_a_batch_header_is_packed_as_its_fields_are_encoded(header: BatchHeader) -> None:
    assert header.encode() == enc(
        u32(header.format),
        header.chain,
        u32(header.shard),
        u32(header.kind),
        header.topic.encode(),
        u64(header.topic_id[0]),
        u32(header.topic_id[1]),
        u32(header.partition),
        header.publisher,
        header.session,
        u64(header.sequence),
        u32(header.count),
        u64(header.not_after),
    )


# -- proofs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(1, 51), 255, 256, 257, 1_000])
def test_every_leaf_of_every_size_is_proved_and_only_at_its_place(count: int) -> None:
    found, top = leaves(count), root(leaves(count))
    for index in range(count):
        proof = prove(found, index)
        assert verify(top, found[index], count, proof)
        assert not verify(top, OTHER, count, proof)
        for other in {(index + 1) % count, (index + GROUP) % count, count - 1, 0} - {index}:
            assert not verify(top, found[other], count, proof)
            assert not verify(top, found[index], count, replace(proof, index=other))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 33, 50])
def test_a_proof_holds_for_no_other_number_of_groups_nor_for_another_size_of_its_own(count: int) -> None:
    """How long another group is, only the batch's header tells, which the digest covers along with the root."""
    found, top = leaves(count), root(leaves(count))
    for index in range(count):
        proof = prove(found, index)
        last = index // GROUP == (count - 1) // GROUP
        for other in set(range(count + 2 * GROUP)) - {count}:
            elsewhere = not last and -(-other // GROUP) == -(-count // GROUP)
            assert verify(top, found[index], other, proof) == elsewhere


@pytest.mark.parametrize(("count", "index"), [(1, 0), (16, 15), (17, 16), (33, 20), (100, 99)])
def test_no_part_of_a_proof_can_be_changed(count: int, index: int) -> None:
    found, top = leaves(count), root(leaves(count))
    leaf, proof = found[index], prove(leaves(count), index)
    path = proof.path
    within = index % GROUP * 32
    changed = [
        replace(proof, index=-1),
        replace(proof, index=count),
        replace(proof, index=index + count),
        replace(proof, group=proof.group[:-32]),
        replace(proof, group=proof.group[:-1]),
        replace(proof, group=proof.group + OTHER),
        replace(proof, group=proof.group + b"\0"),
        replace(proof, group=OTHER + proof.group[32:]) if within else replace(proof, group=OTHER),
        replace(proof, path=replace(path, index=path.index + 1)),
        replace(proof, path=replace(path, index=path.index - 1)),
        replace(proof, path=replace(path, size=path.size + 1)),
        replace(proof, path=replace(path, size=path.size - 1)),
        replace(proof, path=replace(path, path=(*path.path, OTHER))),
        *(replace(proof, path=replace(path, path=path.path[1:])) for _ in path.path[:1]),
        *(replace(proof, path=replace(path, path=(OTHER, *path.path[1:]))) for _ in path.path[:1]),
    ]
    assert verify(top, leaf, count, proof)
    assert [proof for proof in changed if verify(top, leaf, count, proof)] == []
    assert not verify(OTHER, leaf, count, proof)


def test_a_node_of_the_tree_passes_neither_for_a_leaf_nor_for_a_group() -> None:
    found = leaves(2 * GROUP)
    low, high = (merkle.leaf_hash(b"".join(found[at : at + GROUP])) for at in (0, GROUP))
    top = root(found)
    # As if the two groups' hashes were a batch of two messages.
    assert not verify(top, low, 2, LeafProof(0, low + high, merkle.Proof(0, 1, ())))
    # Nor is one message as long as a whole group a group.
    group = b"".join(found[:GROUP])
    assert not verify(top, group, 2, LeafProof(0, group, merkle.Proof(0, 2, (high,))))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_leaf_that_is_not_there_cannot_be_proved(index: int) -> None:
    with pytest.raises(ValueError, match=f"no leaf {index} among 3"):
        prove(leaves(3), index)


@pytest.mark.parametrize("size", [0, 31, 32 * GROUP + 1])
def test_a_group_of_an_impossible_size_is_not_even_read(size: int) -> None:
    data = msgspec.msgpack.encode((0, bytes(size), (0, 1, ())))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=LeafProof)
