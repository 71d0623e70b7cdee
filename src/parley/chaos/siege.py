"""A run with expensive clients: the attackers, the bystander, and measurements of the brokers meanwhile."""

from __future__ import annotations

import asyncio

from parley.chaos.bystander import Bystander
from parley.chaos.expensive.crew import Crew
from parley.chaos.expensive.jobs import Job
from parley.chaos.expensive.sizes import Size
from parley.chaos.gauges import SAMPLE_SECONDS, Peaks
from parley.chaos.history import History
from parley.chaos.network import Network
from parley.chaos.workload import Workload
from parley.consensus.committee import all_brokers

ANSWER_SECONDS = 60.0  # for what the bystander has begun when the attacks are over


class Siege:
    """From `prepare` to `end`; `abandon` ends it in any case. The last organisation attacks, the second looks on."""

    def __init__(self, network: Network, history: History, size: Size) -> None:
        self._network = network
        self._history = history
        self._size = size
        self._peaks = Peaks()
        self._bystander: Bystander | None = None
        self._sampling: asyncio.Task[None] | None = None
        self.crew = Crew(history)

    async def prepare(self, workload: Workload) -> None:
        """Both sides are connected."""
        organisations = [one.name for one in self._network.genesis.organisations]
        self._bystander = Bystander(await workload.bystander(organisations[1]), self._history)
        own = next(one for one in all_brokers(self._network.genesis) if one.organisation == organisations[-1])
        addresses = {name: broker.address for name, broker in self._network.brokers.items()}
        metrics = self._network.metrics[own.name]
        await self.crew.start(
            Job(str(self._network.directory), own.organisation, addresses, metrics, self._size)
        )

    async def begin(self) -> None:
        """The bystander gets to work, and is left alone for a while."""
        assert self._bystander is not None, "it was prepared"
        await self._bystander.begin()
        self._sampling = asyncio.create_task(self._sample())
        await asyncio.sleep(self._size.undisturbed_s)

    async def end(self) -> None:
        """The attackers have left: the bystander ends its work, and the figures are final."""
        if self._bystander is not None:
            await self._bystander.stop(ANSWER_SECONDS)
        await self._network.measure(self._peaks)
        for record in self._peaks.records(self._history.now):
            self._history.add(record)
        await self.abandon()

    async def abandon(self) -> None:
        await self.crew.stop()
        if self._sampling is not None:
            self._sampling.cancel()
        if self._bystander is not None:
            await self._bystander.stop(0.0)

    async def _sample(self) -> None:
        while True:
            await self._network.measure(self._peaks)
            await asyncio.sleep(SAMPLE_SECONDS)
