"""One run from one seed: a network with liars, a phase in which much goes wrong, then the demand that all of it heals."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from functools import partial

from parley.consensus.record import SafetyState, recover_record
from parley.consensus.types import Instance
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.crypto.qc import Ed25519List, Ed25519Signer, QCScheme, Signer
from parley.crypto.simulated import SimulatedAuthority
from parley.replica.counter import Counter
from parley.replica.ports import LocalStore
from parley.replica.replica import Replica, ReplicaConfig, provision
from parley.sim import checkers
from parley.sim.byzantine import ACTORS, Seat
from parley.sim.chance import stream
from parley.sim.checkers import Checkers, Violation
from parley.sim.disk import Disk
from parley.sim.faults import Trouble, stir
from parley.sim.host import Host, Participant
from parley.sim.network import Network
from parley.sim.observations import Ended, Healed, Observation, Status
from parley.sim.report import Report
from parley.sim.results import EqualResults
from parley.sim.workload import Workload
from parley.sim.world import World

__all__ = ["CRYPTO", "MAX_NODES", "Simulation", "run"]

CRYPTO = ("simulated", "real")
MAX_NODES = 32
VIEW_TIMEOUT = 500  # ms; shorter than in real networks, so that more happens in a run
HEARTBEAT = 200
MAX_RECOVERY = 60_000  # ms after the faults in which everything must have healed
RECOVERY_VIEWS = 40  # and that many views: clients retry every three seconds, and views pass while they wait
VIEWS_PER_MEMBER = 10  # and so many more for each member

Observer = Callable[[int, Observation], None]
Launch = Callable[[tuple[int, SafetyState], LocalStore], Replica]


def run(
    nodes: int,
    byzantine: int,
    seed: int,
    *,
    crypto: str = "simulated",
    depth: int = 2,
    actors: Sequence[str] | None = None,
    leaders: str = "round-robin",
    trouble: Trouble = Trouble(),  # noqa: B008 - immutable
) -> Report:
    """Play the whole story of a seed: faults, healing, judgement."""
    simulation = Simulation(
        nodes, byzantine, seed, crypto=crypto, depth=depth, actors=actors, leaders=leaders
    )
    stir(simulation.world, seed, trouble)
    simulation.start()
    simulation.world.run(trouble.duration)
    simulation.heal()
    simulation.finish()
    return simulation.report()


class Simulation:
    """A network from one seed, for those who want to steer it themselves; `run` shows the order of the calls."""

    def __init__(
        self,
        nodes: int,
        byzantine: int,
        seed: int,
        *,
        crypto: str = "simulated",
        depth: int = 2,
        actors: Sequence[str] | None = None,
        leaders: str = "round-robin",
        clients: int = 4,
        batches: int = 30,
        observer: Observer | None = None,
    ) -> None:
        self.seed, self.nodes, self.crypto, self.depth, self.leaders = seed, nodes, crypto, depth, leaders
        self.actors = cast(seed, nodes, byzantine, actors)
        self._observer = observer
        self._checkers = Checkers(
            [
                checkers.Agreement(),
                checkers.TotalOrder(),
                checkers.NoCreation(),
                checkers.NoDuplication(),
                EqualResults(Counter()),
                checkers.OneSignaturePerView(),
                checkers.RecordSurvives(),
                checkers.StaysUp(),
                checkers.Liveness(RECOVERY_VIEWS + VIEWS_PER_MEMBER * nodes),
            ]
        )
        hosts = make_hosts(seed, nodes, crypto, depth, self.actors, leaders=leaders)
        self.world = World(hosts, Network(seed, nodes), self._watch)
        self.workload = Workload(self.world, seed, clients, batches)
        self._healed: Healed | None = None

    def start(self) -> None:
        """Start every replica and the clients."""
        for host in self.world.hosts:
            self.world.start(host.index)
        self.workload.start()

    def heal(self) -> None:
        """End all faults but the liars: from here on everything must move again."""
        self.world.network.heal()
        self.workload.stop()
        for host in self.world.correct:
            host.disarm()
            self.world.start(host.index)
        self._healed = Healed(self.world.now, self._statuses())
        self.world.observe(self._healed)

    def finish(self) -> None:
        """Run until everything has moved on, or the time for it is over, and judge."""
        assert self._healed is not None, "faults end before the judgement"
        self.world.run(self._healed.time + MAX_RECOVERY, self._moved_on)
        self.world.observe(
            Ended(self.world.now, self._statuses(), self.workload.outstanding(), self.workload.settled)
        )

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(self._checkers.violations)

    def report(self) -> Report:
        hosts, network = self.world.hosts, self.world.network
        healed, now = self._healed, self.world.now
        views = max(host.view for host in self.world.correct)
        refused = sum((host.refused for host in self.world.correct), Tally())
        return Report(
            seed=self.seed,
            nodes=self.nodes,
            crypto=self.crypto,
            depth=self.depth,
            leaders=self.leaders,
            actors=self.actors,
            trace_hash=self.world.trace.hexdigest(),
            violations=self.violations,
            committed=min(host.committed for host in self.world.correct),
            views=views,
            acknowledged=self.workload.acknowledged,
            crashes=sum(host.crashes for host in hosts),
            messages_sent=network.sent,
            messages_lost=network.lost,
            refused=dict(sorted((reason.name.lower(), count) for reason, count in refused.items())),
            evidence=dict(sorted(self.world.evidence.items())),
            virtual_seconds=now / 1000,
            recovery_seconds=(now - healed.time) / 1000 if healed else 0.0,
            recovery_views=views - max(s.view for s in healed.replicas) if healed else 0,
        )

    def _watch(self, time: int, event: Observation) -> None:
        self._checkers.see(time, event)
        self.workload.see(event)
        if self._observer is not None:
            self._observer(time, event)

    def _moved_on(self) -> bool:
        assert self._healed is not None
        if self.workload.outstanding():
            return False
        goal = max(checkers.progress_goal(self._healed), self.workload.settled)
        return all(host.committed >= goal for host in self.world.correct)

    def _statuses(self) -> tuple[Status, ...]:
        return tuple(Status(h.index, h.up, h.view, h.committed) for h in self.world.correct)


def cast(seed: int, nodes: int, byzantine: int, actors: Sequence[str] | None) -> dict[int, str]:
    """Which member plays which liar; the named ones first, the rest by the seed."""
    chance = stream(seed, "cast")
    names = list(actors or ())[:byzantine]
    names += [chance.choice(list(ACTORS)) for _ in range(byzantine - len(names))]
    members = sorted(chance.sample(range(nodes), byzantine))
    return dict(zip(members, names, strict=True))


def make_hosts(
    seed: int, nodes: int, crypto: str, depth: int, actors: dict[int, str], *, leaders: str = "round-robin"
) -> list[Host]:
    """Machines with new disks; nothing runs yet."""
    instance = Instance(digest("sim/chain", str(seed).encode()), shard=0, epoch=0, size=nodes)
    signers, scheme = _keys(seed, nodes, crypto)
    hosts = []
    for index, signer in enumerate(signers):
        config = ReplicaConfig(
            instance, index, depth, view_timeout=VIEW_TIMEOUT, heartbeat=HEARTBEAT, leaders=leaders
        )
        honest = partial(_launch, config, signer, scheme)
        others = tuple(liar for liar in actors if liar != index)
        seat = Seat(instance, signer, stream(seed, "actor", index), others, partial(_another, config, honest))
        launch = partial(_launch_liar, actors[index], seat, honest) if index in actors else honest
        chance = stream(seed, "disk", index)
        hosts.append(Host(index, _new_disk(config), launch, chance, correct=index not in actors))
    return hosts


def _launch(
    config: ReplicaConfig,
    signer: Signer,
    scheme: QCScheme,
    record: tuple[int, SafetyState],
    store: LocalStore,
) -> Replica:
    return Replica(config, signer, scheme, Counter(), record=record, store=store)


def _new_disk(config: ReplicaConfig) -> Disk:
    records, genesis = provision(config, Counter())
    return Disk(records, genesis)


def _another(config: ReplicaConfig, launch: Launch) -> tuple[Disk, Replica]:
    """A replica of the same member on a disk of its own: only a liar has two."""
    disk = _new_disk(config)
    return disk, launch(recover_record(disk.slots, "a new disk"), disk)


def _launch_liar(
    name: str,
    seat: Seat,
    launch: Launch,
    record: tuple[int, SafetyState],
    store: LocalStore,
) -> Participant:
    return ACTORS[name](launch(record, store), seat)


def _keys(seed: int, nodes: int, crypto: str) -> tuple[list[Signer], QCScheme]:
    if crypto == "simulated":
        authority = SimulatedAuthority(digest("sim/keys", str(seed).encode()), nodes)
        return [authority.signer(index) for index in range(nodes)], authority.scheme()
    keys = [SecretKey.from_seed(digest("sim/key", str(seed).encode(), str(i).encode())) for i in range(nodes)]
    signers: list[Signer] = [Ed25519Signer(index, key) for index, key in enumerate(keys)]
    return signers, Ed25519List([key.public for key in keys])
