"""The tree of commands, and how the ways in which a command can end become exit codes."""

import io
import signal
import sys
import traceback
from typing import Annotated

import typer

from parley import __version__
from parley.cli import bench, demo, output, sim

__all__ = ["app", "main", "run_command"]

app = typer.Typer(
    name="parley",
    help="Publish/subscribe for organisations that do not trust each other.",
    epilog="Exit codes: 0 done and holds, 1 a checked property does not hold, 2 wrong use, 3 network unreachable, "
    "70 a defect of parley.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(sim.app, name="sim")
app.add_typer(bench.app, name="bench")
app.command(name="demo")(demo.demo)


def main() -> None:
    """The process: how it takes signals and writes; then the command line."""
    # Whoever reads the output may stop reading: that is no error of ours, and not exit code 1.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    run_command()


def run_command() -> None:
    """Run the command line; the result on stdout, everything else on stderr."""
    try:
        app()
    except (ConnectionError, TimeoutError) as error:
        output.note(f"parley: the network cannot be reached: {error}")
        sys.exit(output.ExitCode.UNREACHABLE)
    except OSError as error:
        where = "the result cannot be written" if error.filename is None else error.filename
        output.note(f"parley: {where}: {error.strerror}")
        sys.exit(output.ExitCode.WRONG_USE)
    except Exception:  # noqa: BLE001 - the last resort: a defect must not look like a broken property
        traceback.print_exc()
        output.note("parley: this is a defect of parley; please report it with the lines above")
        sys.exit(output.ExitCode.DEFECT)


def _print_version(wanted: bool) -> None:
    if wanted:
        output.emit({}, f"parley {__version__}", as_json=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass
