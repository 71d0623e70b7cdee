from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from parley.node.secrets import MAX_SECRET, SecretError, read_secret, write_secret


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_secret_is_its_owners_alone_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    before = os.umask(umask)
    try:
        write_secret(path, b"secret")
    finally:
        os.umask(before)
    assert mode(path) == 0o600
    assert read_secret(path) == b"secret"
    assert list(tmp_path.iterdir()) == [path]  # nothing is left beside it


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666])
def test_a_secret_that_others_can_touch_is_refused_with_the_cure(bits: int, tmp_path: Path) -> None:
    path = tmp_path / "my key.pem"
    write_secret(path, b"secret")
    path.chmod(bits)
    with pytest.raises(SecretError, match=r"chmod 600 '.*my key\.pem'"):
        read_secret(path)


@pytest.mark.parametrize("bits", [0o600, 0o400])
def test_a_secret_that_only_its_owner_can_touch_is_read(bits: int, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    write_secret(path, b"secret")
    path.chmod(bits)
    assert read_secret(path) == b"secret"


def test_an_existing_secret_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    write_secret(path, b"first")
    with pytest.raises(SecretError, match="exists already"):
        write_secret(path, b"second")
    assert read_secret(path) == b"first"
    write_secret(path, b"third", replace=True)
    assert read_secret(path) == b"third"
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_replacing_a_file_that_others_could_read_makes_it_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_secret(path, b"new", replace=True)
    assert mode(path) == 0o600


def test_a_secret_is_not_written_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"untouched")
    link.symlink_to(target)
    with pytest.raises(SecretError, match="exists already"):
        write_secret(link, b"secret")
    write_secret(link, b"secret", replace=True)
    assert target.read_bytes() == b"untouched"
    assert not link.is_symlink()


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path):
        with pytest.raises(SecretError, match="is not a regular file"):
            read_secret(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "key.pem"
    for attempt in (lambda: read_secret(path), lambda: write_secret(path, b"secret")):
        with pytest.raises(SecretError, match=r"missing/key\.pem: cannot be .*: No such file"):
            attempt()


def test_what_is_too_large_is_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    write_secret(path, bytes(MAX_SECRET))
    assert len(read_secret(path)) == MAX_SECRET
    with pytest.raises(SecretError, match="at most"):
        write_secret(path, bytes(MAX_SECRET + 1), replace=True)
    path.write_bytes(bytes(MAX_SECRET + 1))
    with pytest.raises(SecretError, match="no key"):
        read_secret(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    write_secret(path, b"secret")
    os.chown(path, 12_345, -1)
    with pytest.raises(SecretError, match="belongs to another user"):
        read_secret(path)
