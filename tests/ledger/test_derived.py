"""The entries of the indices that blocks should have, where a batch has receipts in several of them."""

from __future__ import annotations

import msgspec
import pytest
from tests.application.world import World
from tests.replica.driver import MemoryStore

from parley.application.application import Application
from parley.application.keeping import RECEIPTS, Keeper
from parley.applications import DATA_SHARD
from parley.ledger import layout
from parley.ledger.derived import Derived
from parley.model.receipts import Leaf
from parley.modules.publishing.tables import OFFSETS
from parley.store.interface import KeyValue


def story() -> tuple[World, bytes]:
    """A batch that comes too early, is published, and comes again; the digest of it."""
    world = World()
    alice = world.client("alice")
    world.topic("wards")
    first, second = (world.publication(alice, "wards") for _ in range(2))
    codes = [world.order_one(batch).code for batch in (second, first, second, second, first)]
    assert codes == ["OutOfSequence", "Ok", "Ok", "Duplicate", "Duplicate"]
    return world, second.digest


def derived(world: World, state: KeyValue | None = None) -> Derived:
    receipts = {
        layout.receipts(height): msgspec.msgpack.encode(outcome.leaves)
        for height, outcome in enumerate(world.outcomes, 1)
    }
    return Derived(world.keeper, MemoryStore(receipts.items()), state or world.store)


def wrong(world: World, state: KeyValue | None = None) -> dict[bytes, set[bytes | None]]:
    """By entry, what blocks say that it should be."""
    found: dict[bytes, set[bytes | None]] = {}
    for height, outcome in enumerate(world.outcomes, 1):
        for key, value in derived(world, state).wrong(height, outcome.leaves):
            found.setdefault(key, set()).add(value)
    return found


def test_what_execution_wrote_is_right_for_every_block() -> None:
    world, digest = story()
    place = world.record(RECEIPTS, digest)
    assert place is not None
    assert (place.height, place.final, place.place) == (5, True, 1)
    assert not wrong(world)


@pytest.mark.parametrize("value", [None, b"", b"garbage"])
def test_an_entry_that_is_missing_or_cannot_be_read_should_be_what_execution_wrote(
    value: bytes | None,
) -> None:
    world, digest = story()
    for key in (RECEIPTS.place(digest), OFFSETS.place("wards", 0, 1)):
        right = world.store.get(key)
        damaged = world.store.frozen()
        damaged.write([(key, value)])
        found = wrong(world, damaged)
        assert set(found) == {key}
        assert right in found[key]


def test_an_entry_that_leads_to_a_worse_receipt_is_wrong() -> None:
    world, digest = story()
    key = RECEIPTS.place(digest)
    early = dict(world.outcomes[2].writes)[key]
    damaged = world.store.frozen()
    damaged.write([(key, early)])
    assert world.store.get(key) in wrong(world, damaged)[key]


def test_an_entry_that_leads_to_a_block_that_does_not_give_it_is_wrong() -> None:
    world, digest = story()
    place = world.record(RECEIPTS, digest)
    assert place is not None
    key = RECEIPTS.place(digest)
    for height in (1, 4, 6, 99):
        damaged = world.store.frozen()
        damaged.write([(key, msgspec.msgpack.encode(msgspec.structs.replace(place, height=height)))])
        assert world.store.get(key) in wrong(world, damaged)[key]


class Counted(Keeper):
    """Counts the leaves that are read."""

    def __init__(self, world: World) -> None:
        super().__init__(_CountingApplication(DATA_SHARD, self), world.machine)  # type: ignore[arg-type]
        self.read = 0


class _CountingApplication:
    def __init__(self, application: Application, counted: Counted) -> None:
        self._application = application
        self._counted = counted

    def __getattr__(self, name: str) -> object:
        return getattr(self._application, name)

    def decode_leaf(self, data: bytes) -> Leaf:
        self._counted.read += 1
        return self._application.decode_leaf(data)


def leaves_read(count: int) -> int:
    """For all blocks, after so many fresh sessions have sent one batch each with a wrong sequence."""
    world = World()
    alice = world.client("alice")
    world.topic("wards")
    sessions = (index.to_bytes(16, "big") for index in range(count))
    batches = [world.publication(alice, "wards", session=session, sequence=7) for session in sessions]
    for _ in range(3):  # they are ordered again and again, and each time their receipts move on
        assert {receipt.code for receipt in world.order(*batches)} == {"OutOfSequence"}
    keeper = Counted(world)
    looked = Derived(keeper, derived(world)._store, world.store)
    for height, outcome in enumerate(world.outcomes, 1):
        assert not list(looked.wrong(height, outcome.leaves))
    return keeper.read


def test_batches_with_a_wrong_sequence_in_fresh_sessions_cost_the_search_for_damage_no_square_of_them() -> (
    None
):
    few, many = leaves_read(20), leaves_read(80)
    assert many < 5 * few
