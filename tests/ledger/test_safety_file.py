"""What was persisted is read again, under one user, and a failure is never taken for a record."""

import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.consensus.chains import Committee

from parley.consensus.errors import SafetyRecordError
from parley.consensus.record import COPIES, MAX_RECORD, SLOTS, encode_record, recover_record, repairs
from parley.consensus.safety import initial_state
from parley.ledger import safety_file
from parley.ledger.safety_file import SIZE, SafetyFile, SafetyFileDamaged, SafetyFileError

FIRST = [b"record 0", b"record 1"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "safety"
    SafetyFile.create(path, FIRST)
    return path


def begins(copies: list[bytes], record: bytes) -> bool:
    return len(copies) == COPIES and all(
        copy.startswith(record) and len(copy) == MAX_RECORD for copy in copies
    )


def test_a_new_file_holds_the_first_records_and_is_its_owners_alone(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == SIZE
    with SafetyFile.open(path) as file:
        slots = file.read()
    assert len(slots) == SLOTS
    assert all(begins(copies, record) for copies, record in zip(slots, FIRST, strict=True))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("again", [False, True])
def test_each_slot_holds_the_last_record_persisted_there(path: Path, again: bool) -> None:
    records = [b"2" * 5_000, b"3" * 10, b"4" * MAX_RECORD, b"5", b"6" * 100]
    file = SafetyFile.open(path)
    for number, record in enumerate(records, start=2):
        file.persist(number % SLOTS, record)
        if again:
            file.close()
            file = SafetyFile.open(path)
        other = FIRST[1] if number == 2 else records[number - 3]
        assert begins(file.read()[number % SLOTS], record)
        assert begins(file.read()[(number + 1) % SLOTS], other)
    file.close()


def real_records(path: Path) -> list[int]:
    """Fill the file with records as consensus makes them; where the four copies begin, the older record's first."""
    committee = Committee()
    state = initial_state(committee.instance, 1, committee.genesis_qc)
    records = [encode_record(number, replace(state, last_voted_view=number)) for number in range(4)]
    with SafetyFile.open(path) as file:
        for number, record in enumerate(records):
            file.persist(number % SLOTS, record)
        assert recover_record(file.read(), str(path))[1].last_voted_view == 3
    content = path.read_bytes()
    places = [
        at for record in records[2:] for at in range(0, SIZE, MAX_RECORD) if content[at:].startswith(record)
    ]
    assert len(places) == SLOTS * COPIES
    return places


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("copy", range(SLOTS * COPIES))
@pytest.mark.parametrize("position", [0, 31, 39, 43, 50, 100])
def test_a_damaged_copy_is_mended_from_the_other(path: Path, copy: int, position: int) -> None:
    """T19: in its checksum, number, length or content; of the newest record or the one before it."""
    places = real_records(path)
    whole = path.read_bytes()
    flip(path, places[copy] + position)
    with SafetyFile.open(path) as file:
        slots = file.read()
        assert recover_record(slots, str(path))[1].last_voted_view == 3
        (repair,) = repairs(slots)
        assert repair.damaged
        file.write(repair.slot, repair.copy, repair.record)
        assert repairs(file.read()) == []
    assert path.read_bytes() == whole


@pytest.mark.parametrize("copies", [(0, 1), (2, 3)])
def test_two_damaged_copies_of_a_record_stop_the_replica(path: Path, copies: tuple[int, int]) -> None:
    places = real_records(path)
    for copy in copies:
        flip(path, places[copy] + 60)
    with SafetyFile.open(path) as file, pytest.raises(SafetyRecordError, match=f"{path} cannot be used"):
        recover_record(file.read(), str(path))


def test_a_sector_that_cannot_be_read_is_a_damaged_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = real_records(path)[2]
    read = os.pread

    def fails_there(descriptor: int, size: int, at: int) -> bytes:
        if at == bad:
            raise OSError(5, "Input/output error")
        return read(descriptor, size, at)

    monkeypatch.setattr(os, "pread", fails_there)
    with SafetyFile.open(path) as file:
        slots = file.read()
    assert recover_record(slots, str(path))[1].last_voted_view == 3
    assert [repair.damaged for repair in repairs(slots)] == [True]


def test_a_record_changes_no_byte_of_the_other_slot(path: Path) -> None:
    for slot in range(SLOTS):
        with SafetyFile.open(path) as file:
            before = file.read()[1 - slot]
            file.persist(slot, os.urandom(MAX_RECORD))
            assert file.read()[1 - slot] == before
    assert path.stat().st_size == SIZE


def test_the_second_copy_is_begun_when_the_first_is_on_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[bool]] = []
    write = os.pwrite
    with SafetyFile.open(path) as file:

        def watched(descriptor: int, record: bytes, offset: int) -> int:
            assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DSYNC
            written = write(descriptor, record, offset)
            seen.append([copy.startswith(b"record 2") for copy in file.read()[0]])
            return written

        monkeypatch.setattr(os, "pwrite", watched)
        file.persist(0, b"record 2")
    assert seen == [[True, False], [True, True]]


def test_an_existing_file_is_never_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(SafetyFileError, match="never overwritten") as caught:
        SafetyFile.create(path, [b"other 0", b"other 1"])
    assert caught.value.path == path
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_completed_is_not_there_at_all(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE - 1, before[1]))
    try:
        with pytest.raises(SafetyFileError, match="cannot be made"):
            SafetyFile.create(tmp_path / "safety", FIRST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SafetyFileError, match="cannot be made"):
        SafetyFile.create(tmp_path / "missing" / "safety", FIRST)


def test_one_user_at_a_time(path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from parley.ledger.safety_file import SafetyFile, SafetyFileError\n"
        "try:\n"
        "    SafetyFile.open(pathlib.Path(sys.argv[1]))\n"
        "except SafetyFileError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with SafetyFile.open(path):
        with pytest.raises(SafetyFileError, match="in use"):
            SafetyFile.open(path)
        other = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"The safety file {path} is in use" in other.stdout
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


@pytest.mark.parametrize("another", [False, True])
def test_a_file_that_was_moved_aside_before_it_was_locked_is_not_used(
    path: Path, another: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = safety_file._lock

    def late(path: Path, descriptor: int) -> None:
        path.rename(path.with_name("aside"))
        if another:
            SafetyFile.create(path, FIRST)
        lock(path, descriptor)

    monkeypatch.setattr(safety_file, "_lock", late)
    with pytest.raises(SafetyFileError, match="was replaced" if another else "was moved away"):
        SafetyFile.open(path)


def test_a_missing_file_stops_the_replica(tmp_path: Path) -> None:
    with pytest.raises(SafetyRecordError, match=r"is missing.*stays stopped"):
        SafetyFile.open(tmp_path / "safety")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SafetyRecordError, match="cannot be opened"):
        SafetyFile.open(tmp_path)


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1])
def test_a_file_of_another_size_stops_the_replica(path: Path, size: int) -> None:
    os.truncate(path, size)
    for _ in range(2):  # and is not kept locked
        with pytest.raises(SafetyFileDamaged, match=f"has {size} bytes"):
            SafetyFile.open(path)


def test_after_a_failed_write_nothing_is_persisted_any_more(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SafetyFile.open(path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_RECORD, before[1]))
        try:
            with pytest.raises(SafetyFileError, match="could not be written"):
                file.persist(1, b"record 3")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with pytest.raises(SafetyFileError, match="takes no record since"):
            file.persist(1, b"record 3")
        assert begins(file.read()[0], FIRST[0])


def test_a_part_of_a_record_is_not_a_record(path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SafetyFile.open(path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MAX_RECORD + 5, before[1]))
        try:
            with pytest.raises(SafetyFileError, match="only a part"):
                file.persist(1, b"record 3")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with pytest.raises(SafetyFileError, match="takes no record since"):
            file.persist(0, b"record 4")


def test_a_failed_sync_is_not_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with SafetyFile.open(path) as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fails)
            with pytest.raises(SafetyFileError, match="Input/output error"):
                file.persist(0, b"record 2")
        with pytest.raises(SafetyFileError, match="takes no record since"):
            file.persist(0, b"record 2")


def test_a_closed_file_takes_and_gives_nothing(path: Path) -> None:
    file = SafetyFile.open(path)
    file.close()
    file.close()
    with pytest.raises(SafetyFileError):
        file.read()
    with pytest.raises(SafetyFileError):
        file.persist(0, b"record 2")


@pytest.mark.parametrize(
    ("slot", "record"), [(-1, b"r"), (SLOTS, b"r"), (0, b""), (0, bytes(MAX_RECORD + 1))]
)
def test_only_a_record_that_fits_one_of_the_slots_is_taken(path: Path, slot: int, record: bytes) -> None:
    with SafetyFile.open(path) as file:
        before = file.read()
        with pytest.raises(AssertionError):
            file.persist(slot, record)
        assert file.read() == before
