"""Pub/sub as the application of a simulated network."""

from __future__ import annotations

from parley.application.work import Budget
from parley.applications import data_shard
from parley.consensus.types import MAX_BATCHES
from parley.mempool.pool import Limits
from parley.model.refusals import OK
from parley.modules.staging.tables import LEAST
from parley.replica.ports import Mounted
from parley.replica.rejoining import Patience
from parley.sim.chance import stream
from parley.sim.charge import Charged, Meter, Prices
from parley.sim.checkers import BoundedExecution, Checker, NoDuplication
from parley.sim.pubsub.checkers import Agreed, NothingLost, PublicationOrder, Revocation, WholeStages
from parley.sim.pubsub.contest import Contest
from parley.sim.pubsub.disks import SoundDisks
from parley.sim.pubsub.expensive import SCALE
from parley.sim.pubsub.people import People
from parley.sim.pubsub.workload import Workload
from parley.sim.results import EqualResults, Keeping, KeptState
from parley.sim.setting import Users
from parley.sim.world import World
from parley.store.interface import KeyValue

# A block numbers few staged batches and does little, so that both take several blocks here, too.
SHARD = data_shard(2 * LEAST, Budget(Budget().batches // SCALE, Budget().housekeeping // SCALE))

# All that replicas wait for is shorter than in real networks, and a run has a few hundred blocks.
PATIENT = Patience(stuck=4_000, joins=8, apart=24)
IMPATIENT = Patience(views=12, heights=8, stuck=4_000, joins=8, apart=24)
OFTEN_IMPATIENT = 0.7

MAX_EXECUTION_MS = 250  # of a block


class Publishing:
    """Topics, subscriptions and publications of organisations with one broker each."""

    name = "pubsub"
    recovery_views = 160  # a replica that is stuck waits, and may start from a snapshot twice

    def __init__(self, seed: int, nodes: int, *, expensive: bool = False) -> None:
        self._seed = seed
        self._expensive = expensive
        self.people = People(seed, nodes)
        self.chain, self.version = self.people.chain, self.people.genesis.application
        self._agreed = Agreed()
        self._nothing_lost, self._sound_disks = NothingLost(self._agreed), SoundDisks(self._agreed)
        self._kept = KeptState()
        scale = SCALE if expensive else 1
        self._prices = Prices().slower(scale)
        self.limits = Limits(block_batches=MAX_BATCHES // scale)
        self.patience = IMPATIENT if stream(seed, "patience").random() < OFTEN_IMPATIENT else PATIENT

    def mounted(self, member: int, meter: Meter) -> Mounted:
        machine, keeper = SHARD.mount(self.people.genesis)
        charged: Mounted[Keeping] = Mounted(Charged(machine, self._prices, meter), keeper)
        return self._kept.watched(member, charged)

    def users(self, world: World) -> Users:
        users = Contest if self._expensive else Workload
        return users(world, self._seed, self.people)

    def checkers(self) -> list[Checker]:
        administrators = {admin.key: admin.organisation for admin in self.people.administrators}
        return [
            NoDuplication(OK),
            EqualResults(SHARD.mount(self.people.genesis).machine),
            self._kept,
            PublicationOrder(self._agreed),
            self._nothing_lost,
            Revocation(self._agreed, administrators),
            WholeStages(self._agreed),
            self._sound_disks,
            BoundedExecution(MAX_EXECUTION_MS),
        ]

    def is_sound(self, store: KeyValue) -> bool:
        return self._nothing_lost.fault(store) is None and self._sound_disks.fault(store) is None
