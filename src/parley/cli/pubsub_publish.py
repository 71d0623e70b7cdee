"""`parley pub`: values from the command line or lines from stdin, each acknowledged by a certified receipt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from parley.cli import output
from parley.cli.contexts import As, ContextName, Directory, find
from parley.cli.network import call, write
from parley.cli.pubsub_receipts import Receipts
from parley.cli.pubsub_values import Topic, check_rule, parse_headers, parse_tags, require_stdin, stdin_lines
from parley.client.client import Client
from parley.client.messages import Receipt
from parley.client.publisher import Pending
from parley.model.names import Value

UNACKNOWLEDGED = 2_000  # messages that may wait for their receipts


def pub(
    *,
    topic: Topic,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE...", help="What to publish; without, or -, lines of stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="Messages of one key share a partition.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", "-t", metavar="NAME=VALUE", help="What constraints match; repeatable."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="For readers; constraints do not see it; repeatable."
        ),
    ] = None,
    rule: Annotated[
        str, typer.Option(metavar="EXPR", help="""Who may read it: org in ["alpha"] and role == "nurse".""")
    ] = "",
    delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", help="Splits each line of stdin into key and value."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Where to publish; by default the key decides."),
    ] = None,
    receipt: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|-|none",
            help="Where receipts go: a new file, a folder if there are several messages, - for stdout. If not said, that "
            "of a single message goes to receipts/ in the network's folder or in ~/.local/state/parley.",
        ),
    ] = None,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.JsonLines = False,
) -> None:
    """Publish to a topic, and print where the messages stand once a quorum has certified it.

    The receipt of a single message is saved: `parley verify` checks it with the genesis file alone.
    """
    message = _Message(
        None if key is None else os.fsencode(key),
        parse_tags(tag or []),
        parse_headers(header or []),
        check_rule(rule, "--rule"),
        partition,
        None if delimiter is None else os.fsencode(delimiter),
    )
    given = [] if values is None or values == ["-"] else values
    if not given:
        require_stdin("VALUE")
    chosen = find(directory, context)
    receipts = Receipts(chosen, receipt)
    report = _Report(topic, receipts, as_json=json)
    receipts.check(single=len(given) == 1)
    source = _each(given) if given else stdin_lines()
    try:
        call(chosen, who, lambda client: _publish(client, topic, source, message, report), topic=topic)
    finally:
        report.summary()
    if not report.count:
        output.note("parley: stdin held no line, so nothing was published")
    if receipts.unsaved > 1:
        output.note(f"parley: {receipts.unsaved} receipts could not be saved")
    if receipts.unsaved:
        raise typer.Exit(output.ExitCode.DOES_NOT_HOLD)


@dataclass(frozen=True)
class _Message:
    """What all messages of one command share."""

    key: bytes | None
    tags: Mapping[str, Value]
    headers: Mapping[str, bytes]
    rule: str
    partition: int | None
    delimiter: bytes | None

    def split(self, line: bytes) -> tuple[bytes | None, bytes]:
        if self.delimiter is not None:
            key, found, value = line.partition(self.delimiter)
            if found:
                return key, value
        return self.key, line


async def _publish(
    client: Client, topic: str, source: AsyncIterator[bytes], message: _Message, report: _Report
) -> None:
    waiting: asyncio.Queue[Pending | None] = asyncio.Queue(UNACKNOWLEDGED)

    async def acknowledge() -> None:
        while (pending := await waiting.get()) is not None:
            report.add(await pending)

    try:
        async with client.publisher(topic) as publisher, asyncio.TaskGroup() as group:
            group.create_task(acknowledge())
            async for line in source:
                key, value = message.split(line)
                pending = await publisher.send(
                    value,
                    key=key,
                    tags=message.tags,
                    headers=message.headers,
                    rule=message.rule,
                    partition=message.partition,
                )
                await waiting.put(pending)
            await waiting.put(None)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _Report:
    """Says what was published. The first message waits for a second one: only a single message's receipt is kept."""

    def __init__(self, topic: str, receipts: Receipts, *, as_json: bool) -> None:
        self._topic = topic
        self._receipts = receipts
        self._as_json = as_json
        self._first: Receipt | None = None
        self.count = 0
        self._ranges: dict[int, tuple[int, int]] = {}  # partition: first and last offset

    def add(self, receipt: Receipt) -> None:
        self.count += 1
        if self.count == 1:
            self._first = receipt
            return
        if self._first is not None:
            self._one(self._first, single=False)
            self._first = None
        self._one(receipt, single=False)

    def summary(self) -> None:
        if self._first is not None:
            self._one(self._first, single=True)
        elif self._ranges and not self._as_json:
            places = ", ".join(
                f"partition {partition} from {first} to {last}"
                for partition, (first, last) in sorted(self._ranges.items())
            )
            output.emit({}, f"{self.count} messages published to {self._topic}: {places}", as_json=False)

    def _one(self, receipt: Receipt, *, single: bool) -> None:
        first, _ = self._ranges.get(receipt.partition, (receipt.offset, 0))
        self._ranges[receipt.partition] = (first, receipt.offset)
        kept = self._receipts.keep(receipt, single=single)
        if self._as_json:
            published = {
                "topic": receipt.topic,
                "partition": receipt.partition,
                "offset": receipt.offset,
                "height": receipt.height,
                "time": receipt.time,
                "publisher": receipt.publisher,
                "receipt": kept,  # a path, the receipt itself, or nothing
            }
            write(output.json_line(published))
        elif isinstance(kept, msgspec.Raw):
            write(bytes(kept) + b"\n")
        elif single:
            output.emit({}, _words(receipt, kept), as_json=False)


def _words(receipt: Receipt, path: str | None) -> str:
    place = f"{receipt.topic}, partition {receipt.partition}, offset {receipt.offset}"
    saved = "" if path is None else f"\nreceipt: {path}"
    return f"published to {place}, in block {receipt.height}{saved}"


async def _each(values: list[str]) -> AsyncIterator[bytes]:
    for value in values:
        yield os.fsencode(value)
