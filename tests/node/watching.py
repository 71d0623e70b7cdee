"""What tests of a broker's pages use: the smallest HTTP client, and the numbers of a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.node.network import SECONDS, LocalNetwork

from parley.net.tls import Address

SETTINGS = '[metrics]\nlisten = "0"\n'


@dataclass(frozen=True)
class Page:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def lines(self) -> list[str]:
        return self.body.decode().splitlines()


class Scrape:
    """The numbers of one scrape, by name and labels."""

    def __init__(self, page: Page) -> None:
        assert page.status == 200, page.body
        self.families: dict[str, Metric] = {
            _full_name(family): family for family in text_string_to_metric_families(page.body.decode())
        }
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[name, frozenset(labels.items())]

    def of(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        """All samples of a name, by their labels."""
        return {labels: value for (sample, labels), value in self._samples.items() if sample == name}


def _full_name(family: Metric) -> str:
    """The parser drops what all counters end with."""
    return f"{family.name}_total" if family.type == "counter" else family.name


async def ask(address: Address, request: bytes) -> Page:
    """The answer to these very bytes."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(request)
            data = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
    return parse(data)


def parse(data: bytes) -> Page:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Page(int(first.split()[1]), headers, body)


async def get(address: Address, path: str) -> Page:
    return await ask(address, f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())


def address_of(network: LocalNetwork, broker: str) -> Address:
    """Where a broker that runs tells its numbers, as its log says."""
    told = [line for line in network.log(broker) if line["event"] == "metrics"]
    return Address.parse(str(told[-1]["address"]))


async def until(condition: Callable[[Page], bool], address: Address, path: str) -> Page:
    """The first answer that fulfils the condition."""
    page = None
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                page = await get(address, path)
                if condition(page):
                    return page
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{path} stays at {page}") from None
