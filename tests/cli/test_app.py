import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import typer
from rich.table import Table
from tests.cli.commands import flat
from typer.testing import CliRunner

from parley import UnknownTopic, __version__
from parley.application.application import VersionError
from parley.applications import ApplicationError
from parley.cli import app as cli
from parley.cli import output
from parley.cli.output import ExitCode
from parley.client.errors import ContextError

runner = CliRunner()


def test_version_is_printed() -> None:
    result = runner.invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"parley {__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["sim", "--help"], ["bench", "--help"], ["demo", "--help"]])
def test_every_level_explains_itself(words: list[str]) -> None:
    result = runner.invoke(cli.app, words)
    assert result.exit_code == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "1 a checked property does not hold or the network refused"),
        (["pub"], "a line for each message or entry"),
        (["pub"], "goes to receipts/ in the network's folder"),
        (["pub"], "by default the key decides"),
        (["pub"], "constraints do not see it"),
        (["sub"], "%t topic, %p partition, %o offset"),
        (["logs"], "a line for each message or entry"),
        (["chaos"], "kill, pause, partition, disk, byzantine"),
        (["bench", "pub"], "bps or chios-p, which today are the same, clear matching and plain payload"),
    ],
)
def test_help_says_it_all_on_a_terminal_of_80_columns(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = runner.invoke(cli.app, [*words, "--help"]).stdout
    assert told in flat(shown)
    assert "…" not in shown


@pytest.mark.parametrize("words", [["sim", "run"], ["bench", "consensus"], ["demo"]])
def test_every_command_takes_json(words: list[str]) -> None:
    command = typer.main.get_command(cli.app)
    context = typer.Context(command)
    for word in words:
        assert isinstance(command, typer.core.TyperGroup)
        found = command.get_command(context, word)
        assert found is not None
        command = found
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(
    "words", [[], ["nonsense"], ["sim", "nonsense"], ["demo", "--nonsense"], ["sim", "run", "extra"]]
)
def test_wrong_use_ends_with_2_and_an_empty_stdout(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, words) == ExitCode.WRONG_USE
    if words:
        assert capsys.readouterr().out == ""


def run_main(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["parley", *words])
    with pytest.raises(SystemExit) as ended:
        cli.run_command()
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConnectionRefusedError("nobody listens"), ExitCode.UNREACHABLE, "cannot be reached: nobody listens"),
        (TimeoutError("no answer"), ExitCode.UNREACHABLE, "cannot be reached: no answer"),
        (
            FileNotFoundError(2, "No such file or directory", "a.json"),
            ExitCode.WRONG_USE,
            "a.json: No such file",
        ),
        (OSError(28, "No space left on device"), ExitCode.WRONG_USE, "cannot be written: No space left"),
        (VersionError("runs version 7"), ExitCode.WRONG_USE, "parley: runs version 7"),
        (ApplicationError("cannot be loaded"), ExitCode.WRONG_USE, "parley: cannot be loaded"),
        (UnknownTopic(topic="demo"), ExitCode.DOES_NOT_HOLD, "parley: UnknownTopic: there is no topic demo"),
    ],
)
def test_errors_become_exit_codes(
    error: Exception,
    code: ExitCode,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli, "app", raiser(error))
    assert run_main(monkeypatch, []) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_mistake_in_the_program_is_not_taken_for_a_broken_property(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "app", raiser(ValueError("a mistake in the program")))
    assert run_main(monkeypatch, []) == ExitCode.DEFECT
    assert "ValueError: a mistake in the program" in capsys.readouterr().err


def raiser(error: Exception) -> Callable[[], None]:
    def app() -> None:
        raise error

    return app


def test_failing_says_why_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        output.fail("two blocks of height 7 are committed")
    assert ended.value.exit_code == ExitCode.DOES_NOT_HOLD
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "parley: two blocks of height 7 are committed\n"


@dataclass(frozen=True)
class Outcome:
    committed: int
    violations: list[str]


def test_json_is_one_object_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(
        Outcome(committed=30, violations=[]), lambda: pytest.fail("not shown, not made"), as_json=True
    )
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"committed": 30, "violations": []}


@pytest.mark.parametrize("text", ["[bold] :smile: " + "x" * 300, lambda: "[bold] :smile: " + "x" * 300])
def test_text_in_a_pipe_is_printed_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.emit({}, text, as_json=False)
    assert capsys.readouterr().out == "[bold] :smile: " + "x" * 300 + "\n"


@pytest.mark.parametrize("cell", [False, True])
def test_what_others_wrote_does_not_steer_the_terminal(
    cell: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "one\x1b]52;c;ZXZpbA==\x07\x9b2J\u202etwo"
    table = Table("name", box=None)
    table.add_row(text)
    output.emit({}, table if cell else text, as_json=False)
    output.note(f"{text}\nthree")
    shown = capsys.readouterr()
    for said in (shown.out, shown.err):
        assert r"one\x1b]52;c;ZXZpbA==" in said
        assert all(character.isprintable() or character == "\n" for character in said)
    assert shown.err.endswith("two\nthree\n")
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    output.stderr().print("four", style="red")  # one's own styles are shown
    assert "\x1b[31mfour" in terminal.getvalue()


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("seeds", total=3) as advance:
        advance()
        advance(2)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_progress_shows_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.progress("seeds", total=3) as advance:
        advance(3)
    assert "seeds" in terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    """A disk without room."""

    def write(self, _: str) -> int:
        raise OSError(28, "No space left on device")


def test_an_error_that_cannot_be_written_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", raiser(ContextError("no context is chosen")))
    monkeypatch.setattr(sys, "stderr", Full())
    with pytest.raises(SystemExit) as ended:
        cli.run_command()
    assert ended.value.code == ExitCode.WRONG_USE


@pytest.mark.parametrize("as_json", [False, True])
def test_a_result_that_nothing_takes_is_no_success(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        output.emit({}, "valid", as_json=as_json)


def test_a_terminal_without_columns_shows_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr(sys, "stdout", terminal)
    output.emit({}, lambda: output.folded("valid"), as_json=False)
    assert "valid" in terminal.getvalue()
