"""Writes on their way are visible at once, in order, and gone from the overlay when they have landed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replica.driver import MemoryStore

from parley.replica.memory import Overlay

keys = st.binary(max_size=2)
entries = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), max_size=8)


def test_a_written_value_hides_the_stored_one_and_a_deletion_hides_it_too() -> None:
    overlay = Overlay(MemoryStore([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]))
    overlay.write([(b"a", b"9"), (b"b", None), (b"d", b"4")])
    assert [overlay.get(key) for key in (b"a", b"b", b"c", b"d", b"e")] == [b"9", None, b"3", b"4", None]
    assert list(overlay.scan(b"")) == [(b"a", b"9"), (b"c", b"3"), (b"d", b"4")]


def test_a_scan_keeps_to_its_prefix_and_to_key_order() -> None:
    overlay = Overlay(MemoryStore([(b"p3", b""), (b"q", b""), (b"p1", b"")]))
    overlay.write([(b"p2", b""), (b"o", b""), (b"p0", b"")])
    assert [key for key, _ in overlay.scan(b"p")] == [b"p0", b"p1", b"p2", b"p3"]


def test_a_scan_that_is_broken_off_has_read_no_more_than_it_gave() -> None:
    class Counting(MemoryStore):
        read = 0

        def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
            for entry in super().scan(prefix, start):
                self.read += 1
                yield entry

    store = Counting((b"p%d" % number, b"") for number in range(9))
    overlay = Overlay(store)
    overlay.write([(b"p0", b"new")])
    assert list(islice(overlay.scan(b"p"), 2)) == [(b"p0", b"new"), (b"p1", b"")]
    assert store.read < 6


def test_cleared_the_overlay_shows_the_store_alone() -> None:
    overlay = Overlay(MemoryStore([(b"a", b"1")]))
    overlay.write([(b"a", None), (b"b", b"2")])
    overlay.clear()
    assert list(overlay.scan(b"")) == [(b"a", b"1")]
    assert overlay.get(b"b") is None


@settings(derandomize=True, deadline=None, max_examples=100)
@given(entries, st.lists(entries, max_size=4), keys)
def test_an_overlay_reads_as_the_store_will_read(
    before: list[tuple[bytes, bytes | None]], writes: list[list[tuple[bytes, bytes | None]]], prefix: bytes
) -> None:
    store, landed = MemoryStore(), MemoryStore()
    for target in (store, landed):
        target.write(before)
    overlay = Overlay(store)
    for write in writes:
        overlay.write(write)
        landed.write(write)
    assert list(overlay.scan(prefix)) == list(landed.scan(prefix))
    assert all(overlay.get(key) == landed.get(key) for key in [prefix, *landed.entries, *store.entries])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(entries, entries, keys, keys)
def test_a_scan_from_a_key_on_gives_what_the_store_will_give(
    before: list[tuple[bytes, bytes | None]],
    written: list[tuple[bytes, bytes | None]],
    prefix: bytes,
    start: bytes,
) -> None:
    store, landed = MemoryStore(), MemoryStore()
    for target in (store, landed):
        target.write(before)
    overlay = Overlay(store)
    overlay.write(written)
    landed.write(written)
    assert list(overlay.scan(prefix, start)) == list(landed.scan(prefix, start))
