"""What tests of brokers that name one another use: what the other three say of one broker in their logs and numbers, and in `parley status`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from rich.console import Console
from tests.node.network import SECONDS, LocalNetwork
from tests.node.watching import Page, Scrape, address_of
from tests.node.watching import until as page_when

from parley.cli.contexts import find
from parley.cli.network import observing
from parley.cli.network_status import PATIENCE, Found, Picture
from parley.cli.status_summary import Shard
from parley.localnet.proxy import Proxy
from parley.node.provision import broker_directory

OTHERS = ("alpha-1", "beta-1", "gamma-1")
VICTIM = "delta-1"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.05)


# -- logs ------------------------------------------------------------------------------------------------------------


def lines(network: LocalNetwork, broker: str, *events: str) -> list[dict[str, Any]]:
    """What a broker has said about the victim."""
    return [line for line in network.log(broker) if line["event"] in events and line.get("peer") == VICTIM]


def has_said(network: LocalNetwork, broker: str, event: str) -> bool:
    return bool(lines(network, broker, event))


def has_named(network: LocalNetwork, broker: str, event: str) -> set[object]:
    """Of whom a broker has said this."""
    return {line["peer"] for line in network.log(broker) if line["event"] == event}


def is_last(network: LocalNetwork, broker: str, event: str, **values: object) -> bool:
    """Whether this is the last that a broker has said of the victim's being there."""
    found = lines(network, broker, "peer_up", "peer_down")
    return bool(found) and values.items() <= found[-1].items() and found[-1]["event"] == event


async def all_up(network: LocalNetwork) -> None:
    """Until every broker has heard of every other one."""
    for name in network.names:
        await until(partial(_has_met_all, network, name))


def _has_met_all(network: LocalNetwork, broker: str) -> bool:
    if not (broker_directory(network.directory, broker) / "log.jsonl").exists():
        return False
    return len(has_named(network, broker, "peer_up")) == len(OTHERS)


async def said(network: LocalNetwork, event: str) -> list[dict[str, Any]]:
    """The line in which each of the others has first said this of the victim, once all have."""
    for name in OTHERS:
        await until(partial(has_said, network, name, event))
    return [lines(network, name, event)[0] for name in OTHERS]


async def named(network: LocalNetwork, event: str, **values: object) -> list[dict[str, Any]]:
    """The line in which each of the others says this of the victim's being there, once it is the last of each."""
    for name in OTHERS:
        await until(partial(is_last, network, name, event, **values))
    return [lines(network, name, event)[-1] for name in OTHERS]


# -- numbers ---------------------------------------------------------------------------------------------------------


async def measured(network: LocalNetwork, metric: str, holds: Callable[[float], bool], **labels: str) -> None:
    """Until this holds for the victim's number at every other broker. It does not for their numbers of one another."""

    def named_victim(page: Page) -> bool:
        return holds(Scrape(page)(metric, peer=VICTIM, **labels))

    for name in OTHERS:
        found = Scrape(await page_when(named_victim, address_of(network, name), "/metrics"))
        wrong = [other for other in OTHERS if other != name and holds(found(metric, peer=other, **labels))]
        assert not wrong, f"{name} also names {wrong}"


# -- status ----------------------------------------------------------------------------------------------------------


async def shown(network: LocalNetwork, holds: Callable[[Shard], bool]) -> tuple[Shard, list[str]]:
    """What `parley status` shows as soon as this holds of it: for scripts, and the lines for people."""
    chosen = find(network.directory, None)
    picture = None
    try:
        async with asyncio.timeout(SECONDS), observing(chosen) as client:
            while True:
                members = await client.status(PATIENCE)
                picture = Picture(chosen, [Found(client.committee, members, client.readers(members))])
                if holds(picture.shards[0]):
                    return picture.shards[0], _text(picture)
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"status stays at {picture and picture.shards[0]}") from None


def _text(picture: Picture) -> list[str]:
    console = Console(width=200, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(picture.page())
    return [" ".join(line.split()) for line in captured.get().splitlines()]


# -- links -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def behind_proxies(
    network: LocalNetwork, links: Iterable[tuple[str, str]]
) -> AsyncIterator[list[Proxy]]:
    """One for each of these links: the first broker reaches the second through it."""
    proxies: list[Proxy] = []
    ways: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        for source, target in links:
            proxies.append(await stack.enter_async_context(Proxy(network.broker(target)[0].address)))
            ways.setdefault(source, ["[peers]"]).append(f'{target} = "{proxies[-1].address}"')
        for source, written in ways.items():
            path = network.config(source)
            path.write_text("\n".join([path.read_text(), *written, ""]))
        yield proxies
        await asyncio.to_thread(network.stop_all)  # or they would look for one another without them
