"""What replicas keep in memory between blocks is compared with what their stores give, and a difference is seen."""

import heapq
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.sim.test_checkers import GENESIS, verdicts

from parley.application.application import Application
from parley.application.block import BlockContext, Derived
from parley.application.module import Module
from parley.applications import MODULES, VERSION
from parley.consensus.types import Block
from parley.modules.subscriptions.index import Subscription, SubscriptionIndex
from parley.modules.subscriptions.matching import MatchingIndex
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.modules.topics.tables import TOPICS
from parley.sim.observations import Applied
from parley.sim.pubsub import setting
from parley.sim.pubsub.people import People
from parley.sim.results import KeptState
from parley.sim.scenario import Simulation
from parley.store.interface import KeyValue
from parley.store.memory import MemoryStore


class Count:
    """How many topics there are."""

    def __init__(self, topics: int = 0) -> None:
        self.topics = topics

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Count) and self.topics == other.topics

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def load(cls, store: KeyValue) -> "Count":
        return cls(sum(1 for _ in TOPICS.keys_stored(store)))


COUNT = Derived("count", Count.load)


def counting(block: BlockContext) -> None:
    block[COUNT].topics = len(TOPICS.scan(block.state))


def forgetting(block: BlockContext) -> None:
    """It counts the topics of the blocks before this one."""
    block[COUNT].topics = len(TOPICS.first_stored(block.state, 1_000))


def shard(end_block: Callable[[BlockContext], None]) -> Application:
    module = Module("counting", derived=(COUNT,), end_block=end_block)
    return Application("data shard that counts", VERSION, (*MODULES, module))


def violations(monkeypatch: pytest.MonkeyPatch, application: Application) -> set[tuple[str, str]]:
    """Of a short run without faults: which checker spoke, and the last words of its evidence."""
    monkeypatch.setattr(setting, "SHARD", application)
    simulation = Simulation(4, 0, 3, application="pubsub")
    simulation.start()
    simulation.world.run(3_000)
    assert min(host.committed for host in simulation.world.hosts) > 5
    return {(one.checker, one.evidence.split(" keeps ")[-1]) for one in simulation.violations}


def test_a_module_that_keeps_what_follows_from_the_state_is_not_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert violations(monkeypatch, shard(counting)) == set()


def test_a_module_whose_memory_falls_behind_the_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = violations(monkeypatch, shard(forgetting))
    assert seen == {("kept state", "other count in memory than its store gives")}


def forgotten_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(index: SubscriptionIndex, subscription: Subscription, lease_until: int) -> None:
        if subscription in index._leases:  # a renewal
            lease_until = index._leases[subscription]
        original(index, subscription, lease_until)

    original = SubscriptionIndex.join
    monkeypatch.setattr(SubscriptionIndex, "join", join)


def forgotten_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def lapsed(index: SubscriptionIndex, time: int) -> Subscription | None:
        """One that was renewed is not queued again, so it never lapses."""
        while index._due and index._due[0][0] < time:
            until, subscription = heapq.heappop(index._due)
            index._queued.remove(subscription)
            if index._leases.get(subscription) == until:
                return subscription
        return None

    monkeypatch.setattr(SubscriptionIndex, "lapsed", lapsed)


def forgotten_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatchingIndex, "_weigh", weigh_once)


def weigh_once(index: MatchingIndex, guard: frozenset[tuple[str, type, object]] | None, weight: int) -> None:
    """What is taken away is not subtracted."""
    if weight > 0:
        for place in (None,) if guard is None else guard:
            index._weights[place] += weight  # type: ignore[index]


@pytest.mark.parametrize("fault", [forgotten_lease, forgotten_end, forgotten_weight])
def test_a_fault_in_the_index_of_subscriptions_is_noticed(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    simulation = Simulation(4, 0, 3, application="pubsub")
    simulation.start()
    simulation.world.run(20_000, lambda: bool(simulation.violations))
    assert simulation.violations[0].checker == "kept state"


@pytest.mark.parametrize("suspect", [True, False])
def test_memory_is_not_to_blame_for_a_damaged_disk(suspect: bool) -> None:
    kept, disk = KeptState(), MemoryStore()
    machine = kept.watched(2, setting.SHARD.mount(People(1, 4).genesis)).machine
    first, second = (Block(replace(GENESIS.header, height=height), ()) for height in (1, 2))
    disk.write(machine.apply(first, [], disk).writes)
    assert verdicts(kept, [Applied(2, first, ())]) == []
    disk.write([(SUBSCRIPTIONS.place("t", bytes(32), bytes(32)), b"damaged")])
    machine.apply(second, [], disk)
    evidence = verdicts(kept, [Applied(2, second, (), suspect=suspect)])
    other = "after height 2 replica 2 keeps other subscriptions in memory than its store gives"
    assert evidence == ([] if suspect else [other])
