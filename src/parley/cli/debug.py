"""`parley debug bundle`: one file with what somebody needs who is to help, and with no secret in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from parley.cli import output
from parley.cli.contexts import ContextName, Directory, find
from parley.cli.debug_bundle import Bundle, collect
from parley.cli.local_folder import require_node_extra
from parley.client.contexts import read_genesis

MIB = 1024 * 1024
MAX_LOG_MIB = 48

app = typer.Typer(help="Find out what is wrong.", no_args_is_help=True)


@app.command()
def bundle(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="What to write; default: parley-debug-TIME.tar.gz here."
        ),
    ] = None,
    log_mib: Annotated[
        int, typer.Option("--log-mib", min=0, max=MAX_LOG_MIB, help="MiB of the end of each broker's log.")
    ] = 4,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Collect versions, configuration, status, ends of logs and metrics of a network's brokers in one file.

    No key, no credential, no message and no safety record gets in. Look at it before you send it.
    """
    require_node_extra("debug bundle")
    chosen = find(directory, context)
    path = out or Path(time.strftime("parley-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    if path.exists():
        output.fail(f"{path} exists already; choose another name with --out", output.ExitCode.WRONG_USE)
    found = collect(chosen, read_genesis(chosen.file.genesis), log_mib * MIB)
    found.write(path)
    result = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "files": {name: len(data) for name, data in found.entries.items()},
        "problems": found.problems,
    }
    output.emit(result, lambda: _told(path, found), as_json=json)


def _told(path: Path, found: Bundle) -> RenderableType:
    sizes = ((name, str(len(data))) for name, data in found.entries.items())
    missing = ["", *found.problems] if found.problems else []
    return Group(
        output.table(("collected", "bytes"), sizes),
        *missing,
        "",
        f"{path}: keys, credentials, messages and safety records are not in it; names of organisations, brokers and clients, "
        f"and addresses are.",
        f"Look at it before you send it: tar -xzf {path}",
    )
