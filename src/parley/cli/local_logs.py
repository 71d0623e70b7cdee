"""`parley logs`: what the brokers of a local network wrote down, in one order and in words."""

from __future__ import annotations

import heapq
import os
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from parley.cli import output
from parley.cli.contexts import ContextName, Directory, find_directory, meant
from parley.cli.pubsub_format import visible
from parley.node.processes import last_lines

MAX_LINES = 100_000
LINE_BYTES = 512  # about what a line takes; decides how much of a file is read for its last lines
POLL_SECONDS = 0.2

Entry = tuple[str, str, dict[str, Any]]  # time, broker, fields


def logs(
    *,
    broker: Annotated[str | None, typer.Argument(metavar="BROKER", help="Only this one's.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, max=MAX_LINES, help="How many, from the end.")
    ] = 100,
    directory: Directory = None,
    context: ContextName = None,
    json: output.JsonLines = False,
) -> None:
    """Show the logs of the brokers in a network's folder, merged by time."""
    home = find_directory(directory, context)
    files = {path.parent.name: path for path in sorted(home.glob("brokers/*/log.jsonl"))}
    if broker is not None:
        if broker not in files:
            output.fail(
                f"{home} has no log of a broker {broker!r}{meant(broker, list(files))}",
                output.ExitCode.WRONG_USE,
            )
        files = {broker: files[broker]}
    if not files:
        output.fail(f"{home} has no logs: no broker has run there", output.ExitCode.WRONG_USE)
    tails = {name: path.stat().st_size for name, path in files.items()}
    found = (
        [_entry(name, line) for line in last_lines(path, lines, lines * LINE_BYTES)]
        for name, path in files.items()
    )
    entries = list(heapq.merge(*found, key=lambda entry: entry[:2]))
    for entry in entries[len(entries) - min(lines, len(entries)) :]:
        _show(entry, as_json=json)
    if follow:
        try:
            _follow(files, tails, as_json=json)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _follow(files: dict[str, Path], tails: dict[str, int], *, as_json: bool) -> None:
    while True:
        fresh: list[Entry] = []
        for name, path in files.items():
            if not path.exists():  # it is being replaced
                continue
            with path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < tails[name]:  # it was replaced
                    tails[name] = 0
                file.seek(tails[name])
                whole, newline, _torn = file.read().rpartition(b"\n")
            tails[name] += len(whole) + len(newline)
            fresh += [_entry(name, line) for line in whole.decode(errors="replace").splitlines()]
        for entry in sorted(fresh, key=lambda entry: entry[0]):
            _show(entry, as_json=as_json)
        time.sleep(POLL_SECONDS)


def _entry(name: str, line: str) -> Entry:
    """A line that is not JSON, after a crash for example, is shown as it is."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        fields = {"event": line}
    return str(fields.pop("time", "")), str(fields.pop("broker", name)), fields


def _show(entry: Entry, *, as_json: bool) -> None:
    moment, name, fields = entry
    line = {"time": moment, "broker": name, **fields}
    output.emit(line, lambda: _words(moment, name, dict(fields)), as_json=as_json)


def _words(moment: str, name: str, fields: dict[str, Any]) -> str:
    level, event = str(fields.pop("level", "")), str(fields.pop("event", ""))
    rest = " ".join(f"{key}={value}" for key, value in fields.items())
    clock = moment[11:23] or "-"
    return visible(f"{clock:12} {name:12} {level:8} {event} {rest}".rstrip().encode())
