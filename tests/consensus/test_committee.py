"""Quorums (P1), and the committees of shards (P28)."""

import pytest
from msgspec.structs import replace
from tests.application.world import ORGANISATIONS, make_genesis

from parley.consensus.committee import (
    MemberKey,
    UnknownShardError,
    all_brokers,
    committee_of,
    committees_of,
    faults,
    instance_of,
    quorum,
    scheme_of,
    signer_of,
)
from parley.model.genesis import Genesis, Shard


@pytest.mark.parametrize("n", range(1, 201))
def test_two_quorums_share_an_honest_member_and_the_honest_make_one(n: int) -> None:
    f, q = faults(n), quorum(n)
    assert 2 * q - n >= f + 1
    assert q <= n - f


@pytest.mark.parametrize("n", range(1, 201))
def test_no_smaller_quorum_would_do(n: int) -> None:
    assert 2 * (quorum(n) - 1) - n < faults(n) + 1


@pytest.mark.parametrize(
    ("n", "q"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 4), (6, 4), (7, 5), (8, 6), (9, 6), (32, 22), (33, 22)]
)
def test_quorum_has_the_listed_value(n: int, q: int) -> None:
    assert quorum(n) == q


@pytest.mark.parametrize("n", range(1, 201))
def test_fewer_than_a_third_may_be_faulty(n: int) -> None:
    assert 3 * faults(n) < n <= 3 * faults(n) + 3


# -- committees of a genesis file --------------------------------------------------------------------------------------


def network(*shards: tuple[str, ...]) -> Genesis:
    return replace(make_genesis(), shards=tuple(Shard(members) for members in shards))


FOUR = tuple(f"broker-{name}" for name in ORGANISATIONS)


def test_each_shard_has_the_committee_that_the_genesis_file_lists() -> None:
    genesis = network(FOUR, FOUR[1:3])
    first, second = committees_of(genesis)
    assert (first.names, second.names) == (FOUR, FOUR[1:3])
    assert [(one.shard, one.epoch, one.size, one.quorum, one.faults) for one in (first, second)] == [
        (0, 0, 4, 3, 1),
        (1, 0, 2, 2, 0),
    ]
    assert [second.index_of(name) for name in FOUR] == [None, 0, 1, None]
    assert second.scheme.size == 2
    assert first.first_block(bytes(32), 5).id != second.first_block(bytes(32), 5).id
    assert [broker.name for broker in all_brokers(genesis)] == list(FOUR)


def test_a_shard_has_to_be_named_where_there_are_several() -> None:
    assert committee_of(network(FOUR), None).shard == committee_of(network(FOUR), 0).shard == 0
    several = network(FOUR, FOUR[:1])
    assert committee_of(several, 1).names == FOUR[:1]
    with pytest.raises(UnknownShardError, match="has these shards: 0, 1; one of them has to be named"):
        committee_of(several, None)
    for shard in (-1, 2):
        with pytest.raises(UnknownShardError, match=f"has these shards: 0, 1; {shard} is none"):
            committee_of(several, shard)


def test_a_signature_for_one_shard_says_nothing_in_another() -> None:
    first, second = (instance_of(bytes(32), 4, shard=shard) for shard in (0, 1))
    assert first.vote_message(1, bytes(32)) != second.vote_message(1, bytes(32))
    assert first.vote_message(1, bytes(32)) != instance_of(bytes(32), 4, epoch=1).vote_message(1, bytes(32))


def test_a_member_signs_what_its_committee_checks() -> None:
    keys = [MemberKey.from_seed(bytes([seed]) * 32) for seed in range(2)]
    scheme = scheme_of([key.public for key in keys])
    signature = signer_of(1, keys[1]).sign(b"said")
    assert scheme.verify(1, b"said", signature)
    assert not scheme.verify(0, b"said", signature)
