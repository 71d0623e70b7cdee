"""The leader schemes by the names under which they are configured."""

from __future__ import annotations

from collections.abc import Callable

from parley.consensus.leader.cwa import Cwa
from parley.consensus.leader.cwa_plus import CwaPlus
from parley.consensus.leader.protocol import LeaderScheme
from parley.consensus.leader.round_robin import RoundRobin

SCHEMES: dict[str, Callable[[int], LeaderScheme]] = {
    "round-robin": RoundRobin,
    "cwa": Cwa,
    "cwa+": CwaPlus,
}


def make(name: str, size: int) -> LeaderScheme:
    """The scheme of this name for a committee of `size`; all members must use the same one."""
    if name not in SCHEMES:
        raise ValueError(f"there is no leader scheme {name!r}; choose from {', '.join(SCHEMES)}")
    return SCHEMES[name](size)
