"""What is to fail, how often, under which load."""

from __future__ import annotations

from dataclasses import dataclass

from parley.bench.failover.gaps import LEADER, NO_FAULT, OTHER, Fault
from parley.bench.measure import NetworkPlan

IN_FLIGHT = 64  # publications of a client that wait for their receipt
SETTLE_SECONDS = 1.0  # after a return, so that what it cost is seen
CUTTING = (Fault.CUT, Fault.ISOLATE)


@dataclass(frozen=True)
class Plan(NetworkPlan):
    faults: tuple[Fault, ...] = (Fault.KILL, Fault.STOP, Fault.CUT)
    rounds: int = 10
    seconds: float = 15.0  # that a fault lasts: Kafka needs 9 and more to notice
    rate: float = 50.0  # publications per second of each client
    warm_up: float = 3.0
    peers: tuple[str, ...] = ()
    keep: bool = False  # what networks leave on the disk

    @property
    def groups(self) -> dict[str, list[Fault]]:
        """Faults by the kind of network: proxies cost time, so there are some only where links are cut."""
        groups = {
            "": [fault for fault in self.faults if fault not in CUTTING],
            "proxies: ": [fault for fault in self.faults if fault in CUTTING],
        }
        return {name: faults for name, faults in groups.items() if faults}

    @property
    def steps(self) -> int:
        """Rounds in all."""
        own = sum(len(cases(faults)) for faults in self.groups.values())
        return self.rounds * (own + 2 * len(self.peers))


def cases(faults: list[Fault]) -> list[tuple[str, Fault | None, str]]:
    """What is played on a network: names, faults and whom they hit."""
    return [
        (NO_FAULT, None, ""),
        *((f"{fault} {whom}", fault, whom) for fault in faults for whom in (LEADER, OTHER)),
    ]
