"""The file that a backup is: a tar file with `manifest.json` first, then the files of a store under `data/`."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

from msgspec import Meta, MsgspecError, Struct, json

from parley.node.copies import DATA, BackupError
from parley.store.disk import STORED
from parley.store.folders import sync_directory

FORMAT = "parley backup 2"
MANIFEST = "manifest.json"
MAX_MANIFEST = 64 * 1024 * 1024  # bytes: some 400 000 files
CHUNK = 1024 * 1024

_PLAIN = rf"^(?:{STORED})\Z"  # so no safety record comes back, wherever it is kept
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def nobody(_done: int, _all: int) -> None:
    """Who watches when nobody does."""


def is_stored(path: Path) -> bool:
    """Whether a file of this name is part of a store."""
    return re.fullmatch(STORED, path.name) is not None


class StoredFile(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=_PLAIN)]
    bytes: Annotated[int, Meta(ge=0)]
    sha256: Hex


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a backup says of itself: `block` is the last executed one, at `height`. Only an audit proves that it is true."""

    format: str
    version: str
    network: str
    chain: Hex
    shard: Annotated[int, Meta(ge=0)]
    broker: str
    height: Annotated[int, Meta(ge=0)]
    block: Hex
    time: Annotated[int, Meta(ge=0, lt=2**43)]  # ms
    files: tuple[StoredFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


# -- writing ------------------------------------------------------------------------------------------------------


def pack(path: Path, data: Path, manifest: Manifest, progress: Progress) -> None:
    """For its owner alone, as it holds what was published; whole or not at all."""
    text = json.format(json.encode(manifest), indent=2) + b"\n"
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, _NEW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w|", bufsize=CHUNK) as archive:
                _add(archive, MANIFEST, io.BytesIO(text), len(text), manifest.time)
                done = 0
                for one in manifest.files:
                    with (data / one.name).open("rb") as source:
                        _add(archive, f"{DATA}/{one.name}", source, one.bytes, manifest.time)
                    done += one.bytes
                    progress(done, manifest.bytes)
            file.flush()
            os.fsync(descriptor)
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.absolute().parent)


def _add(archive: tarfile.TarFile, name: str, source: IO[bytes], size: int, moment: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, moment // 1_000
    archive.addfile(entry, source)


# -- reading --------------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> Manifest:
    """What a backup says of itself, without a look at the rest of it."""
    with _opened(path) as archive:
        return _manifest(path, archive)


def verify_backup(path: Path, progress: Progress = nobody) -> Manifest:
    """Read a backup to its end: every file is there and is what the manifest says. Raises `BackupError` if not."""
    return unpack(path, None, progress)


def unpack(path: Path, target: Path | None, progress: Progress) -> Manifest:
    """All files checked, and written to `target` if there is one."""
    with _opened(path) as archive:
        manifest = _manifest(path, archive)
        missing = {f"{DATA}/{file.name}": file for file in manifest.files}
        done = 0
        while (entry := archive.next()) is not None:
            expected = missing.pop(entry.name, None)
            if expected is None or not entry.isreg() or entry.issparse() or entry.size != expected.bytes:
                raise BackupError(
                    f"{path} holds {entry.name!r} in a way that its manifest does not; do not use it."
                )
            source = archive.extractfile(entry)
            assert source is not None, "it is a regular file"
            if _taken(source, None if target is None else target / expected.name) != expected.sha256:
                raise BackupError(f"{path} is damaged: {entry.name} is not what the manifest says.")
            done += expected.bytes
            progress(done, manifest.bytes)
        if missing:
            raise BackupError(f"{path} is not whole: {next(iter(missing))} is missing.")
    return manifest


def _taken(source: IO[bytes], target: Path | None) -> str:
    """The hash of what was read, which is on disk on return if it was to be written."""
    sha256 = hashlib.sha256()
    with os.fdopen(os.open(target, _NEW, 0o600), "wb") if target else io.BytesIO() as sink:
        while data := source.read(CHUNK):
            sha256.update(data)
            if target:
                sink.write(data)
        if target:
            sink.flush()
            os.fsync(sink.fileno())
    return sha256.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK) as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise BackupError(f"{path} is no backup, or it is damaged: {error}.") from error
    except OSError as error:
        raise BackupError(f"{error.filename or path}: {error.strerror or error}.") from error


def _manifest(path: Path, archive: tarfile.TarFile) -> Manifest:
    entry = archive.next()
    source = None if entry is None or entry.name != MANIFEST else archive.extractfile(entry)
    if entry is None or source is None or entry.size > MAX_MANIFEST:
        raise BackupError(f"{path} is no backup: it does not begin with a {MANIFEST}.")
    try:
        manifest = json.decode(source.read(), type=Manifest)
    except MsgspecError as error:
        raise BackupError(f"{path} is no backup that this version can read: {error}.") from error
    if manifest.format != FORMAT:
        raise BackupError(
            f"{path} has the format {manifest.format!r}, and this version of parley reads {FORMAT!r}."
        )
    return manifest
