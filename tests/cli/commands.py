"""Runs the real command in processes of its own, as a person or a script would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Ended", "environment", "flat", "parley", "start"]

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
    done = subprocess.run(
        [*COMMAND, *map(str, words)],
        input=stdin,
        capture_output=True,
        cwd=where or home,
        env=environment(home),
        timeout=SECONDS,
        check=False,
    )
    ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
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
        env=environment(home),
    )


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PARLEY_"))}
    return {**kept, "HOME": str(home), "COLUMNS": "200", "PYTHONWARNINGS": "error"}


def flat(text: str) -> str:
    """What an error box says, as one line."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def positions(lines: Sequence[dict[str, Any]]) -> list[int]:
    return [line["offset"] for line in lines]
