"""The folder of a network on this machine: it appears whole or not at all, and one command at a time works on it."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from parley.cli.output import ExitCode, fail
from parley.node.secrets import SecretError

_NODE_LIBRARIES = ("cryptography", "parley.store.disk", "structlog")


def require_node_extra(command: str) -> None:
    """End the command with a sentence if only the client is installed."""
    try:
        for name in _NODE_LIBRARIES:
            importlib.import_module(name)
    except ImportError:
        fail(
            f'`parley {command}` needs what a broker needs, which is not installed; run: pip install "parley[node]"',
            ExitCode.WRONG_USE,
        )


def require_own(directory: Path) -> Path:
    """End the command if the folder is another user's, who would choose which keys are used and what is overwritten."""
    if directory.exists() and directory.stat().st_uid != os.geteuid():
        fail(
            f"{directory.absolute()} belongs to another user; use a folder of your own with --dir",
            ExitCode.WRONG_USE,
        )
    return directory


def new_folder(directory: Path | None, prefix: str) -> Path:
    """The folder that was asked for, which must not hold anything yet, or a temporary one."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix=prefix))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise typer.BadParameter(f"{directory} exists; name a new folder.", param_hint="--dir")
    return require_own(directory)


def make_folder(folder: Path) -> None:
    """With its parents, and whatever the umask not for others to change: a broker below would not start."""
    for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
        missing.mkdir(mode=0o755, exist_ok=True)


@contextmanager
def provisioning(*others: type[Exception]) -> Iterator[None]:
    """What keeps keys and certificates from being made, and other errors, end the command with their sentence."""
    from parley.node import certificates, config, provision, storage  # noqa: PLC0415 - an extra

    ours = (certificates.IssueError, config.ConfigError, provision.ProvisionError, storage.StorageError)
    expected: tuple[type[Exception], ...] = (*ours, SecretError, *others)
    try:
        yield
    except expected as error:
        fail(str(error).rstrip("."), ExitCode.WRONG_USE)


def made_whole(directory: Path, fill: Callable[[Path], None]) -> bool:
    """Create the folder with what `fill` writes, for its owner alone; False if somebody else was faster."""
    parent = directory.absolute().parent
    if directory.exists() and not directory.is_dir():
        fail(f"{directory} is not a folder; choose another --dir", ExitCode.WRONG_USE)
    try:
        make_folder(parent)
        temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f".{directory.name}."))  # with mode 700
    except OSError as error:
        fail(f"{directory} cannot be made: {error.strerror}; choose another --dir", ExitCode.WRONG_USE)
    try:
        with provisioning():
            fill(temporary)
        (temporary / ".gitignore").write_text("*\n")  # keys are not for repositories
        temporary.rename(directory)  # fails unless the folder is empty or does not exist
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return False
    else:
        return True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Wait until no other command starts or stops brokers of this folder."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
