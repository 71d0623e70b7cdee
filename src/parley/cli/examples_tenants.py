"""The two tenants of the worked pipeline on a network: their clients and topics, and what their devices publish."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from parley.cli.contexts import Chosen
from parley.cli.local_folder import provisioning
from parley.cli.network import connected
from parley.cli.output import ExitCode, fail
from parley.client import Client
from parley.client.contexts import read_genesis, read_identity
from parley.client.errors import ClientExists, PermissionDenied, TopicExists
from parley.client.publisher import Publisher
from parley.model.genesis import Genesis
from parley.spark.pipeline.sensors import Reading
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

CREDENTIAL_MS = 365 * 86_400_000


@dataclass
class Sent:
    """What was published, by topic."""

    messages: Counter[str] = field(default_factory=Counter)
    malformed: Counter[str] = field(default_factory=Counter)  # by what is wrong with them


def who(tenant: Tenant, genesis: Genesis, client: str) -> str:
    """As `--as` wants it."""
    try:
        return f"{organisation_of(tenant, genesis)}/{client}"
    except UnfitNetwork as error:
        fail(str(error), ExitCode.WRONG_USE)


def identity_of(chosen: Chosen, tenant: Tenant, client: str) -> Path:
    organisation, name = who(tenant, read_genesis(chosen.file.genesis), client).split("/")
    return chosen.directory / "identities" / f"{organisation}-{name}.json"


async def set_up(chosen: Chosen) -> None:
    """Put clients and topics on the ledger, if they are not there: each tenant's administrator does its own part."""
    genesis = read_genesis(chosen.file.genesis)
    await asyncio.gather(*(_set_up(chosen, tenant, genesis) for tenant in TENANTS))


async def _set_up(chosen: Chosen, tenant: Tenant, genesis: Genesis) -> None:
    organisation = who(tenant, genesis, "admin").split("/")[0]
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
        organisation = organisation_of(tenant, read_genesis(chosen.file.genesis))
        if not (chosen.directory / "organisations" / organisation / "anchor.key").is_file():
            fail(
                f"{chosen.directory} does not hold the anchor of {organisation}, so the tenants of the example cannot be "
                "made; it is for a network that `parley up` made",
                ExitCode.WRONG_USE,
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
    genesis = read_genesis(chosen.file.genesis)
    async with AsyncExitStack() as stack:
        made = {}
        for tenant in TENANTS:
            client: Client = await stack.enter_async_context(
                connected(chosen, who(tenant, genesis, tenant.publisher))
            )
            made[tenant.topic] = (tenant, await stack.enter_async_context(client.publisher(tenant.topic)))
        yield made


async def intrude(chosen: Chosen) -> str:
    """The provider of home devices tries to publish junk as the hospital's: in what words the network refuses it."""
    genesis = read_genesis(chosen.file.genesis)
    async with connected(chosen, who(AIR, genesis, AIR.publisher)) as client:
        try:
            await client.publish(VITALS.topic, "junk")
        except PermissionDenied as refusal:
            return str(refusal)
    return ""
