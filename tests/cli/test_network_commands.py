import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.cli.commands import COMMAND, parley

from parley.cli.app import app
from parley.cli.output import ExitCode

NODE_LIBRARIES = ("cryptography", "rocksdict", "structlog", "uvloop")


def commands(command: object, *names: str) -> Iterator[tuple[str, set[str]]]:
    """Every command with its options."""
    if isinstance(command, typer.core.TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), *names, name)
    elif isinstance(command, typer.core.TyperCommand):
        yield " ".join(names), {option for parameter in command.params for option in parameter.opts}


def test_every_command_takes_json() -> None:
    lacking = [name for name, options in commands(typer.main.get_command(app)) if "--json" not in options]
    assert lacking == []


def test_every_command_of_a_network_takes_directory_and_context() -> None:
    not_of_a_network = ("sim ", "bench ", "demo", "context ", "chaos")
    found = {
        name: options
        for name, options in commands(typer.main.get_command(app))
        if not name.startswith(not_of_a_network)
    }
    assert {"up", "pub", "topic create", "client revoke", "genesis combine", "node run", "verify"} <= set(
        found
    )
    assert [name for name, options in found.items() if not {"--dir", "--context"} <= options] == []


def test_verifying_needs_nothing_that_only_nodes_need(tmp_path: Path) -> None:
    without = f"import sys; sys.modules.update(dict.fromkeys({NODE_LIBRARIES!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{without}; {COMMAND[2]}", "verify", "x", "--genesis", "none.json"],
        capture_output=True,
        cwd=tmp_path,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (ExitCode.WRONG_USE, b"")
    assert ended.stderr.startswith(b"parley: none.json cannot be read")


@pytest.mark.parametrize(
    "words", [["up"], ["init", "alpha", "--address", "h:1"], ["genesis", "combine", "x"], ["node"]]
)
def test_what_needs_a_node_s_libraries_says_how_to_get_them(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It cannot be imported where the library of stores is missing.
    monkeypatch.setitem(sys.modules, "parley.store.disk", None)
    ended = parley(*words, home=tmp_path, code=ExitCode.WRONG_USE)
    assert 'pip install "parley[node]"' in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("typed", "completed"), [("be", "bench"), ("sub --ver", "--verify")])
def test_shells_complete_what_was_begun(typed: str, completed: str, tmp_path: Path) -> None:
    words = f"parley {typed}"
    asked = {
        "_PARLEY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(typed.count(" ") + 1),
    }
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'parley'; from parley.cli import main; main()"],
        capture_output=True,
        env={**os.environ, **asked},
        check=False,
    )
    assert ended.stdout.decode().split() == [completed]


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["verfy", "x"], "'verify'"), (["bnch"], "'bench'"), (["up", "--detatch"], "--detach")],
)
def test_a_wrong_word_says_which_was_meant(words: list[str], meant: str, tmp_path: Path) -> None:
    assert meant in parley(*words, home=tmp_path, code=ExitCode.WRONG_USE).err
