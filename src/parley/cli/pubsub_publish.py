"""`parley pub`: values from the command line or lines from stdin, each acknowledged by a certified receipt."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from parley.cli import output
from parley.cli.contexts import FILE, As, Chosen, ContextName, Directory, find
from parley.cli.network import connected, run, write
from parley.cli.pubsub_values import check_rule, parse_headers, parse_tags, stdin_lines
from parley.client.client import Client
from parley.client.contexts import read_genesis
from parley.client.messages import Receipt
from parley.client.publisher import Pending
from parley.ledger.publication import encode_publication
from parley.model.names import Value

__all__ = ["pub"]

UNACKNOWLEDGED = 2_000  # messages that may wait for their receipts


class Published(Struct):
    """What `pub` prints of a message; `receipt` is a path, the receipt itself, or nothing."""

    topic: str
    partition: int
    offset: int
    height: int
    time: int
    publisher: str
    receipt: str | msgspec.Raw | None


def pub(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
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
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    rule: Annotated[
        str, typer.Option(metavar="EXPR", help="""Who may read it: role == "nurse" and org != "alpha".""")
    ] = "",
    delimiter: Annotated[
        str | None,
        typer.Option("--key-delimiter", "-K", help="Splits each line of stdin into key and value."),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Not by key.")] = None,
    receipt: Annotated[
        str | None, typer.Option(metavar="PATH|-|none", help="Where receipts go; of one message by default.")
    ] = None,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
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
    chosen = find(directory, context)
    report = _Report(topic, _Receipts(chosen, receipt), as_json=json)
    source = stdin_lines() if values in (None, [], ["-"]) else _each(values or [])

    async def command() -> None:
        async with connected(chosen, who, topic=topic) as client:
            await _publish(client, topic, source, message, report)

    try:
        run(command())
    finally:
        report.summary()


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


class _Receipts:
    """Where receipts go, as --receipt says."""

    def __init__(self, chosen: Chosen, option: str | None) -> None:
        self._chosen = chosen
        self._option = option

    def keep(self, receipt: Receipt, *, single: bool) -> str | msgspec.Raw | None:
        """Save the receipt, if it is to be saved; the answer is what is said of it."""
        if self._option == "none" or (self._option is None and not single):
            return None
        if self._option == "-":
            return msgspec.Raw(encode_publication(receipt.proof()).rstrip(b"\n"))
        path = self._path(receipt, single=single)
        path.parent.mkdir(parents=True, exist_ok=True)
        receipt.save(path)
        return str(path)

    def _path(self, receipt: Receipt, *, single: bool) -> Path:
        # "/" may be part of a topic's name and "_" may not, so that no two topics share a file.
        topic = receipt.topic.replace("/", "_")
        name = f"parley-receipt-{topic}-{receipt.partition}-{receipt.offset}.json"
        if self._option is None:
            return self._folder() / name
        given = Path(self._option)
        return given if single and not given.is_dir() and not self._option.endswith("/") else given / name

    def _folder(self) -> Path:
        home = self._chosen.directory
        if (home / FILE).is_file():
            return home / "receipts"
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return state / "parley" / "receipts" / read_genesis(self._chosen.file.genesis).chain.hex()[:16]


class _Report:
    """Says what was published. The first message waits for a second one: only a single message's receipt is kept."""

    def __init__(self, topic: str, receipts: _Receipts, *, as_json: bool) -> None:
        self._topic = topic
        self._receipts = receipts
        self._as_json = as_json
        self._first: Receipt | None = None
        self._count = 0
        self._ranges: dict[int, tuple[int, int]] = {}  # partition: first and last offset

    def add(self, receipt: Receipt) -> None:
        self._count += 1
        if self._count == 1:
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
            output.emit({}, f"{self._count} messages published to {self._topic}: {places}", as_json=False)

    def _one(self, receipt: Receipt, *, single: bool) -> None:
        first, _ = self._ranges.get(receipt.partition, (receipt.offset, 0))
        self._ranges[receipt.partition] = (first, receipt.offset)
        kept = self._receipts.keep(receipt, single=single)
        published = Published(
            receipt.topic,
            receipt.partition,
            receipt.offset,
            receipt.height,
            receipt.time,
            receipt.publisher,
            kept,
        )
        if self._as_json:
            write(msgspec.json.encode(published) + b"\n")
        elif isinstance(kept, msgspec.Raw):
            write(bytes(kept) + b"\n")
        elif single:
            output.emit({}, _words(published), as_json=False)


def _words(published: Published) -> str:
    place = f"{published.topic}, partition {published.partition}, offset {published.offset}"
    saved = f"\nreceipt: {published.receipt}" if isinstance(published.receipt, str) else ""
    return f"published to {place}, in block {published.height}{saved}"


async def _each(values: list[str]) -> AsyncIterator[bytes]:
    for value in values:
        yield os.fsencode(value)
