"""Entries in memory are those of a dictionary, in the order of their keys, however many were added and removed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.store import memory
from parley.store.memory import MemoryStore

keys = st.lists(st.sampled_from([b"\0", b"a", b"b", b"\xff"]), min_size=1, max_size=4).map(b"".join)
writes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), max_size=200)


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(keys, st.binary(max_size=2), max_size=40), writes, keys, keys)
def test_entries_are_those_of_a_sorted_dictionary(
    start: dict[bytes, bytes],
    changes: list[tuple[bytes, bytes | None]],
    prefix: bytes,
    first: bytes,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "PIECE", 4)  # so that pieces are split and go
        entries, wanted = MemoryStore(start), dict(start)
        before = entries.frozen()
        entries.write(changes)
        for key, value in changes:
            if value is None:
                wanted.pop(key, None)
            else:
                wanted[key] = value
        ordered = sorted(wanted.items())
        assert list(entries.scan(b"")) == ordered
        assert list(entries.scan(prefix)) == [one for one in ordered if one[0].startswith(prefix)]
        assert list(entries.scan(prefix, first)) == [
            one for one in ordered if one[0].startswith(prefix) and one[0] >= first
        ]
        for key in (prefix, prefix + first):
            found = max((one for one in ordered if prefix <= one[0] <= key), default=None)
            under = found if found is not None and found[0].startswith(prefix) else None
            assert entries.last_at_or_before(prefix, key) == under
        assert len(entries) == len(wanted)
        assert all(entries.get(key) == wanted.get(key) for key, _ in changes)
        assert list(before.scan(b"")) == sorted(start.items())
