"""One run from one seed: a network with liars, a phase in which much goes wrong, then the demand that all of it heals."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from parley.consensus.committee import faults, instance_of
from parley.consensus.record import SafetyState, recover_record
from parley.crypto.qc import QCScheme, Signer
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.participants import awaken
from parley.replica.ports import Participant
from parley.sim import checkers
from parley.sim.byzantine import ACTORS, Seat
from parley.sim.chance import CRYPTO, committee_keys, stream
from parley.sim.charge import MILLISECOND, Meter
from parley.sim.checkers import Checkers, Violation
from parley.sim.disk import Disk
from parley.sim.faults import TROUBLES, WITH_EXPENSIVE, Trouble, stir
from parley.sim.host import Host, Running, Start
from parley.sim.network import Network
from parley.sim.observations import Ended, Healed, Observation, Opened, Status
from parley.sim.pubsub.setting import Publishing
from parley.sim.report import Report
from parley.sim.setting import Counting, Setting
from parley.sim.world import World
from parley.store.interface import StoreReader

__all__ = ["APPLICATIONS", "CRYPTO", "MAX_NODES", "Simulation", "run"]

APPLICATIONS = ("counter", "pubsub")
MAX_NODES = 32
# ms; shorter than in real networks, so that more happens in a run
VIEW_TIMEOUT, SHORTEST_TIMEOUT = 500, 200
HEARTBEAT = 200
MAX_RECOVERY = 60_000  # ms after the faults in which everything must have healed
MAX_MENDING = 60_000  # and in which disks must be complete and sound again
A_WHILE = 1_000
VIEWS_PER_MEMBER = 10  # views that this may take for each member, besides those of the setting

Observer = Callable[[int, Observation], None]


def run(
    nodes: int,
    byzantine: int,
    seed: int,
    *,
    application: str = "counter",
    crypto: str = "simulated",
    depth: int = 2,
    actors: Sequence[str] | None = None,
    leaders: str = "round-robin",
    trouble: Trouble | None = None,
    expensive: bool = False,
) -> Report:
    """Play the whole story of a seed: faults, healing, judgement."""
    simulation = Simulation(
        nodes,
        byzantine,
        seed,
        application=application,
        crypto=crypto,
        depth=depth,
        actors=actors,
        leaders=leaders,
        expensive=expensive,
    )
    trouble = trouble or (WITH_EXPENSIVE if expensive else TROUBLES[application])
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
        application: str = "counter",
        crypto: str = "simulated",
        depth: int = 2,
        actors: Sequence[str] | None = None,
        leaders: str = "round-robin",
        clients: int = 4,
        batches: int = 30,
        expensive: bool = False,
        observer: Observer | None = None,
    ) -> None:
        """`clients` and `batches` are the counter's, `expensive` is of pub/sub."""
        self.seed, self.nodes, self.crypto, self.depth, self.leaders = seed, nodes, crypto, depth, leaders
        self.actors = cast(seed, nodes, byzantine, actors)
        self.setting: Setting = (
            Publishing(seed, nodes, expensive=expensive)
            if application == "pubsub"
            else Counting(seed, clients, batches)
        )
        self._observer = observer
        self._checkers = Checkers(
            [
                checkers.Agreement(),
                checkers.TotalOrder(),
                checkers.NoCreation(),
                checkers.OneSignaturePerView(),
                checkers.RecordSurvives(),
                checkers.StaysUp(),
                checkers.Liveness(self.setting.recovery_views + VIEWS_PER_MEMBER * nodes),
                checkers.Unhindered(depth, faults(nodes), VIEW_TIMEOUT),
                *self.setting.checkers(),
            ]
        )
        self.world = World(self._hosts(), Network(seed, nodes), self._watch)
        self.workload = self.setting.users(self.world)
        self._healed: Healed | None = None

    def start(self) -> None:
        """Start every replica and the clients."""
        for host in self.world.hosts:
            self.world.start(host.index)
        self.world.watch_connections()
        self.workload.start()

    def heal(self) -> None:
        """End all faults but the liars: from here on everything must move again."""
        self.world.network.heal()
        self.workload.stop()
        for host in self.world.correct:
            host.crash_at = None
            self.world.start(host.index)
        self._healed = Healed(self.world.now, self._statuses())
        self.world.observe(self._healed)

    def finish(self) -> None:
        """Run until everything has moved on, or the time for it is over, and judge."""
        assert self._healed is not None, "faults end before the judgement"
        self.world.run(self._healed.time + MAX_RECOVERY, self._moved_on)
        self.world.observe(
            Ended(
                self.world.now, self._statuses(), self.workload.outstanding(), self.workload.answers.settled
            )
        )
        limit = self.world.now + MAX_MENDING
        while self.world.now < limit and not all(map(self._is_mended, self.world.correct)):
            self.world.run(self.world.now + A_WHILE)
        for host in self.world.correct:
            self.world.observe(Opened(host.index, host.disk.frozen(), host.is_whole))

    @property
    def violations(self) -> tuple[Violation, ...]:
        return tuple(self._checkers.violations)

    def report(self) -> Report:
        hosts, network = self.world.hosts, self.world.network
        healed, now = self._healed, self.world.now
        views = max(host.view for host in self.world.correct)
        refused = sum((host.refused for host in self.world.correct), Tally())
        happened = self.world.happened + Tally(recoveries=sum(host.recovered for host in self.world.correct))
        return Report(
            seed=self.seed,
            nodes=self.nodes,
            application=self.setting.name,
            crypto=self.crypto,
            depth=self.depth,
            leaders=self.leaders,
            actors=self.actors,
            trace_hash=self.world.trace.hexdigest(),
            violations=self.violations,
            committed=min(host.committed for host in self.world.correct),
            views=views,
            acknowledged=self.workload.answers.acknowledged,
            receipts=dict(sorted(self.workload.answers.receipts.items())),
            crashes=sum(host.crashes for host in hosts),
            happened=dict(sorted(happened.items())),
            messages_sent=network.sent,
            messages_lost=network.lost,
            refused=dict(sorted(refused.items())),
            evidence=dict(sorted(self.world.evidence.items())),
            virtual_seconds=now / 1000,
            recovery_seconds=(now - healed.time) / 1000 if healed else 0.0,
            recovery_views=views - max(s.view for s in healed.replicas) if healed else 0,
            longest_execution_ms=self.world.longest_execution_us / MILLISECOND,
        )

    def _hosts(self) -> list[Host]:
        """Machines with new disks; nothing runs yet."""
        signers, scheme = committee_keys(self.seed, self.nodes, self.crypto)
        instance = instance_of(self.setting.chain, self.nodes, version=self.setting.version)
        hosts = []
        for index, signer in enumerate(signers):
            config = ReplicaConfig(
                instance,
                index,
                self.depth,
                view_timeout=VIEW_TIMEOUT,
                shortest_timeout=SHORTEST_TIMEOUT,
                heartbeat=HEARTBEAT,
                leaders=self.leaders,
                patience=self.setting.patience,
                limits=self.setting.limits,
            )
            meter = Meter()
            chance = stream(self.seed, "nonce", index)
            member = _Member(config, signer, scheme, self.setting, chance, meter)
            launch: Start = member.launch
            if index in self.actors:
                others = tuple(liar for liar in self.actors if liar != index)
                seat = Seat(instance, signer, stream(self.seed, "actor", index), others, member.another)
                launch = partial(_launch_liar, self.actors[index], seat, member)
            correct = index not in self.actors
            disk_chance = stream(self.seed, "disk", index)
            hosts.append(Host(index, member.new_disk, launch, disk_chance, correct=correct, meter=meter))
        return hosts

    def _watch(self, time: int, event: Observation) -> None:
        self._checkers.see(time, event)
        self.workload.see(event)
        if self._observer is not None:
            self._observer(time, event)

    def _moved_on(self) -> bool:
        assert self._healed is not None
        if self.workload.outstanding():
            return False
        goal = max(checkers.progress_goal(self._healed), self.workload.answers.settled)
        return all(host.committed >= goal for host in self.world.correct)

    def _is_mended(self, host: Host) -> bool:
        return host.is_whole and (not host.damaged or self.setting.is_sound(host.disk))

    def _statuses(self) -> tuple[Status, ...]:
        return tuple(Status(h.index, h.up, h.view, h.committed) for h in self.world.correct)


def cast(seed: int, nodes: int, byzantine: int, actors: Sequence[str] | None) -> dict[int, str]:
    """Which member plays which liar; the named ones first, the rest by the seed."""
    chance = stream(seed, "cast")
    names = list(actors or ())[:byzantine]
    names += [chance.choice(list(ACTORS)) for _ in range(byzantine - len(names))]
    members = sorted(chance.sample(range(nodes), byzantine))
    return dict(zip(members, names, strict=True))


@dataclass(frozen=True, slots=True)
class _Member:
    """What all lives of one member share."""

    config: ReplicaConfig
    signer: Signer
    scheme: QCScheme
    setting: Setting
    chance: Random
    meter: Meter

    def launch(self, record: tuple[int, SafetyState], store: StoreReader) -> Running:
        mounted = self.setting.mounted(self.config.index, self.meter)
        return Running(
            awaken(
                self.config,
                self.signer,
                self.scheme,
                mounted,
                record=record,
                store=store,
                nonce=self.chance.randbytes(16),
            ),
            mounted.machine,
        )

    def new_disk(self, *, abstaining: bool = False) -> Disk:
        machine = self.setting.mounted(self.config.index, self.meter).machine
        return Disk(*provision(self.config, machine, abstaining=abstaining))

    def another(self) -> tuple[Disk, Participant]:
        """A replica of the same member on a disk of its own: only a liar has two."""
        disk = self.new_disk()
        return disk, self.launch(recover_record(disk.slots, "a new disk"), disk).participant


def _launch_liar(
    name: str, seat: Seat, member: _Member, record: tuple[int, SafetyState], store: StoreReader
) -> Running:
    running = member.launch(record, store)
    return Running(ACTORS[name](running.participant, seat), running.machine)
