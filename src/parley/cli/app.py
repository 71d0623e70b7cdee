"""The tree of commands, and how the ways in which a command can end become exit codes."""

import io
import signal
import sys
import traceback
from typing import Annotated

import typer

from parley import __version__
from parley.application.application import VersionError
from parley.applications import ApplicationError
from parley.cli import output
from parley.cli.lazy import Later, later
from parley.client.errors import (
    ContextError,
    InvalidConstraint,
    InvalidMessage,
    InvalidRule,
    ParleyError,
    Stalled,
)

_MESSAGES, _NETWORK, _ADMINISTRATION = "Messages", "Networks", "Administration"
_MACHINES, _SIMULATION = "One node per machine", "Simulation and measurements"

app = typer.Typer(
    name="parley",
    cls=later(
        {
            "pub": Later("parley.cli.pubsub_publish", "pub", _MESSAGES),
            "sub": Later("parley.cli.pubsub", "sub", _MESSAGES),
            "fetch": Later("parley.cli.pubsub", "fetch", _MESSAGES),
            "read": Later("parley.cli.pubsub", "read", _MESSAGES),
            "verify": Later("parley.cli.verify", "verify", _MESSAGES),
            "up": Later("parley.cli.local", "up", _NETWORK),
            "down": Later("parley.cli.local", "down", _NETWORK),
            "status": Later("parley.cli.network_status", "status", _NETWORK),
            "logs": Later("parley.cli.local_logs", "logs", _NETWORK),
            "init": Later("parley.cli.ceremony_commands", "init", _MACHINES),
            "context": Later("parley.cli.contexts_commands", "app", _NETWORK),
            "topic": Later("parley.cli.topics", "app", _ADMINISTRATION),
            "client": Later("parley.cli.clients", "app", _ADMINISTRATION),
            "genesis": Later("parley.cli.ceremony_commands", "genesis_app", _MACHINES),
            "node": Later("parley.cli.ceremony_commands", "node_app", _MACHINES),
            "audit": Later("parley.cli.audit", "app", _MACHINES),
            "debug": Later("parley.cli.debug", "app", _MACHINES),
            "demo": Later("parley.cli.demo", "demo", _SIMULATION),
            "examples": Later("parley.cli.examples", "app", _MESSAGES),
            "pipeline": Later("parley.cli.pipeline", "app", _MESSAGES),
            "fault": Later("parley.cli.faults", "app", _SIMULATION),
            "sim": Later("parley.cli.sim", "app", _SIMULATION),
            "chaos": Later("parley.cli.chaos", "chaos", _SIMULATION),
            "bench": Later("parley.cli.bench", "app", _SIMULATION),
        }
    ),
    help="Publish/subscribe for organisations that do not trust each other.",
    epilog="Exit codes: 0 done and holds, 1 a checked property does not hold or the network refused, "
    "2 wrong use, 3 network unreachable, 70 a defect of parley.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_WRONG_USE = (ApplicationError, ContextError, InvalidConstraint, InvalidMessage, InvalidRule, VersionError)


def main() -> None:
    """The process: how it takes signals and writes; then the command line."""
    # The reader of the output may stop reading: that is no error of ours, and not exit code 1.
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
        what = "" if isinstance(error, Stalled) else "the network cannot be reached: "
        _complain(error, what)
        sys.exit(output.ExitCode.UNREACHABLE)
    except _WRONG_USE as error:
        _complain(error)
        sys.exit(output.ExitCode.WRONG_USE)
    except ParleyError as error:
        _complain(error)
        sys.exit(output.ExitCode.DOES_NOT_HOLD)
    except OSError as error:
        where = "the result cannot be written" if error.filename is None else error.filename
        output.note(f"parley: {where}: {error.strerror}")
        sys.exit(output.ExitCode.WRONG_USE)
    except Exception:  # noqa: BLE001 - the last resort: a defect must not look like a broken property
        traceback.print_exc()
        output.note("parley: this is a defect of parley; please report it with the lines above")
        sys.exit(output.ExitCode.DEFECT)


def _complain(error: Exception, what: str = "") -> None:
    """The error, and after it what those who passed it on had to add: mostly what to do."""
    for words in (f"{what}{error}", *getattr(error, "__notes__", ())):
        output.note(f"parley: {words}")


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
