"""What was written is there, all of it or nothing, in order, under one user, and never silently wrong."""

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict, WriteBatch

from parley.store.disk import open_store
from parley.store.errors import StoreError, StoreFailed
from parley.store.rocksdb.options import BLOB_BYTES, COMPACTED_FILES, FILE_BYTES, LEVEL_BYTES, MOVED_BLOBS
from parley.store.rocksdb.store import GATHERED_BYTES, RocksStore

SMALL = 1024 * 1024
keys = st.lists(st.sampled_from([b"\1", b"a", b"b", b"\xff"]), min_size=1, max_size=4).map(b"".join)
writes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=8)), max_size=12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def opened(path: Path, *, create: bool = True) -> RocksStore:
    return open_store(path, create=create, cache_bytes=SMALL)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.lists(st.tuples(writes, st.booleans(), st.booleans()), max_size=5))
def test_the_store_reads_as_a_sorted_map_also_after_it_was_opened_again(
    history: list[tuple[list[tuple[bytes, bytes | None]], bool, bool]],
) -> None:
    expected: dict[bytes, bytes | None] = {}
    with TemporaryDirectory() as folder:
        store = opened(Path(folder) / "store")
        for entries, sync, again in history:
            store.write(entries, sync=sync)
            expected.update(entries)
            if again:
                store.close()
                store = opened(Path(folder) / "store", create=False)
            there = {key: value for key, value in expected.items() if value is not None}
            assert all(store.get(key) == value for key, value in expected.items())
            for prefix in (b"", b"\0", b"a", b"ab", b"\xff", b"\xff\xff", b"b\xff", b"nothing"):
                found = [(key, there[key]) for key in sorted(there) if key.startswith(prefix)]
                assert list(store.scan(prefix)) == found
                for key in (b"\0", b"a", b"ab", b"b\1", b"\xff\xff\xff\xff\xff"):
                    assert list(store.scan(prefix, key)) == [entry for entry in found if entry[0] >= key]
                    below = [entry for entry in found if entry[0] <= prefix + key]
                    last = below[-1] if below else None
                    assert store.last_at_or_before(prefix, prefix + key) == last
        store.close()


def test_a_scan_shows_the_moment_it_was_started(path: Path) -> None:
    with opened(path) as store:
        store.write([(b"a1", b""), (b"a2", b"")], sync=False)
        scan = store.scan(b"a")
        store.write([(b"a1", None), (b"a3", b"")], sync=False)
        assert list(scan) == [(b"a1", b""), (b"a2", b"")]
        assert list(store.scan(b"a")) == [(b"a2", b""), (b"a3", b"")]


def test_the_last_of_several_values_for_one_key_counts(path: Path) -> None:
    with opened(path) as store:
        store.write([(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None)], sync=True)
        assert list(store.scan(b"")) == [(b"a", b"2")]


def test_what_was_written_survives_the_death_of_the_process(path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from parley.store.disk import open_store\n"
        "store = open_store(pathlib.Path(sys.argv[1]), create=True)\n"
        "store.write([(b'a', b'1'), (b'b', b'2')], sync=True)\n"
        "os._exit(7)\n"
    )
    died = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert died.returncode == 7
    with opened(path, create=False) as store:
        assert list(store.scan(b"")) == [(b"a", b"1"), (b"b", b"2")]


def test_a_write_torn_by_a_crash_is_there_whole_or_not_at_all(tmp_path: Path, path: Path) -> None:
    states: list[list[tuple[bytes, bytes]]] = [[]]
    torn = tmp_path / "torn"
    with opened(path) as store:
        for round_ in range(4):
            store.write([(b"%d" % i, b"%d" % round_) for i in range(round_ + 3)], sync=True)
            states.append(list(store.scan(b"")))
        shutil.copytree(path, torn)
    [log] = torn.glob("*.log")
    whole = log.read_bytes().rstrip(b"\0")
    seen = []
    for length in range(40, len(whole) + 1, 7):
        log.write_bytes(whole[:length])
        copy = tmp_path / f"at {length}"
        shutil.copytree(torn, copy)
        with opened(copy) as store:
            seen.append(states.index(list(store.scan(b""))))
    assert seen == sorted(seen)
    assert set(seen) >= set(range(len(states) - 1))


def test_a_store_has_one_user(path: Path) -> None:
    with opened(path), pytest.raises(StoreError, match="in use") as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert caught.value.path == path
    opened(path).close()


def test_a_store_has_one_process(path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from parley.store.disk import open_store\n"
        "from parley.store.errors import StoreError\n"
        "try:\n"
        "    open_store(pathlib.Path(sys.argv[1]), create=True)\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    with opened(path):
        other = subprocess.run(
            [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
        )
    assert f"The store in {path} is in use" in other.stdout


def test_a_missing_store_is_made_only_when_asked(path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        opened(path, create=False)
    assert not path.exists()
    opened(path, create=True).close()
    assert path.stat().st_mode & 0o777 == 0o700
    opened(path, create=False).close()


def test_an_empty_directory_is_a_place_for_a_store_but_no_store(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreError, match="holds no store"):
        opened(path, create=False)
    assert list(path.iterdir()) == []
    opened(path, create=True).close()


def test_a_place_that_cannot_hold_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for place in (tmp_path / "file", tmp_path / "file" / "store", tmp_path / "missing" / "store"):
        with pytest.raises(StoreError) as caught:
            opened(place)
        assert str(place) in str(caught.value)


def test_a_foreign_directory_is_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "holiday.txt").write_text("sun")
    for create in (False, True):
        with pytest.raises(StoreError, match="holds no store"):
            opened(path, create=create)
    assert [file.name for file in path.iterdir()] == ["holiday.txt"]


def test_the_database_of_another_program_is_refused_and_not_changed(path: Path) -> None:
    foreign = Rdict(str(path), Options(raw_mode=True))
    foreign[b"a"] = b"1"
    foreign.close()
    for create in (False, True):
        with pytest.raises(StoreError, match="not made by parley"):
            opened(path, create=create)
    again = Rdict(str(path), Options(raw_mode=True))
    assert list(again.items()) == [(b"a", b"1")]
    again.close()


def test_another_format_is_refused(path: Path) -> None:
    opened(path).close()
    database = Rdict(str(path), Options(raw_mode=True))
    batch = WriteBatch(raw_mode=True)
    batch.put(b"\0format", b"parley store 1")
    database.write(batch)
    database.close()
    with pytest.raises(StoreError, match=r"parley store 1.*Use the version that wrote it"):
        opened(path)


def test_an_interrupted_creation_is_finished_by_the_next(path: Path) -> None:
    Rdict(str(path), Options(raw_mode=True)).close()
    with pytest.raises(StoreError, match="interrupted"):
        opened(path, create=False)
    opened(path, create=True).close()
    opened(path, create=False).close()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """A disk that refuses files above a size, as a full one refuses all."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


HANDED_ON: dict[str, Callable[[RocksStore], object]] = {
    "sync": RocksStore.sync,
    "synced write": lambda store: store.write([], sync=True),
    "scan": lambda store: store.scan(b"a"),
    "last": lambda store: store.last_at_or_before(b"a", b"a"),
    "frozen": RocksStore.frozen,
    "limit": lambda store: store.write([(b"z", bytes(GATHERED_BYTES))], sync=False),
}


def test_a_write_that_fails_is_not_done_and_no_other_is_taken(path: Path) -> None:
    with opened(path) as store:
        store.write([(b"a", b"before")], sync=True)
        with (
            largest_file(100_000),
            pytest.raises(StoreFailed, match=r"could not be written.*free space") as caught,
        ):
            store.write([(b"a", b"after"), (b"b", bytes(300_000))], sync=True)
        assert caught.value.path == path
        require_broken(store)
    with opened(path, create=False) as store:
        assert list(store.scan(b"")) == [(b"a", b"before")]


@pytest.mark.parametrize("way", HANDED_ON)
def test_writes_that_cannot_be_handed_on_are_all_undone_and_no_other_is_taken(path: Path, way: str) -> None:
    with opened(path) as store:
        store.write([(b"a", b"before")], sync=True)
        with largest_file(100_000):
            store.write([(b"a", b"after"), (b"b", bytes(200_000))], sync=False)
            store.write([(b"c", b"also")], sync=False)
            assert (store.get(b"a"), store.get(b"c")) == (b"after", b"also")
            with pytest.raises(StoreFailed, match=r"could not be written.*free space"):
                HANDED_ON[way](store)
        require_broken(store)
    with opened(path, create=False) as store:
        assert list(store.scan(b"")) == [(b"a", b"before")]


def test_writes_that_cannot_be_handed_on_at_the_end_are_not_lost_in_silence(path: Path) -> None:
    store = opened(path)
    store.write([(b"a", b"before")], sync=True)
    with largest_file(100_000):
        store.write([(b"a", b"after"), (b"b", bytes(200_000))], sync=False)
        with pytest.raises(StoreFailed, match=r"could not be written.*free space"):
            store.close()
    store.close()
    with opened(path, create=False) as again:
        assert list(again.scan(b"")) == [(b"a", b"before")]


def require_broken(store: RocksStore) -> None:
    assert (store.get(b"a"), store.get(b"b"), store.get(b"c")) == (b"before", None, None)
    assert list(store.scan(b"")) == [(b"a", b"before")]
    for sync in (False, True):
        with pytest.raises(StoreFailed, match="takes no writes since one failed"):
            store.write([(b"c", b"")], sync=sync)
    with pytest.raises(StoreFailed, match="takes no writes since one failed"):
        store.sync()
    assert store.get(b"c") is None


# -- writes that wait for the next sync --------------------------------------------------------------------------------


def on_disk(path: Path, copy: Path) -> list[tuple[bytes, bytes]]:
    """What another process would find now if this one were gone."""
    shutil.copytree(path, copy)
    with opened(copy, create=False) as store:
        return list(store.scan(b""))


def test_reads_see_what_was_gathered_and_what_it_deletes(path: Path) -> None:
    with opened(path) as store:
        store.write([(b"a1", b"old"), (b"a2", b"old"), (b"a4", b"old")], sync=True)
        store.write([(b"a1", b"new"), (b"a2", None), (b"a3", b"new"), (b"a5", b"new")], sync=False)
        store.write([(b"a5", None)], sync=False)
        assert [store.get(b"a%d" % i) for i in range(1, 6)] == [b"new", None, b"new", b"old", None]


@pytest.mark.parametrize("way", ["scan", "scan from a key", "last", "frozen"])
def test_scans_and_frozen_views_see_what_was_gathered(path: Path, way: str) -> None:
    with opened(path) as store:
        store.write([(b"a1", b"old"), (b"a2", b"old"), (b"a3", b"old")], sync=True)
        store.write([(b"a1", b"new"), (b"a3", None)], sync=False)
        match way:
            case "scan":
                assert list(store.scan(b"a")) == [(b"a1", b"new"), (b"a2", b"old")]
            case "scan from a key":
                assert list(store.scan(b"a", b"a1")) == [(b"a1", b"new"), (b"a2", b"old")]
            case "last":
                assert store.last_at_or_before(b"a", b"a9") == (b"a2", b"old")
            case _:
                view = store.frozen()
                store.write([(b"a1", b"later"), (b"a3", b"later")], sync=False)
                assert list(view.scan(b"a")) == [(b"a1", b"new"), (b"a2", b"old")]
                assert (view.get(b"a1"), view.get(b"a3")) == (b"new", None)


@pytest.mark.parametrize("later", ["sync", "synced write", "empty synced write"])
def test_overwrites_and_deletions_keep_their_order_into_the_next_sync(
    path: Path, tmp_path: Path, later: str
) -> None:
    with opened(path) as store:
        store.write([(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], sync=True)
        store.write([(b"a", None), (b"b", b"2")], sync=False)
        store.write([(b"a", b"3"), (b"b", None), (b"c", None), (b"c", b"3")], sync=False)
        assert on_disk(path, tmp_path / "before") == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
        if later == "sync":
            store.sync()
        else:
            store.write([(b"d", b"4")] if later == "synced write" else [], sync=True)
        expected = [(b"a", b"3"), (b"c", b"3")] + [(b"d", b"4")] * (later == "synced write")
        assert on_disk(path, tmp_path / "after") == list(store.scan(b"")) == expected


def test_a_sync_also_covers_what_was_handed_on_without_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        flushed: list[bool] = []
        watched = Watched(store._db, flushed)
        monkeypatch.setattr(store, "_db", watched)
        store.write([(b"a", b"1")], sync=False)
        assert dict(store.scan(b"")) == {b"a": b"1"}
        assert flushed == []
        store.write([], sync=True)
        assert flushed == [True]
        monkeypatch.undo()


class Watched:
    """A database that notes how its log is flushed."""

    def __init__(self, db: Rdict, flushed: list[bool]) -> None:
        self._db = db
        self._flushed = flushed

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def flush_wal(self, sync: bool) -> None:
        self._db.flush_wal(sync)
        self._flushed.append(sync)


def test_more_than_the_limit_is_not_gathered(path: Path, tmp_path: Path) -> None:
    piece = bytes(GATHERED_BYTES // 4)
    with opened(path) as store:
        for number in range(3):
            store.write([(b"%d" % number, piece)], sync=False)
        assert on_disk(path, tmp_path / "below") == []
        store.write([(b"3", piece)], sync=False)
        assert [key for key, _ in on_disk(path, tmp_path / "above")] == [b"0", b"1", b"2", b"3"]
        for _ in range(40):  # the same key again and again
            store.write([(b"0", piece)], sync=False)
            gathered = sum(len(value or b"") for value in store._gathered.values())
            assert gathered <= GATHERED_BYTES


def test_a_write_that_is_interrupted_leaves_no_part_of_it(path: Path) -> None:
    def entries() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"new"
        raise RuntimeError("the rest cannot be had")

    with opened(path) as store:
        store.write([(b"a", b"old")], sync=False)
        with pytest.raises(RuntimeError):
            store.write(entries(), sync=False)
        with pytest.raises(AssertionError):
            store.write([(b"b", b"new"), (b"\0format", b"another")], sync=False)
        assert list(store.scan(b"")) == [(b"a", b"old")]


KILLED = """
import os, pathlib, signal, sys
from parley.store.disk import open_store
store = open_store(pathlib.Path(sys.argv[1]), create=True)
synced, size = int(sys.argv[2]), int(sys.argv[3])
for number in range(60):
    store.write([(b"%03d/%d" % (number, part), bytes(size)) for part in range(3)], sync=False)
    if number + 1 == synced:
        store.sync()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("synced", [0, 1, 30, 60])
@pytest.mark.parametrize("size", [10, 20_000])
def test_after_a_kill_all_that_was_synced_is_there_and_the_rest_in_order_and_never_half_of_a_write(
    path: Path, synced: int, size: int
) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, path, str(synced), str(size)], check=False)
    assert died.returncode == -9
    with opened(path, create=False) as store:
        found = [key for key, _ in store.scan(b"")]
    there = len(found) // 3
    assert found == [b"%03d/%d" % (number, part) for number in range(there) for part in range(3)]
    assert there >= synced
    # Small writes wait together for a sync that never comes; of large ones only the last few wait.
    assert there == synced if size == 10 else there > 60 - GATHERED_BYTES // (3 * size) - 2


@pytest.mark.parametrize(("size", "kind"), [(BLOB_BYTES // 2, "sst"), (2 * BLOB_BYTES, "blob")])
def test_damaged_data_is_an_error_and_not_the_end_of_a_scan(path: Path, size: int, kind: str) -> None:
    with opened(path) as store:
        store.write([(b"%d" % i, bytes([i]) * size) for i in range(100)], sync=True)
        store._db.flush()
    tables = list(path.glob(f"*.{kind}"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        for at in range(1_000, len(data) - 5_000, 500):
            data[at] ^= 0xFF
        table.write_bytes(data)
    with opened(path, create=False) as store:
        with pytest.raises(StoreFailed, match="cannot be scanned"):
            list(store.scan(b""))
        with pytest.raises(StoreFailed, match="cannot read an entry"):
            [store.get(b"%d" % i) for i in range(100)]


def test_a_closed_store_says_so(path: Path) -> None:
    store = opened(path)
    store.close()
    store.close()
    with pytest.raises(StoreFailed, match="is closed"):
        store.get(b"a")
    with pytest.raises(StoreFailed, match="is closed"):
        store.scan(b"a")
    for sync in (False, True):
        with pytest.raises(StoreFailed, match="is closed"):
            store.write([(b"a", b"")], sync=sync)
    with pytest.raises(StoreFailed, match="is closed"):
        store.sync()
    with pytest.raises(StoreFailed, match="is closed"):
        store.get(b"a")


def test_the_stores_own_keys_are_not_to_be_written(path: Path) -> None:
    with opened(path) as store:
        for value in (None, b"parley store 1"):
            with pytest.raises(AssertionError):
                store.write([(b"\0format", value)], sync=False)
    opened(path, create=False).close()


def test_a_frozen_view_shows_one_moment_whatever_is_written_later(path: Path) -> None:
    with opened(path) as store:
        store.write([(b"a/1", b"one"), (b"a/2", b"two"), (b"b", b"three")], sync=True)
        view = store.frozen()
        store.write([(b"a/1", None), (b"a/2", b"new"), (b"a/3", b"more")], sync=True)
        assert (view.get(b"a/1"), view.get(b"a/2"), view.get(b"a/3")) == (b"one", b"two", None)
        assert list(view.scan(b"a/")) == [(b"a/1", b"one"), (b"a/2", b"two")]
        assert list(view.scan(b"a/", b"a/1\0")) == [(b"a/2", b"two")]


def test_a_store_that_is_closed_ends_its_frozen_views_and_can_be_opened_again(path: Path) -> None:
    store = opened(path)
    store.write([(b"a", b"1")], sync=True)
    view = store.frozen()
    store.close()
    with pytest.raises(StoreFailed, match="is closed"):
        view.get(b"a")
    with opened(path, create=False) as again:
        assert again.get(b"a") == b"1"


def test_a_store_that_is_opened_again_has_the_cache_that_it_is_told(path: Path) -> None:
    """Once it had a small one of the library's, and every read of a large store loaded the whole index of a file."""
    capacity = "rocksdb.block-cache-capacity"
    for create in (True, False):
        with open_store(path, create=create, cache_bytes=12 * 1024 * 1024) as store:
            assert store._db.property_int_value(capacity) == 12 * 1024 * 1024


def test_compactions_are_small_also_in_a_store_that_exists(path: Path) -> None:
    for create in (True, False):
        with opened(path, create=create):
            newest = max(path.glob("OPTIONS-*"))
            said = dict(line.strip().split("=", 1) for line in newest.read_text().splitlines() if "=" in line)
            assert said["level0_file_num_compaction_trigger"] == str(COMPACTED_FILES)
            assert said["max_bytes_for_level_base"] == str(LEVEL_BYTES)
            assert said["target_file_size_base"] == str(FILE_BYTES)
            assert float(said["blob_garbage_collection_age_cutoff"]) == MOVED_BLOBS


# -- copies ------------------------------------------------------------------------------------------------------------


def held(path: Path) -> dict[bytes, bytes]:
    with opened(path, create=False) as store:
        return dict(store.scan(b""))


@contextmanager
def place_on_another_file_system() -> Iterator[Path]:
    """A folder in memory; skips the test where there is none."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("this system has no file system in memory")
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def test_a_copy_has_all_that_was_handed_on_and_nothing_that_came_later(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with opened(path) as store:
        store.write([(b"a", b"1"), (b"b", bytes(BLOB_BYTES * 2)), (b"c", b"1")], sync=True)
        store.write([(b"a", b"2"), (b"c", None)], sync=False)
        store.hand_on()
        store.write([(b"d", b"1")], sync=False)  # waits for the next sync
        store.copy_to(copy)
        store.write([(b"a", b"3"), (b"e", b"1")], sync=True)
        expected = {b"a": b"2", b"b": bytes(BLOB_BYTES * 2)}
        assert held(copy) == expected
        assert copy.stat().st_mode & 0o777 == 0o700
        assert store.get(b"a") == b"3"
    assert held(copy) == expected
    assert held(path) == {**expected, b"a": b"3", b"d": b"1", b"e": b"1"}


def test_a_copy_links_the_tables_of_the_store_and_leaves_nothing_beside_them(
    path: Path, tmp_path: Path
) -> None:
    with opened(path) as store:
        store.write([(b"%d" % i, bytes(BLOB_BYTES * (i % 2))) for i in range(100)], sync=True)
        files = {file.name for file in path.iterdir()}
        store.copy_to(tmp_path / "copy")
        tables = [file for file in (tmp_path / "copy").iterdir() if file.suffix in {".sst", ".blob"}]
        assert {file.suffix for file in tables} == {".sst", ".blob"}
        assert all(file.stat().st_ino == (path / file.name).stat().st_ino for file in tables)
        new = {file.name for file in path.iterdir()} - files
        assert all(name.endswith((".sst", ".blob", ".log")) for name in new), new
        assert {file.name for file in tmp_path.iterdir()} == {"store", "copy"}


def test_a_copy_on_another_file_system_is_the_same_and_only_for_its_owner(path: Path) -> None:
    with place_on_another_file_system() as folder, opened(path) as store:
        if folder.stat().st_dev == path.stat().st_dev:
            pytest.skip("the tests' own folder is in memory, too")
        entries = [(b"%03d" % i, bytes([i]) * BLOB_BYTES) for i in range(100)]
        store.write(entries, sync=True)
        store.copy_to(folder / "copy")
        assert [file.name for file in folder.iterdir()] == ["copy"]
        assert (folder / "copy").stat().st_mode & 0o777 == 0o700
        assert held(folder / "copy") == dict(entries)


def test_a_copy_that_cannot_be_made_leaves_nothing_and_the_store_goes_on(path: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with opened(path) as store:
        store.write([(b"a", b"1")], sync=True)
        for place in ("there", "link", "missing/copy"):
            with pytest.raises(StoreError, match="cop") as caught:
                store.copy_to(tmp_path / place)
            assert str(tmp_path / place) in str(caught.value)
            assert not (path / "copying").exists()
        store.write([(b"b", b"1")], sync=True)
        store.copy_to(tmp_path / "copy")
    assert {file.name for file in tmp_path.iterdir()} == {"store", "there", "link", "copy"}
    assert held(tmp_path / "copy") == {b"a": b"1", b"b": b"1"}


def test_a_copy_that_finds_no_room_on_another_file_system_leaves_nothing_there(path: Path) -> None:
    with place_on_another_file_system() as folder, opened(path) as store:
        if folder.stat().st_dev == path.stat().st_dev:
            pytest.skip("the tests' own folder is in memory, too")
        store.write([(b"a", bytes(300_000))], sync=True)
        store._db.flush()
        with largest_file(100_000), pytest.raises(StoreError, match="File too large"):
            store.copy_to(folder / "copy")
        assert list(folder.iterdir()) == []
        store.write([(b"b", b"1")], sync=True)


def test_one_copy_is_made_at_a_time_and_one_that_was_interrupted_is_cleared_away(
    path: Path, tmp_path: Path
) -> None:
    with opened(path) as store:
        (path / "copying").mkdir()
        (path / "copying" / "part").write_bytes(b"of a copy")
        with pytest.raises(StoreError, match="being copied already"):
            store.copy_to(tmp_path / "copy")
    with opened(path) as store:
        store.copy_to(tmp_path / "copy")
    assert held(tmp_path / "copy") == {}


def test_a_store_that_is_only_read_or_closed_is_not_copied(path: Path, tmp_path: Path) -> None:
    opened(path).close()
    with (
        open_store(path, create=False, read_only=True) as store,
        pytest.raises(StoreError, match="reading only"),
    ):
        store.copy_to(tmp_path / "copy")
    with pytest.raises(StoreFailed, match="closed"):
        store.copy_to(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_whole_while_another_thread_writes(path: Path, tmp_path: Path) -> None:
    """Each write is a row of equal values, so a copy that had a part of one would show it."""
    copies = [tmp_path / f"copy {number}" for number in range(3)]
    with opened(path) as store, ThreadPoolExecutor(1) as other:
        copying = [other.submit(store.copy_to, copy) for copy in copies]
        rounds = 0
        while not all(one.done() for one in copying) or rounds < 3:
            store.write([(b"%d" % key, b"%08d" % rounds * 500) for key in range(20)], sync=True)
            rounds += 1
        for one in copying:
            one.result()
    seen = [held(copy) for copy in copies]
    assert all(len(set(found.values())) <= 1 and len(found) in {0, 20} for found in seen)
    last = [max(found.values(), default=b"") for found in seen]
    assert last == sorted(last)
