"""A command's connection to a network, and what it says while there is none."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeVar, cast

import typer

from parley.cli.contexts import Chosen, dir_option, meant
from parley.cli.output import note
from parley.cli.pubsub_values import choice
from parley.cli.texts import TEXTS
from parley.client.client import Client, connect
from parley.client.contexts import read_genesis
from parley.client.errors import ParleyError, Stalled, UnknownTopic, Unreachable
from parley.client.messages import Level
from parley.consensus.committee import all_brokers
from parley.model.texts import add_texts
from parley.node.processes import local_brokers

DAY = 86_400_000  # ms
WARNING_DAYS = 30  # before a credential ends
INTERRUPTED = 130  # what shells expect of a command that Ctrl-C ended
STALLED_SECONDS = 30.0  # after which a command gives up on brokers that answer but show nothing fresh
UNREAD = 141  # and of one whose reader has gone away

T = TypeVar("T")

add_texts(TEXTS)

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
    try:
        async with _client(chosen, who, admin=admin, verify=verify) as client:
            try:
                yield client
            except UnknownTopic:
                if topic is None:
                    raise
                known = [one.name for one in await client.topics()]
                raise UnknownTopic("command", topic=topic, ending=meant(topic, known)) from None
    except (Unreachable, Stalled) as error:
        # Brokers of this folder that are missed have most likely not been started.
        if remedy := starting(chosen):
            error.add_note(remedy)
        raise


@asynccontextmanager
async def observing(
    chosen: Chosen, who: str | None = None, shard: int | None = None
) -> AsyncIterator[Client]:
    """A client that can only ask the brokers of a shard how they are: it need not find any of them well."""
    client = _client(chosen, who, admin=False, verify="certified", shard=shard)
    try:
        yield client
    finally:
        await client.close()


async def states(client: Client) -> dict[str, str]:
    """What each broker says of itself; down, if it says nothing."""
    return {one.name: "down" if one.status is None else one.status.state for one in await client.status()}


def starting(chosen: Chosen) -> str:
    """How to start the brokers of the chosen folder that do not run; empty if there is none."""
    genesis = read_genesis(chosen.file.genesis)
    try:
        here = local_brokers(chosen.directory, genesis)
        stopped = [broker.name for broker in here if broker.pid() is None]
    except PermissionError:  # they belong to another user
        return ""
    if not stopped:
        return ""
    which = "--detach" if len(here) == len(all_brokers(genesis)) else " ".join(stopped)
    return f"not running here: {', '.join(stopped)}; start with `parley up {which}{dir_option(chosen.directory)}`"


def _client(chosen: Chosen, who: str | None, *, admin: bool, verify: str, shard: int | None = None) -> Client:
    _listen()
    client = connect(
        genesis=chosen.file.genesis,
        identity=chosen.speaker(who, admin=admin),
        brokers=chosen.file.brokers,
        verify=cast("Level", verify),
        timeout=STALLED_SECONDS,
        on_stalled=_waiting(),
        shard=chosen.file.shard if shard is None else shard,
    )
    _warn(client)
    return client


class _Notes(logging.Handler):
    """Tells the person at the command line what the client has to say: mostly which broker lies or is suspected."""

    def emit(self, record: logging.LogRecord) -> None:
        note(f"parley: {record.getMessage()}")


def _listen() -> None:
    log = logging.getLogger("parley.client")
    if not any(isinstance(one, _Notes) for one in log.handlers):
        log.addHandler(_Notes(logging.WARNING))


def _waiting() -> Callable[[ParleyError], None]:
    """Says that the command waits, and not again while it still does: if it gives up, the error has the details."""
    heard = float("-inf")

    def tell(trouble: ParleyError) -> None:
        nonlocal heard
        before, heard = heard, time.monotonic()
        if heard - before > STALLED_SECONDS:
            what = trouble.what if isinstance(trouble, Stalled) else "reaching a broker"
            known = trouble.circumstances if isinstance(trouble, Stalled) else None
            who = "" if known is None else f" ({known.counted})"
            note(f"parley: {what}: no fresh result yet{who}; giving up after {STALLED_SECONDS:g} s at most")

    return tell


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
    try:
        # The process ends when the reader of its output is gone; a broker that is gone must not have the same effect.
        with handling({signal.SIGPIPE: signal.SIG_IGN}):
            return asyncio.run(command)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def handling(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Other answers to these signals, as `signal.signal` takes them, while the block runs."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def call(
    chosen: Chosen,
    who: str | None,
    work: Callable[[Client], Awaitable[T]],
    *,
    topic: str | None = None,
    admin: bool = False,
    verify: str = "certified",
) -> T:
    """What `work` returns of a client of the chosen network; the other arguments are those of `connected`."""

    async def command() -> T:
        async with connected(chosen, who, topic=topic, admin=admin, verify=verify) as client:
            return await work(client)

    return run(command())


def write(line: bytes) -> None:
    """Write to stdout at once. When its reader is gone, the command ends as if the signal had ended it."""
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered goes nowhere
        raise typer.Exit(UNREAD) from None
