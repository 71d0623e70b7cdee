"""Runs commands as a person or a script would: in processes of their own, or for speed in this one."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parley.cli import app

__all__ = ["Ended", "flat", "parley", "reading", "shell", "start"]

COMMAND = [sys.executable, "-c", "from parley.cli import main; main()"]
SECONDS = 90


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        assert self.code == 0, self
        assert self.out.count("\n") == 1, self
        found: dict[str, Any] = json.loads(self.out)
        return found

    def lines(self) -> list[dict[str, Any]]:
        assert self.code == 0, self
        return [json.loads(line) for line in self.out.splitlines()]


def parley(
    *words: str | Path, home: Path, stdin: bytes = b"", where: Path | None = None, code: int | None = None
) -> Ended:
    """Run a command to its end, with `home` as the user's home; `code` is how it must end."""
    out, err = _captured(), _captured()
    with pytest.MonkeyPatch.context() as around, chdir(where or home), reading(stdin):
        for name in os.environ.keys() - _environment(home).keys():
            around.delenv(name)
        for name, value in _environment(home).items():
            around.setenv(name, value)
        around.setattr(sys, "argv", ["parley", *map(str, words)])
        around.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ending:
            app.run_command()
    ended = Ended(int(ending.value.code or 0), _text(out), _text(err))
    assert code is None or ended.code == code, ended
    return ended


def shell(*words: str | Path, home: Path, code: int | None = None) -> Ended:
    """The same in a process of its own."""
    process = start(*words, home=home)
    out, err = process.communicate(timeout=SECONDS)
    ended = Ended(process.returncode, out.decode(), err.decode())
    assert code is None or ended.code == code, ended
    return ended


def start(*words: str | Path, home: Path) -> subprocess.Popen[bytes]:
    """Start a command whose output is read while it runs."""
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
        env=_environment(home),
        # Tests that run in the background of a shell ignore Ctrl-C, and their children would, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )


def flat(text: str) -> str:
    """What an error box says, as one line."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PARLEY_"))}
    return {**kept, "HOME": str(home), "COLUMNS": "200", "PYTHONWARNINGS": "error"}


def _captured() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)


def _text(stream: io.TextIOWrapper) -> str:
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode(errors="backslashreplace")


@contextmanager
def reading(data: bytes) -> Iterator[None]:
    """Let file descriptor 0 read these bytes."""
    before = os.dup(0)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)
