"""A recent state reads as a full copy taken at its height would, or says that it is gone; never anything else."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.ledger import layout, recent
from parley.ledger.recent import LIMIT, HeightError, NotYet, RecentStates, TooOld
from parley.store.memory import MemoryStore

KEYS = [b"a", b"b", b"c", b"d"]
START = 7
steady = settings(derandomize=True, deadline=None)
blocks = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=2)), max_size=5)


class World:
    """A store, what is remembered of it, and a full copy of each height."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self.store = dict(entries)
        self.recent = RecentStates(self.store, START)
        self.height = START
        self.copies = {START: dict(self.store)}

    def apply(self, entries: list[tuple[bytes, bytes | None]]) -> None:
        self.height += 1
        self.recent.before_write(self.height, entries)
        for key, value in entries:
            if value is None:
                self.store.pop(key, None)
            else:
                self.store[key] = value
        self.copies[self.height] = dict(self.store)


@steady
@given(
    st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=2)),
    st.lists(blocks, min_size=1, max_size=12) | st.lists(blocks, min_size=LIMIT, max_size=LIMIT + 8),
)
def test_a_view_reads_as_a_copy_of_its_height_for_as_long_as_it_is_kept(
    entries: dict[bytes, bytes], history: list[list[tuple[bytes, bytes | None]]]
) -> None:
    world = World(entries)
    views = [world.recent.at(START)]
    for block in history:
        world.apply(block)
        views.append(world.recent.at(world.height))
        assert world.recent.lowest == max(START, world.height - LIMIT)
    for view in views:
        for key in KEYS:
            if view.height >= world.recent.lowest:
                assert view.get(key) == world.copies[view.height].get(key)
                assert world.recent.at(view.height).get(key) == view.get(key)
            else:
                with pytest.raises(TooOld):
                    view.get(key)


@steady
@given(st.lists(blocks, max_size=6), blocks)
def test_older_heights_read_the_same_while_a_block_is_about_to_be_written(
    history: list[list[tuple[bytes, bytes | None]]], block: list[tuple[bytes, bytes | None]]
) -> None:
    world = World({b"a": b"0"})
    for earlier in history:
        world.apply(earlier)
    world.recent.before_write(world.height + 1, block)
    for height, copy in world.copies.items():
        assert [world.recent.at(height).get(key) for key in KEYS] == [copy.get(key) for key in KEYS]


def test_heights_that_cannot_be_read_say_which_can() -> None:
    world = World({})
    for _ in range(LIMIT + 3):
        world.apply([(b"a", b"")])
    with pytest.raises(TooOld, match="that of 10 and later") as too_old:
        world.recent.at(9)
    assert (too_old.value.height, too_old.value.lowest) == (9, 10)
    with pytest.raises(NotYet, match="block 74 is the last") as not_yet:
        world.recent.at(75)
    assert (not_yet.value.height, not_yet.value.newest) == (75, 74)
    assert issubclass(TooOld, HeightError)
    assert issubclass(NotYet, HeightError)


@pytest.mark.parametrize("height", [START - 1, START, START + 2])
def test_a_block_out_of_order_is_not_taken(height: int) -> None:
    world = World({})
    with pytest.raises(AssertionError):
        world.recent.before_write(height, [])
    assert world.recent.lowest == START


def test_large_old_values_are_kept_for_fewer_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_BYTES", 1_000)
    world = World({b"a": bytes(400)})
    for number in range(6):
        world.apply([(b"a", bytes([number]) * 400)])
    assert world.recent.lowest == world.height - 2
    assert world.recent.at(world.height - 2).get(b"a") == world.copies[world.height - 2][b"a"]
    world.apply([(b"a", bytes(2_000))])
    world.apply([(b"a", b"")])
    assert world.recent.lowest == world.height
    assert world.recent.at(world.height).get(b"a") == b""


def test_what_a_block_has_read_is_not_read_again_before_it_is_replaced() -> None:
    store = {layout.APPLICATION + b"seen": b"old", layout.APPLICATION + b"unseen": b"old"}
    read: list[bytes] = []

    class Counted:
        def get(self, key: bytes) -> bytes | None:
            read.append(key)
            return store.get(key)

    remembered = RecentStates(Counted(), START)
    state = remembered.watched(START + 1, MemoryStore({b"seen": b"old"}))
    assert state.get(b"seen") == b"old"
    assert state.get(b"missing") is None
    assert dict(state.scan(b"")) == {b"seen": b"old"}
    names = (b"seen", b"missing", b"unseen")
    remembered.before_write(START + 1, [(layout.APPLICATION + name, b"new") for name in names])
    assert read == [layout.APPLICATION + b"unseen"]
    before = remembered.at(START)
    assert [before.get(layout.APPLICATION + name) for name in names] == [b"old", None, b"old"]


def test_what_execution_used_lately_is_not_asked_for_again_until_something_else_writes() -> None:
    store, asked = MemoryStore({layout.ENTRIES + b"a": b"1"}), list[bytes]()

    class Counted:
        def get(self, key: bytes) -> bytes | None:
            asked.append(key)
            return store.get(key)

        def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            return store.scan(prefix, start)

    remembered = RecentStates({}, START)
    first, second = layout.ENTRIES + b"a", layout.NODES + b"b"
    for height in (START + 1, START + 2):
        state = remembered.watched(height, Counted())
        assert [state.get(first), state.get(second)] == [b"1", None]
    assert asked == [first, second]
    remembered.executed([(first, None), (second, b"2"), (layout.INDICES + b"c", b"3")])
    state = remembered.watched(START + 3, Counted())
    assert [state.get(first), state.get(second)] == [None, b"2"]
    assert asked == [first, second]
    remembered.forget([first])
    state = remembered.watched(START + 4, Counted())
    assert [state.get(first), state.get(second)] == [b"1", b"2"]
    assert asked == [first, second, first]


def test_what_is_kept_of_execution_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "WARM_BYTES", 2_000)
    store = MemoryStore({layout.ENTRIES + bytes([number]): bytes(100) for number in range(50)})
    remembered = RecentStates({}, START)
    state = remembered.watched(START + 1, store)
    for key, value in store.scan(b""):
        assert state.get(key) == value
    assert len(remembered._warm) < 10
    assert remembered._warm._bytes <= 2_000
