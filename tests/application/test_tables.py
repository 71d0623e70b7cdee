"""Keys of tables: they give their tuples back, sort as these do, and no table takes a key of another."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.application.state import State
from parley.application.tables import (
    HASH,
    LARGE,
    NUMBER,
    POSITION,
    REST,
    SESSION,
    TEXT,
    Part,
    Record,
    Table,
    encode_value,
)
from parley.applications import DATA_SHARD
from parley.ledger import layout
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.store.memory import MemoryStore


class Note(Record, frozen=True):
    text: str


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
VALUES: Mapping[Part, st.SearchStrategy[Any]] = {
    TEXT: texts | st.sampled_from(("", "a", "ab", "a/b", "é")),
    NUMBER: st.integers(0, 2**32 - 1) | st.integers(0, 3),
    LARGE: st.integers(0, 2**64 - 1) | st.integers(0, 3),
    POSITION: st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
    HASH: st.binary(min_size=32, max_size=32) | st.sampled_from((bytes(32), b"\xff" * 32)),
    SESSION: st.binary(min_size=16, max_size=16),
    REST: st.binary(max_size=9),
}
AnyTable = Table[Any, *tuple[Any, ...]]
# All there are, and more: two texts in a row are the hardest to tell apart.
TABLES: dict[str, AnyTable] = {
    **DATA_SHARD.tables,
    "texts": Table("texts", bytes, TEXT, TEXT, TEXT, about="Three texts."),
    "mixed": Table("mixed", Note, NUMBER, TEXT, POSITION, TEXT, about="Texts between numbers."),
}
tables = st.sampled_from(sorted(TABLES)).map(TABLES.__getitem__)


def values(parts: tuple[Part, ...]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(VALUES[part] for part in parts))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[AnyTable, list[tuple[Any, ...]]]:
    """A table and some tuples of it, of which many begin alike."""
    table = draw(tables)
    first = draw(values(table.parts))
    others = draw(st.lists(st.tuples(values(table.parts), st.integers(0, len(table.parts))), max_size=6))
    return table, [first, *((*first[:shared], *other[shared:]) for other, shared in others)]


@given(drawn())
def test_a_key_gives_its_tuple_back(of: tuple[AnyTable, list[tuple[Any, ...]]]) -> None:
    table, tuples = of
    for one in tuples:
        assert table.unpack(table.key(*one)) == one
        assert table.leading(table.key(*one)) == (one, b"")
        assert DATA_SHARD.table_of(table.key(*one)) is DATA_SHARD.tables.get(table.name)


@given(drawn())
def test_keys_sort_as_their_tuples(of: tuple[AnyTable, list[tuple[Any, ...]]]) -> None:
    table, tuples = of
    assert [table.unpack(key) for key in sorted(table.key(*one) for one in tuples)] == sorted(tuples)
    assert len({table.key(*one) for one in tuples}) == len(set(tuples))


@given(drawn(), st.data())
def test_leading_values_are_the_prefix_of_exactly_those_that_begin_with_them(
    of: tuple[AnyTable, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    table, tuples = of
    whole = len(table.parts) - (REST in table.parts)  # what is left may go on
    count = data.draw(st.integers(0, whole))
    first = tuples[0][:count]
    prefix = table.prefix(*first)
    for one in tuples:
        assert table.key(*one).startswith(prefix) == (one[:count] == first)
    assert table.places(*first) == (layout.INDICES if table.index else layout.ENTRIES) + prefix


@given(drawn(), st.data())
def test_of_a_prefix_the_complete_parts_are_found(
    of: tuple[AnyTable, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    table, (one, *_) = of
    if REST in table.parts:
        return
    key = table.key(*one)
    cut = key[: data.draw(st.integers(len(table.prefix()), len(key)))]
    found, rest = table.leading(cut)
    assert found == one[: len(found)]
    assert table.prefix(*found) + rest == cut
    if len(found) < len(one):
        assert not rest.startswith(table.prefix(*one[: len(found) + 1])[len(table.prefix(*found)) :])


@given(drawn(), tables, st.binary(min_size=1, max_size=3))
def test_foreign_keys_are_refused(
    of: tuple[AnyTable, list[tuple[Any, ...]]], other: AnyTable, more: bytes
) -> None:
    table, (one, *_) = of
    key = table.key(*one)
    if other is not table:
        with pytest.raises(ValueError, match="not a key of table"):
            other.unpack(key)
        with pytest.raises(ValueError, match="not a key of table"):
            other.leading(key)
        assert not other.is_sound(key, encode_value(0))
    if REST not in table.parts:
        for wrong in (key + more, key[:-1], table.name.encode(), b""):
            with pytest.raises(ValueError, match="not a key of table"):
                table.unpack(wrong)


@pytest.mark.parametrize("key", [b"", b"head", b"/", b"/head/", b"heads/a", b"\xff\xfe/a", b"khead/a"])
def test_what_begins_with_no_tables_name_belongs_to_none(key: bytes) -> None:
    assert DATA_SHARD.table_of(key) is None


def test_a_text_that_is_not_one_is_refused() -> None:
    key = HEADS.key("open", 0)
    with pytest.raises(ValueError, match="decode"):
        HEADS.unpack(key.replace(b"open", b"\xff\xfe"))
    assert not HEADS.is_sound(key.replace(b"open", b"\xff\xfe"), encode_value(PartitionRecord(0, 0)))
    assert HEADS.is_sound(key, encode_value(PartitionRecord(0, 0)))
    assert not HEADS.is_sound(key, b"\xc1")


def test_a_tuple_of_another_shape_has_no_key() -> None:
    table: AnyTable = TABLES["mixed"]
    for wrong in ((), (1, "a", (1, 2)), (1, "a", (1, 2), "b", "c")):
        with pytest.raises(ValueError, match="zip"):
            table.key(*wrong)
    for number in (-1, 2**32):
        with pytest.raises((OverflowError, ValueError)):
            table.key(number, "a", (1, 2), "b")


def test_names_of_tables_are_no_prefixes_of_others_keys() -> None:
    for one in TABLES.values():
        for other in TABLES.values():
            assert one is other or not other.prefix().startswith(one.prefix())


# -- tables over the state of a block ------------------------------------------------------------------------------------

NOTES: Table[Note, str, int] = Table("notes", Note, TEXT, NUMBER, about="Notes.")
SUMS: Table[int, str] = Table("sums", int, TEXT, about="Sums.")
places = st.tuples(st.sampled_from(("a", "ab", "b")), st.integers(0, 3))
writes = st.lists(st.tuples(places, st.none() | st.text(max_size=2)), max_size=12)


def written(state: State) -> MemoryStore:
    """A store with what a block wrote."""
    store = MemoryStore()
    store.write((layout.ENTRIES + key, value) for key, value in state.changes())
    return store


def apply(
    state: State, model: dict[tuple[str, int], str], changes: list[tuple[tuple[str, int], str | None]]
) -> None:
    for key, text in changes:
        if text is None:
            NOTES.delete(state, *key)
            model.pop(key, None)
        else:
            NOTES.put(state, *key, record=Note(text))
            model[key] = text


@given(writes, writes, st.integers(1, 5))
def test_a_table_in_a_block_is_what_was_stored_with_what_was_written(
    before: list[tuple[tuple[str, int], str | None]],
    now: list[tuple[tuple[str, int], str | None]],
    limit: int,
) -> None:
    model: dict[tuple[str, int], str] = {}
    first = State(MemoryStore())
    apply(first, model, before)
    store, stored = written(first), sorted(model)
    state = State(store)
    apply(state, model, now)
    for name in ("a", "ab", "b", ""):
        under = sorted(key for key in model if not name or key[0] == name)
        leading = (name,) if name else ()
        assert NOTES.scan(state, *leading) == [(key, Note(model[key])) for key in under]
        assert NOTES.first(state, limit, *leading) == under[:limit]
        known = [key for key in stored if not name or key[0] == name]
        assert NOTES.first_stored(state, limit, *leading) == known[:limit]
        assert list(NOTES.keys_stored(store, *leading)) == known
    for key in {key for key, _ in chain(before, now)}:
        found = NOTES.get(state, *key)
        assert (None if found is None else found.text) == model.get(key)
        assert NOTES.has(state, *key) == (key in model)
        assert state.read(NOTES, *key) == found
    assert {key: record.text for key, record in NOTES.scan_stored(written_over(store, state))} == model


def written_over(store: MemoryStore, state: State) -> MemoryStore:
    copy = store.frozen()
    copy.write((layout.ENTRIES + key, value) for key, value in state.changes())
    return copy


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3)), max_size=12))
def test_of_a_sum_that_is_zero_there_is_no_entry(added: list[tuple[str, int]]) -> None:
    state, sums = State(MemoryStore()), {"a": 0, "b": 0}
    for name, by in added:
        if sums[name] + by >= 0:
            SUMS.add(state, name, by=by)
            sums[name] += by
    assert {name: SUMS.count(state, name) for name in sums} == sums
    stored = {key[0]: total for key, total in SUMS.scan_stored(written(state))}
    assert stored == {name: total for name, total in sums.items() if total}
