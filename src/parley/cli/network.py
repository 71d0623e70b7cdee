"""A command's connection to a network, and `parley status`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar, cast

import typer

from parley.cli.contexts import Chosen, meant
from parley.cli.output import note
from parley.cli.pubsub_values import choice
from parley.client.client import Client, connect
from parley.client.errors import UnknownTopic, Unreachable
from parley.client.messages import Level

__all__ = ["INTERRUPTED", "Verify", "connected", "observing", "run", "states", "write"]

DAY = 86_400_000  # ms
WARNING_DAYS = 30  # before a credential ends
INTERRUPTED = 130  # what shells expect of a command that Ctrl-C ended
STALLED_SECONDS = 30.0  # after which a command gives up on brokers that answer but show nothing fresh
UNREAD = 141  # and of one whose reader has gone away

T = TypeVar("T")

Verify = Annotated[
    str,
    typer.Option(
        parser=choice("certified", "quorum", "trusted"),
        metavar="LEVEL",
        help="certified: proofs from any broker; quorum: equal answers of f+1; trusted: your own organisation's word.",
    ),
]


@asynccontextmanager
async def connected(
    chosen: Chosen,
    who: str | None = None,
    *,
    topic: str | None = None,
    admin: bool = False,
    verify: str = "certified",
) -> AsyncIterator[Client]:
    """A client of the chosen network, speaking as the identity that was asked for; `topic` is what it is about."""
    async with _reached(chosen, _client(chosen, who, admin=admin, verify=verify)) as client:
        try:
            yield client
        except UnknownTopic as error:
            if topic is None:
                raise
            known = [one.name for one in await client.topics()]
            raise UnknownTopic(f"{error.detail}{meant(topic, known)}") from None


@asynccontextmanager
async def observing(chosen: Chosen, who: str | None = None) -> AsyncIterator[Client]:
    """A client that can only ask brokers how they are: it need not find any of them well."""
    client = _client(chosen, who, admin=False, verify="certified")
    try:
        yield client
    finally:
        await client.close()


async def states(client: Client) -> dict[str, str]:
    """What each broker says of itself; down, if it says nothing."""
    return {one.name: "down" if one.status is None else one.status.state for one in await client.status()}


@asynccontextmanager
async def _reached(chosen: Chosen, client: Client) -> AsyncIterator[Client]:
    """The client, connected. A network of this machine that does not answer has most likely not been started."""
    try:
        await client.__aenter__()
    except Unreachable:
        home = chosen.file.genesis.parent
        if (home / "brokers").is_dir():
            note(
                f"parley: is the network running? `parley up --detach --dir {home}` starts what does not run"
            )
        raise
    try:
        yield client
    finally:
        await client.close()


def _client(chosen: Chosen, who: str | None, *, admin: bool, verify: str) -> Client:
    client = connect(
        genesis=chosen.file.genesis,
        identity=chosen.speaker(who, admin=admin),
        brokers=chosen.file.brokers,
        verify=cast("Level", verify),
        timeout=STALLED_SECONDS,
        on_stalled=lambda trouble: note(f"parley: {trouble}"),
    )
    _warn(client)
    return client


def _warn(client: Client) -> None:
    """One that has ended already is refused before it comes to this."""
    days = (client.credential_ends - time.time_ns() // 1_000_000) // DAY
    if days < WARNING_DAYS:
        note(
            f"parley: the credential of {client.organisation}/{client.name} ends in {days} days; an administrator of "
            f"{client.organisation} can renew it: parley client renew {client.name}"
        )


def run(command: Coroutine[None, None, T]) -> T:
    """Run a command to its end, or to Ctrl-C."""
    # The process ends when the reader of its output is gone; a broker that is gone must not have the same effect.
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        return asyncio.run(command)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGPIPE, before)


def write(line: bytes) -> None:
    """Write to stdout at once. When nobody reads it any more, the command ends as if the signal had ended it."""
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere
        raise typer.Exit(UNREAD) from None
