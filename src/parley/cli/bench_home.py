"""What commands that measure a network of their own share: a folder for it, how it ends, and options."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tomllib
from collections.abc import Callable, Collection, Coroutine, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.table import Table

from parley.bench.errors import Unavailable
from parley.bench.figures import Case
from parley.bench.usage import is_available
from parley.cli import output
from parley.cli.contexts import nearest
from parley.cli.local_folder import make_folder, new_folder, provisioning, require_node_extra
from parley.cli.network import INTERRUPTED, handling
from parley.model.batches import MAX_MESSAGES

T = TypeVar("T")
Work = Callable[[Path], Coroutine[Any, Any, T]]  # what is done in the folder

MAX_BATCH_BYTES = 1_000_000  # of values: what brokers take of a batch, without what surrounds the values
OVERHEAD = 96  # bytes of a message besides its value, at most

# Ctrl-C and a polite kill end a measurement in order; a pipe to a process that has ended does not kill. A shell that runs
# this in the background lets it ignore Ctrl-C, and asyncio would leave it at that.
SIGNALS = {
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: lambda *_: signal.raise_signal(signal.SIGINT),
}

Brokers = Annotated[int, typer.Option(min=1, max=32, help="Brokers, each a process of its own organisation.")]
Size = Annotated[int, typer.Option(min=1, max=900_000, help="Bytes of a message.")]
Batch = Annotated[int, typer.Option(min=1, max=MAX_MESSAGES, help="Messages in a batch.")]
Seconds = Annotated[float, typer.Option(min=0.5, max=86_400, help="Length of a window, after the warm-up.")]
Runs = Annotated[int, typer.Option(min=1, max=100, help="Windows, each on a new network.")]
Keep = Annotated[
    Path | None,
    typer.Option("--dir", help="Keep the networks with their logs and ledgers in this new folder."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of broker.toml, such as storage.cache_bytes=1048576."
    ),
]


def measured(command: str, directory: Path | None, work: Work[T]) -> T:
    """Run the measurement in a folder of its own. Nothing of it is left, neither processes nor, without --dir, files."""
    require_node_extra(f"bench {command}")
    from parley.node.config import ConfigError  # noqa: PLC0415 - needs the extra `node`

    if not is_available():
        output.fail("CPU time is read from /proc, which this system does not have", output.ExitCode.WRONG_USE)
    home = new_folder(directory, "parley-bench-")
    try:
        make_folder(home)
        with handling(SIGNALS), provisioning():
            try:
                return asyncio.run(work(home))
            except ConfigError as error:  # what else is in these files is ours
                where = f"{error.key}: " if error.key else ""
                raise typer.BadParameter(f"{where}{error.problem}", param_hint="--set") from error
    except Unavailable as error:
        output.fail(str(error).rstrip("."), output.ExitCode.UNREACHABLE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)


def parse_settings(words: list[str] | None) -> dict[str, Any]:
    """`table.key=value` and `key=value` as they would be read from a file."""
    found: dict[str, Any] = {}
    for word in words or []:
        path, _, value = word.partition("=")
        try:
            read: dict[str, Any] = tomllib.loads(f"{path} = {value}\n")
        except tomllib.TOMLDecodeError:
            read = {}
        if len(read) != 1:
            raise typer.BadParameter(
                f"{word!r} is not KEY=VALUE as in broker.toml; words need quotes: --set 'log.level=\"debug\"'.",
                param_hint="--set",
            )
        for key, one in read.items():
            found[key] = {**found.get(key, {}), **one} if isinstance(one, dict) else one
    return found


def parse_names(text: str, known: Collection[str], option: str) -> list[str]:
    """Words with commas between them, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in known:
            problem = f"{name!r} is not one of {', '.join(known)}{nearest(name, list(known))}"
            raise typer.BadParameter(problem, param_hint=option)
    return names


def require_fitting(size: int, batch: int) -> None:
    if (size + OVERHEAD) * batch > MAX_BATCH_BYTES:
        most = max(1, MAX_BATCH_BYTES // (size + OVERHEAD))
        raise typer.BadParameter(
            f"a batch takes at most {MAX_BATCH_BYTES} bytes, that is {most} messages of {size} bytes.",
            param_hint="--batch",
        )


def cases(title: str, results: Iterable[Case]) -> Table:
    """The lines of a result for people."""
    return output.table(
        ("case", "value", "unit", "baseline", "ratio", "spread"),
        (
            (
                one.case,
                f"{one.value:,.10g}",
                one.unit,
                "" if one.baseline is None else f"{one.baseline:,.10g}",
                "" if one.baseline is None else f"{one.ratio or 0.0:.2f}",
                f"{one.spread:.0%}",
            )
            for one in results
        ),
        left=("case", "unit"),
        title=title,
    )
