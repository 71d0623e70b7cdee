"""Backups of a broker's ledger: consistent while it is written, whole or refused, and never with a safety record."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Never

import msgspec
import pytest

from parley.ledger import layout
from parley.ledger.safety_file import SafetyFile, SafetyFileError
from parley.node import backup as backups
from parley.node.admin.messages import Copied
from parley.node.admin.place import bound
from parley.node.backup import check_restorable, make_backup, restore_backup
from parley.node.backup_file import Manifest, StoredFile, read_manifest, verify_backup
from parley.node.config import Config, load
from parley.node.copies import BackupError
from parley.node.provision import broker_directory, provision_network
from parley.node.recovery import examine
from parley.node.storage import StorageError, open_storage
from parley.store.disk import open_store

ORGANISATIONS = ("alpha", "beta", "gamma", "delta")
MARK = b"x/mark"


def provisioned(directory: Path, *organisations: str) -> Config:
    provision_network(
        directory, organisations=organisations, network="test", start_time=int(time.time() * 1_000)
    )
    return load(broker_directory(directory, f"{organisations[0]}-1") / "broker.toml")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    found = provisioned(tmp_path / "net", *ORGANISATIONS)
    with open_store(found.data, create=False) as store:
        store.write([(MARK, b"an entry")], sync=True)
    return found


@pytest.fixture
def backup(config: Config, tmp_path: Path) -> Path:
    make_backup(config, tmp_path / "backup.tar")
    return tmp_path / "backup.tar"


OPENS = """
import os, sys
from pathlib import Path
from parley.store.disk import open_store

store = open_store(Path(sys.argv[1]), create=False)
"""
KILLED = (
    OPENS
    + """
store.write([(b"x/mark", b"not yet in a table")], sync=True)
os._exit(0)
"""
)
HOLDS = (
    OPENS
    + """
print("open", flush=True)
sys.stdin.read()
store.close()
"""
)


def lose(config: Config) -> None:
    shutil.rmtree(config.data)


def stored(config: Config) -> bytes | None:
    with open_store(config.data, create=False) as store:
        return store.get(MARK)


# -- making -----------------------------------------------------------------------------------------------------------


def test_a_backup_holds_what_is_only_in_the_log(config: Config, tmp_path: Path) -> None:
    """As after a process that was killed."""
    path = tmp_path / "backup.tar"
    subprocess.run([sys.executable, "-c", KILLED, str(config.data)], check=False)
    manifest = make_backup(config, path)
    assert any(file.name.endswith(".log") and file.bytes for file in manifest.files)
    assert manifest.broker == "alpha-1"
    assert manifest.chain == config.genesis.chain.hex()
    assert manifest == read_manifest(path) == verify_backup(path)
    lose(config)
    restore_backup(config, path)
    assert stored(config) == b"not yet in a table"


def test_no_folder_is_removed_because_an_answer_names_it(config: Config, tmp_path: Path) -> None:
    """What answers at the socket may be a broker that others have taken over, and the one who asks may be root."""
    victim = tmp_path / "victim"
    shutil.copytree(config.data, victim / "data")
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + msgspec.json.encode(Copied(str(victim / "data"))) + b"\n"

    def lie(listening: socket.socket) -> None:
        listening.setblocking(True)
        with listening.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)

    with bound(config.directory) as listening:
        liar = threading.Thread(target=lie, args=(listening,))
        liar.start()
        with pytest.raises(BackupError, match=r"says that its copy is in .*victim/data"):
            make_backup(config, tmp_path / "backup.tar")
        liar.join()
    assert any((victim / "data").iterdir())
    assert not (tmp_path / "backup.tar").exists()


def test_a_store_that_another_process_has_open_is_not_copied_from_outside(
    config: Config, tmp_path: Path
) -> None:
    """A broker that has just begun to start, or `parley audit`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(config.data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(BackupError, match="alpha-1 has just begun to start"):
            make_backup(config, tmp_path / "backup.tar")
        other.communicate()
    assert not list(tmp_path.glob("backup*"))
    make_backup(config, tmp_path / "backup.tar")


@pytest.mark.parametrize("links", [True, False])
def test_a_backup_needs_no_links(
    config: Config, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = []
    hardlink_to = Path.hardlink_to

    def link(path: Path, target: Path) -> None:
        if not links:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        linked.append(path)
        hardlink_to(path, target)

    monkeypatch.setattr(Path, "hardlink_to", link)
    make_backup(config, tmp_path / "backup.tar")
    assert bool(linked) == links
    lose(config)
    restore_backup(config, tmp_path / "backup.tar")
    assert stored(config) == b"an entry"


def test_a_missing_store_is_no_backup(config: Config, tmp_path: Path) -> None:
    lose(config)
    with pytest.raises(BackupError, match="holds no store"):
        make_backup(config, tmp_path / "backup.tar")
    assert sorted(config.directory.glob(".*")) == []


def test_making_a_backup_changes_nothing_in_the_store(config: Config, tmp_path: Path) -> None:
    """Tables of the copy are links to the store's own; one that it is just writing is among them."""
    (config.data / "999999.sst").write_bytes(b"half a table")
    (config.data / "999998.blob").write_bytes(b"half a blob file")
    before = {path.name: path.read_bytes() for path in config.data.iterdir()}
    make_backup(config, tmp_path / "backup.tar")
    assert {path.name: path.read_bytes() for path in config.data.iterdir()} == before
    lose(config)
    restore_backup(config, tmp_path / "backup.tar")
    assert stored(config) == b"an entry"


def test_a_file_that_grows_meanwhile_is_as_long_as_the_manifest_says(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = config.data / "999999.sst"
    half.write_bytes(b"half")

    def grows(path: Path, size: int) -> None:
        with half.open("ab") as file:
            file.write(b" and half")

    monkeypatch.setattr("parley.node.backup._require_room", grows)
    make_backup(config, tmp_path / "backup.tar")
    verify_backup(tmp_path / "backup.tar")


def test_a_backup_is_its_owners_alone_and_leaves_nothing_behind(config: Config, tmp_path: Path) -> None:
    before = sorted(config.directory.iterdir())
    path = tmp_path / "backup.tar"
    make_backup(config, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(config.directory.iterdir()) == before
    assert not list(tmp_path.glob("*.partial"))


def test_no_key_and_no_safety_record_is_in_a_backup(config: Config, backup: Path) -> None:
    content = backup.read_bytes()
    home = config.directory.parent.parent
    secrets = [*home.rglob("*.key"), *home.glob("identities/*.json"), *home.rglob("safety.record")]
    assert len(secrets) > 4 * 4
    for path in secrets:
        secret = path.read_bytes()
        assert secret[:64] not in content
        assert secret.rstrip(b"\0\n }")[-32:] not in content
    with tarfile.open(backup) as archive:
        names = archive.getnames()
    assert names[0] == "manifest.json"
    assert all(name.startswith("data/") for name in names[1:])
    assert not [name for name in names if name.endswith(("LOCK", "LOG"))]


def test_what_is_there_is_not_overwritten(config: Config, backup: Path) -> None:
    content = backup.read_bytes()
    with pytest.raises(BackupError, match="exists already"):
        make_backup(config, backup)
    assert backup.read_bytes() == content


def test_an_interrupted_backup_leaves_no_file_and_does_not_stop_the_next(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> Never:
        raise KeyboardInterrupt

    path = tmp_path / "backup.tar"
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "addfile", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_backup(config, path)
    left = config.data.with_name(".data.backup")
    (left / "data").mkdir(parents=True)  # what a power cut would have left
    assert not path.exists()
    make_backup(config, path)
    assert not left.exists()


def test_one_backup_of_a_broker_at_a_time(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    copy = backups._copy_closed

    def meanwhile(config: Config, target: Path) -> None:
        copy(config, target)
        with pytest.raises(BackupError, match="another backup of alpha-1"):
            make_backup(config, tmp_path / "second.tar")
        tried.append(target)

    monkeypatch.setattr(backups, "_copy_closed", meanwhile)
    make_backup(config, tmp_path / "first.tar")
    assert tried


@pytest.mark.parametrize("mark", [layout.JOINING, layout.BACKFILL])
def test_a_broker_that_has_not_everything_is_not_backed_up(
    config: Config, tmp_path: Path, mark: bytes
) -> None:
    with open_store(config.data, create=False) as store:
        store.write([(mark, b"\x01")], sync=True)
    with pytest.raises(BackupError, match="alpha-1 is rebuilding"):
        make_backup(config, tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()


def test_a_damaged_store_is_no_backup(config: Config, tmp_path: Path) -> None:
    with open_store(config.data, create=False) as store:
        store.write([(layout.committed(0), None)], sync=True)
    with pytest.raises(BackupError, match="lacks its first block"):
        make_backup(config, tmp_path / "backup.tar")


def test_a_disk_without_room_is_left_alone(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.node.backup.KEPT_FREE", 2**62)
    with pytest.raises(BackupError, match="choose another disk"):
        make_backup(config, tmp_path / "backup.tar")
    assert not (tmp_path / "backup.tar").exists()


# -- checking ---------------------------------------------------------------------------------------------------------


def test_any_damage_to_a_file_is_found(backup: Path) -> None:
    content = backup.read_bytes()
    with tarfile.open(backup) as archive:
        entries = [(entry.name, entry.offset_data, entry.size) for entry in archive if entry.size]
    assert len(entries) > 4
    for name, begin, size in entries[1:]:
        for place in {begin, begin + size // 2, begin + size - 1}:
            backup.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(BackupError, match=name):
                verify_backup(backup)
    backup.write_bytes(content)
    verify_backup(backup)


def test_a_backup_that_ends_early_is_found(backup: Path) -> None:
    content = backup.read_bytes()
    with tarfile.open(backup) as archive:
        last = archive.getmembers()[-1]
    for length in (0, 100, 600, last.offset, last.offset_data + last.size // 2):
        backup.write_bytes(content[:length])
        with pytest.raises(BackupError):
            verify_backup(backup)


def rewritten(
    backup: Path, change: Callable[[Manifest], Manifest], *more: tuple[tarfile.TarInfo, bytes]
) -> None:
    """The same backup, except for what somebody has made of it."""
    with tarfile.open(backup) as archive:
        parts = []
        for entry in archive:
            source = archive.extractfile(entry) if entry.isreg() else io.BytesIO()
            assert source is not None
            parts.append((entry, source.read()))
    entry, text = parts[0]
    text = msgspec.json.encode(change(msgspec.json.decode(text, type=Manifest)))
    entry.size = len(text)
    parts[0] = (entry, text)
    with tarfile.open(backup, "w") as archive:
        for entry, data in (*parts, *more):
            archive.addfile(entry, io.BytesIO(data))


def same(manifest: Manifest) -> Manifest:
    return manifest


@pytest.mark.parametrize("name", ["../evil", "data/../../evil", "/tmp/evil", "data/extra", "data/CURRENT"])
def test_a_file_that_the_manifest_does_not_name_is_refused_and_not_written(
    config: Config, backup: Path, tmp_path: Path, name: str
) -> None:
    rewritten(backup, same, (tarfile.TarInfo(name), b""))
    lose(config)
    with pytest.raises(BackupError, match="do not use it"):
        restore_backup(config, backup)
    assert not list(tmp_path.rglob("evil"))
    assert not config.data.exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", ".", "", "a/b", "evil\n"])
def test_a_manifest_that_names_other_places_is_refused(backup: Path, name: str) -> None:
    def change(manifest: Manifest) -> Manifest:
        first = msgspec.structs.replace(manifest.files[0], name=name)
        return msgspec.structs.replace(manifest, files=(first, *manifest.files[1:]))

    rewritten(backup, change)
    with pytest.raises(BackupError, match="no backup that this version can read"):
        read_manifest(backup)


@pytest.mark.parametrize("name", ["safety.record", "consensus.key", "LOCK"])
def test_a_manifest_that_names_what_no_store_needs_is_refused(backup: Path, name: str) -> None:
    def change(manifest: Manifest) -> Manifest:
        last = msgspec.structs.replace(manifest.files[-1], name=name)
        return msgspec.structs.replace(manifest, files=(*manifest.files, last))

    rewritten(backup, change)
    with pytest.raises(BackupError, match="no backup that this version can read"):
        read_manifest(backup)


def test_a_file_that_is_longer_than_what_is_there_of_it_is_refused(backup: Path) -> None:
    """A few bytes could fill any disk."""
    size, hollow = 2**50, tarfile.TarInfo("data/999999.sst")
    hollow.pax_headers = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": str(size)}
    rewritten(
        backup,
        lambda manifest: msgspec.structs.replace(
            manifest, files=(*manifest.files, StoredFile("999999.sst", size, "00" * 32))
        ),
        (hollow, b""),
    )
    with pytest.raises(BackupError, match=r"999999\.sst.*do not use it"):
        verify_backup(backup)


def test_links_and_other_formats_are_refused(backup: Path, tmp_path: Path) -> None:
    link = tarfile.TarInfo("data/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    rewritten(backup, same, (link, b""))
    with pytest.raises(BackupError, match="data/link"):
        verify_backup(backup)
    rewritten(backup, lambda manifest: msgspec.structs.replace(manifest, format="parley backup 9"))
    with pytest.raises(BackupError, match="'parley backup 9'"):
        verify_backup(backup)
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("hello"))
    with pytest.raises(BackupError, match="does not begin with a manifest"):
        verify_backup(tmp_path / "other.tar")
    with pytest.raises(BackupError, match="No such file"):
        verify_backup(tmp_path / "none.tar")


# -- putting back -----------------------------------------------------------------------------------------------------


def test_a_record_that_is_still_there_stays(config: Config, backup: Path) -> None:
    record = config.safety.read_bytes()
    lose(config)
    done = restore_backup(config, backup)
    assert not done.recovered.record
    assert config.safety.read_bytes() == record
    assert stored(config) == b"an entry"
    open_storage(config).close()


def test_a_lost_record_is_replaced_by_one_that_abstains(config: Config, backup: Path) -> None:
    lose(config)
    config.safety.unlink()
    assert check_restorable(config, backup)[1]
    assert restore_backup(config, backup).recovered.record
    storage = open_storage(config)
    try:
        assert storage.record[1].abstains
        assert storage.store.get(MARK) == b"an entry"
    finally:
        storage.close()


def test_an_old_record_does_not_come_back_even_if_it_is_kept_inside_the_store(
    config: Config, tmp_path: Path
) -> None:
    inside = replace(config, safety_of_first=config.data / "safety.record")
    config.safety.rename(inside.safety)
    old = inside.safety.read_bytes()
    manifest = make_backup(inside, tmp_path / "backup.tar")
    assert "safety.record" not in {file.name for file in manifest.files}
    lose(inside)
    assert restore_backup(inside, tmp_path / "backup.tar").recovered.record
    assert inside.safety.read_bytes() != old
    assert examine(inside).abstains


def test_a_backup_for_which_there_is_no_room_is_not_begun(
    config: Config, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(config)
    monkeypatch.setattr("parley.node.backup.KEPT_FREE", 2**62)
    with pytest.raises(BackupError, match="free"):
        restore_backup(config, backup)
    assert not config.data.exists()


def test_restored_files_are_their_owners_alone(config: Config, backup: Path) -> None:
    lose(config)
    before = os.umask(0)
    try:
        restore_backup(config, backup)
    finally:
        os.umask(before)
    assert stat.S_IMODE(config.data.stat().st_mode) == 0o700
    tables = list(config.data.glob("*.sst"))
    assert tables
    assert {stat.S_IMODE(path.stat().st_mode) for path in tables} == {0o600}


def test_a_store_that_is_there_is_not_overwritten(config: Config, backup: Path) -> None:
    with open_store(config.data, create=False) as store:
        store.write([(MARK, b"newer")], sync=True)
    with pytest.raises(BackupError, match="is not empty"):
        restore_backup(config, backup)
    assert stored(config) == b"newer"


def test_nothing_is_restored_while_the_broker_runs(config: Config, backup: Path) -> None:
    lose(config)
    with SafetyFile.open(config.safety), pytest.raises(SafetyFileError, match="in use"):
        restore_backup(config, backup)
    assert not config.data.exists()


def test_another_brokers_and_another_networks_backup_is_refused(
    config: Config, backup: Path, tmp_path: Path
) -> None:
    other = load(broker_directory(tmp_path / "net", "beta-1") / "broker.toml")
    stranger = provisioned(tmp_path / "other", *ORGANISATIONS)
    for wrong, words in ((other, "is a backup of alpha-1, not of beta-1"), (stranger, "of another network")):
        lose(wrong)
        with pytest.raises(BackupError, match=words):
            restore_backup(wrong, backup)
        assert not wrong.data.exists()


def test_a_backup_of_another_shard_is_refused(tmp_path: Path) -> None:
    provision_network(
        tmp_path / "net",
        organisations=ORGANISATIONS,
        network="test",
        start_time=int(time.time() * 1_000),
        shards=(("alpha-1", "beta-1", "gamma-1", "delta-1"), ("alpha-1", "beta-1")),
    )
    config = load(broker_directory(tmp_path / "net", "alpha-1") / "broker.toml")
    first, second = config.of_shard(0), config.of_shard(1)
    make_backup(second, tmp_path / "second.tar")
    lose(first)
    with pytest.raises(BackupError, match="a backup of shard 1, not of shard 0"):
        restore_backup(first, tmp_path / "second.tar")
    shutil.copy(tmp_path / "second.tar", tmp_path / "lies.tar")
    rewritten(tmp_path / "lies.tar", lambda manifest: msgspec.structs.replace(manifest, shard=0))
    with pytest.raises(BackupError, match="or to another shard than 0"):
        restore_backup(first, tmp_path / "lies.tar")
    assert not first.data.exists()
    lose(second)
    restore_backup(second, tmp_path / "second.tar")


def test_a_manifest_that_lies_about_the_height_is_refused(config: Config, backup: Path) -> None:
    rewritten(backup, lambda manifest: msgspec.structs.replace(manifest, height=7))
    lose(config)
    with pytest.raises(BackupError, match="does not hold the block"):
        restore_backup(config, backup)
    assert not config.data.exists()
    assert not list(config.directory.glob("data*"))


def test_an_interrupted_restore_starts_nothing_and_can_be_finished(
    config: Config, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> Never:
        raise KeyboardInterrupt

    lose(config)
    config.safety.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("parley.node.backup.recover_storage", interrupted)
        with pytest.raises(KeyboardInterrupt):
            restore_backup(config, backup)
    with pytest.raises(StorageError):
        open_storage(config)
    assert examine(config).record == "is missing"  # `parley node recover` goes on from here
    assert examine(config).store == ""


def test_a_network_that_is_too_small_is_not_brought_back_from_a_backup(tmp_path: Path) -> None:
    config = provisioned(tmp_path / "net", "one", "two")
    make_backup(config, tmp_path / "backup.tar")
    lose(config)
    config.safety.unlink()
    with pytest.raises(StorageError, match="network of 2 there are not enough other"):
        restore_backup(config, tmp_path / "backup.tar")
    assert not config.data.exists()
