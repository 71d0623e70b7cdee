"""`parley examples`: something to look at in a network that has nothing in it yet."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated

import typer

from parley.cli import output
from parley.cli.contexts import ContextName, Directory, dir_option, find
from parley.cli.examples_tenants import Sent, publish, set_up
from parley.cli.local_folder import require_node_extra
from parley.cli.network import run
from parley.spark.pipeline.sensors import Pace, readings

MESSAGES = 6_900  # about a day
MAX_MESSAGES = 10_000_000

app = typer.Typer(help="Fill a local network with data that looks real.", no_args_is_help=True)


def _parse_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            "give a date or a time, for example 2026-01-31 or 2026-01-31T08:00."
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def yesterday() -> datetime:
    """A day that is over: no device has measured the future."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)


@app.command()
def sensors(
    *,
    messages: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_MESSAGES, help=f"Stop after so many; {MESSAGES} unless --seconds is said."
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=86_400, help="Stop after so many seconds.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0.01, max=1_000_000, help="Messages per second; default: what it takes."),
    ] = None,
    malformed: Annotated[
        float, typer.Option(min=0, max=1, help="The share of messages that arrive damaged.")
    ] = 0.02,
    seed: Annotated[int, typer.Option(help="The same seed and start give the same messages.")] = 1,
    start: Annotated[
        datetime | None,
        typer.Option(
            parser=_parse_time, metavar="TIME", help="When devices begin to measure; default: yesterday, UTC."
        ),
    ] = None,
    interval: Annotated[
        int, typer.Option(min=1, max=1_440, help="Minutes between two readings of a device.")
    ] = 10,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Publish what the devices of a hospital and of homes would: vital signs, and indoor air.

    Both are tenants of the network, each with a topic that nobody else may use: `vitals` and `air`. Their clients and
    topics are made if they are not there. Readings have a daily rhythm, drift and noise; some devices fall silent, some
    readings come late, and some are damaged. `parley pipeline run` makes tables and charts of them.
    """
    require_node_extra("examples sensors")
    chosen = find(directory, context)
    begin, first = time.monotonic(), start or yesterday()
    limit = messages or (MESSAGES if seconds is None else MAX_MESSAGES)
    pace = Pace(first, timedelta(minutes=interval), malformed)

    async def command() -> Sent:
        await set_up(chosen)
        with output.progress("publishing", limit) as advance:
            found = islice(readings(seed, pace), limit)
            return await publish(chosen, found, seconds=seconds, rate=rate, sent=advance)

    sent = run(command())
    took = time.monotonic() - begin
    total, damaged = sent.messages.total(), sent.malformed.total()
    result = {
        "messages": total,
        "topics": dict(sent.messages),
        "malformed": damaged,
        "flaws": dict(sent.malformed),
        "seed": seed,
        "start": first.isoformat(),
        "seconds": round(took, 2),
    }
    output.emit(
        result,
        f"{total} readings were published in {took:.1f} s: "
        f"{', '.join(f'{count} to {topic}' for topic, count in sorted(sent.messages.items()))}; {damaged} of them are "
        f"damaged on purpose.\nTry:  parley pipeline run{dir_option(chosen.directory)}",
        as_json=json,
    )
