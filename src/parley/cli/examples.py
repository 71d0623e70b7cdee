"""`parley examples`: two tenants with devices that publish, for a network that has nothing in it yet; the pipeline reads them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from parley.cli import output
from parley.cli.contexts import Chosen, ContextName, Directory, dir_option, find
from parley.cli.local_folder import provisioning, require_node_extra
from parley.cli.local_setup import CREDENTIAL_MS
from parley.cli.network import connected, run
from parley.client.contexts import read_genesis, read_identity
from parley.client.errors import ClientExists, TopicExists, UnknownTopic
from parley.client.publisher import Publisher
from parley.spark.pipeline.sensors import Pace, Reading, readings
from parley.spark.pipeline.tenants import (
    AIR,
    ANALYST,
    PARTITIONS,
    SENSOR,
    TENANTS,
    VITALS,
    Tenant,
    UnfitNetwork,
    organisation_of,
)

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
    found = islice(readings(seed, Pace(first, timedelta(minutes=interval), malformed)), limit)

    async def command() -> Sent:
        await set_up(chosen)
        with output.progress("publishing", limit) as advance:
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


@dataclass
class Sent:
    """What was published, by topic."""

    messages: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)  # by what is wrong with them


def _organisation(chosen: Chosen, tenant: Tenant) -> str:
    try:
        return organisation_of(tenant, read_genesis(chosen.file.genesis))
    except UnfitNetwork as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)


def who(chosen: Chosen, tenant: Tenant, client: str) -> str:
    """As `--as` wants it."""
    return f"{_organisation(chosen, tenant)}/{client}"


def identity_of(chosen: Chosen, tenant: Tenant, client: str) -> Path:
    return chosen.directory / "identities" / f"{_organisation(chosen, tenant)}-{client}.json"


async def set_up(chosen: Chosen) -> None:
    """Put clients and topics on the ledger, if they are not there: each tenant's administrator does its own part."""
    await asyncio.gather(*(_set_up(chosen, tenant) for tenant in TENANTS))


async def _set_up(chosen: Chosen, tenant: Tenant) -> None:
    organisation = _organisation(chosen, tenant)
    files = {name: _identity(chosen, tenant, name) for name in (tenant.publisher, tenant.reader)}
    async with connected(chosen, f"{organisation}/admin") as admin:
        for name, role in ((tenant.publisher, SENSOR), (tenant.reader, ANALYST)):
            identity = read_identity(files[name])
            with suppress(ClientExists):
                await admin.register_client(
                    name, identity.credential.key, {"role": role}, proof=identity.proof()
                )
        with suppress(TopicExists):
            await admin.create_topic(
                tenant.topic,
                partitions=PARTITIONS,
                publish=f'org == "{organisation}" and role == "{SENSOR}"',
                subscribe=f'org == "{organisation}" and role == "{ANALYST}"',
            )


def _identity(chosen: Chosen, tenant: Tenant, name: str) -> Path:
    from parley.node.provision import create_identity  # noqa: PLC0415 - an extra

    path = identity_of(chosen, tenant, name)
    if not path.exists():
        organisation = _organisation(chosen, tenant)
        if not (chosen.directory / "organisations" / organisation / "anchor.key").is_file():
            output.fail(
                f"{chosen.directory} does not hold the anchor of {organisation}, so the tenants of the example cannot be "
                "made; it is for a network that `parley up` made",
                output.ExitCode.WRONG_USE,
            )
        with provisioning():
            until = time.time_ns() // 1_000_000 + CREDENTIAL_MS
            create_identity(chosen.directory, organisation, name, not_after=until)
    return path


async def publish(
    chosen: Chosen,
    readings: Iterable[Reading],
    *,
    seconds: float | None = None,
    rate: float | None = None,
    sent: Callable[[], None] = lambda: None,
) -> Sent:
    """Until there are no more readings, or the time is over; then wait for the receipts of all that were sent."""
    outcome, begin = Sent(), time.monotonic()
    async with _publishers(chosen) as publishers:
        for number, reading in enumerate(readings):
            now = time.monotonic() - begin
            if rate is not None and number / rate > now:
                await asyncio.sleep(number / rate - now)
            if seconds is not None and time.monotonic() - begin >= seconds:
                break
            tenant, publisher = publishers[reading.topic]
            await publisher.send(reading.value, key=reading.device, tags={tenant.place: reading.place})
            outcome.messages[reading.topic] += 1
            if reading.flaw is not None:
                outcome.malformed[reading.flaw] += 1
            sent()
    return outcome


@asynccontextmanager
async def _publishers(chosen: Chosen) -> AsyncIterator[Mapping[str, tuple[Tenant, Publisher]]]:
    async with AsyncExitStack() as stack:
        made = {}
        for tenant in TENANTS:
            client = await stack.enter_async_context(connected(chosen, who(chosen, tenant, tenant.publisher)))
            made[tenant.topic] = (tenant, await stack.enter_async_context(client.publisher(tenant.topic)))
        yield made


async def intrude(chosen: Chosen) -> str:
    """The provider of home devices tries to publish junk as the hospital's: in what words the network refuses it."""
    async with connected(chosen, who(chosen, AIR, AIR.publisher)) as client:
        try:
            # With a partition it need not look the topic up, so that the refusal is a receipt on the ledger.
            await client.publish(VITALS.topic, "junk", partition=0)
        except UnknownTopic as refusal:
            return str(refusal)
    return ""
