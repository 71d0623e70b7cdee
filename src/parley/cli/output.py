"""What every command shares: exit codes, the result on stdout for people or scripts, all else on stderr."""

import errno
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Annotated, NoReturn, Protocol

import msgspec
import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table

from parley.model.text import unsteering, unsteering_json

_INDENT = "    "
USUAL_WIDTH = 80  # of a terminal that does not tell
PIPE_WIDTH = 120  # of tables that nobody looks at in a terminal

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, for scripts.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print JSON on stdout, for scripts: a line for each message or entry.")
]


class Advance(Protocol):
    """Moves a progress bar on."""

    def __call__(self, steps: int = 1) -> None: ...


class ExitCode(IntEnum):
    """What a script may conclude from how a command ended."""

    HOLDS = 0
    DOES_NOT_HOLD = 1  # a checked property does not hold, or the network refused
    WRONG_USE = 2
    UNREACHABLE = 3
    DEFECT = 70


def emit(
    result: object,
    text: RenderableType | Callable[[], RenderableType],
    *,
    as_json: bool,
    holds: bool = True,
) -> None:
    """Print a result on stdout: as one JSON object, or as text for people. If the result says that a checked property
    does not hold, the command ends with that exit code.

    `result` is a mapping, dataclass or msgspec struct. `text` may be a function: it is called only if shown.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if as_json:
        sys.stdout.write(json_line(result).decode())
        sys.stdout.flush()
    else:
        stdout().print(text() if callable(text) else text)
    if not holds:
        raise typer.Exit(ExitCode.DOES_NOT_HOLD)


def json_line(result: object) -> bytes:
    """One line of JSON; what others wrote does not steer a terminal that shows it."""
    line = msgspec.json.encode(result) + b"\n"
    return line if line.isascii() and b"\x7f" not in line else unsteering_json(line.decode()).encode()


def folded(text: str) -> str:
    """The text as a terminal shows it: long lines are broken, and what follows the break is indented.

    So a long text of others cannot look like a line that begins at the left edge.
    """
    console = stdout()
    if not console.is_terminal:
        return text
    width = min(console.width, _real_width() or console.width)
    return "\n".join(_folded(line, max(width - 1, 2 * len(_INDENT))) for line in text.split("\n"))


def _real_width() -> int:
    """The columns of the terminal, or 0. The console does not ask for them if COLUMNS is set or TERM is `dumb`."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 0


def _folded(line: str, width: int) -> str:
    parts, used = [""], 0
    for letter in line:
        cells = 1 if letter.isascii() else 2  # no terminal uses more than 2
        if used + cells > width:
            parts.append(_INDENT)
            used = len(_INDENT)
        parts[-1] += letter
        used += cells
    return "\n".join(parts)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    left: Container[str] | None = None,
    title: str | None = None,
) -> Table:
    """A table for people, with lines around it if it has a title. Columns that are not in `left`, if that is said, hold
    numbers.
    """
    made = Table(title=title, title_justify="left", box=None if title is None else box.HEAVY_HEAD)
    for column in columns:
        made.add_column(column, justify="left" if left is None or column in left else "right")
    for row in rows:
        made.add_row(*row)
    return made


def note(message: str) -> None:
    """Tell a person something that is not part of the result. If nothing takes it, the command ends as it would have."""
    with suppress(OSError):
        stderr().print(message)


def fail(message: str, code: ExitCode = ExitCode.DOES_NOT_HOLD) -> NoReturn:
    """End the command with a sentence on stderr and an exit code.

    Wrong values of options are better reported with `typer.BadParameter`, which names the option.
    """
    note(f"parley: {message}")
    raise typer.Exit(code)


def ask(question: str, *, as_json: bool) -> None:
    """End the command unless somebody says that it may go on. Where a script runs it, nobody is there to be asked."""
    try:
        agreed = not as_json and typer.confirm(question, err=True)
    except typer.Abort:  # there is no answer
        agreed = False
    if not agreed:
        fail("nothing was changed; say --yes if that is what you want", ExitCode.WRONG_USE)


@contextmanager
def progress(description: str, total: int) -> Iterator[Advance]:
    """Show a bar on stderr while the block runs, if a person is watching; yield what moves it on."""
    with _bar() as bar:
        task = bar.add_task(description, total=total)

        def advance(steps: int = 1) -> None:
            bar.advance(task, steps)

        yield advance


@contextmanager
def reaching(description: str) -> Iterator[Callable[[int, int], None]]:
    """Like `progress`, for work that tells how much is done, of how much; the bar is shown once that is known."""
    with _bar() as bar:
        task = bar.add_task(description, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


def _bar() -> Progress:
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


# The streams are looked up at each call: tests and callers replace them.
def stdout() -> Console:
    """The console of results. Square brackets are text, not markup; lines are not folded in a pipe."""
    return _console(to_stderr=False)


def stderr() -> Console:
    """The console of everything that is not a result."""
    return _console(to_stderr=True)


class _Console(Console):
    """Much of what is shown was written by brokers, publishers or files. As text it must not steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(unsteering(segment.text), segment.style)


def _console(*, to_stderr: bool) -> Console:
    console = _Console(stderr=to_stderr, highlight=False, markup=False, emoji=False)
    if console.width < 1:  # COLUMNS=0: it would show nothing
        console.width = USUAL_WIDTH
    if not console.is_terminal:
        console.soft_wrap = True
        console.width = max(console.width, PIPE_WIDTH)
    return console
