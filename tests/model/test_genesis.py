"""What a genesis file says of its shards."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.application.world import ORGANISATIONS, actor, make_genesis

from parley.model.genesis import (
    Genesis,
    GenesisError,
    Shard,
    decode_genesis,
    encode_genesis,
    one_shard,
    sign_genesis,
)

A, B, C, D = (f"broker-{name}" for name in ORGANISATIONS)


def read(*shards: tuple[str, ...]) -> Genesis:
    """The file of a network with these shards, which all organisations have signed."""
    genesis = replace(make_genesis(), shards=tuple(Shard(members) for members in shards))
    signatures = tuple(sign_genesis(genesis, actor("anchor", name).secret) for name in ORGANISATIONS)
    return decode_genesis(encode_genesis(genesis, signatures))


def test_shards_are_lists_of_brokers_in_the_order_of_the_file() -> None:
    assert read((A, B, C, D)).shards == one_shard(make_genesis().brokers)
    assert [shard.members for shard in read((A, C), (B, C, D)).shards] == [(A, C), (B, C, D)]


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        (((A, B, C, D), ("broker-x",)), "shard 1 has the member broker-x, which is not in the file"),
        (((A, B, D, C),), "shard 0 does not list its members once each, in the order of the brokers"),
        (((A, B, B, C, D),), "shard 0 does not list its members once each"),
        (((A, B, C),), f"broker {D} is a member of no shard"),
        ((), "shards"),
        (((A, B, C, D), ()), "shards"),
    ],
)
def test_other_lists_are_refused(shards: tuple[tuple[str, ...], ...], problem: str) -> None:
    with pytest.raises(GenesisError, match=problem):
        read(*shards)
