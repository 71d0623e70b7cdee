"""One running network for all tests of commands that need one; each test works on a topic of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Ended, flat, parley, shell
from typer.testing import CliRunner

from parley.cli.app import app
from parley.cli.output import ExitCode


@dataclass(frozen=True)
class Network:
    """A network that `parley up --detach` started, and the home of its user."""

    home: Path
    directory: Path
    started: dict[str, Any]

    def run(
        self, *words: str | Path, who: str | None = None, stdin: bytes = b"", code: int | None = None
    ) -> Ended:
        speaker = [] if who is None else ["--as", who]
        return parley(*words, *speaker, "--dir", self.directory, home=self.home, stdin=stdin, code=code)

    def misuse(self, *words: str) -> str:
        """What is said of a wrong command line; in this process, because it never comes to a connection."""
        result = CliRunner().invoke(app, [*words, "--dir", str(self.directory)])
        assert (result.exit_code, result.stdout) == (ExitCode.WRONG_USE, "")
        return flat(result.stderr)

    def topic(self, name: str, *options: str) -> str:
        self.run("topic", "create", name, *options, code=0)
        return name


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    home = tmp_path_factory.mktemp("home")
    directory = home / "network"
    up = shell("up", "--detach", "--dir", directory, "--json", home=home)
    try:
        yield Network(home, directory, up.json())
    finally:
        shell("down", "--dir", directory, home=home, code=0)
