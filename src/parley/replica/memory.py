"""What a replica knows without reading it from its disk, which may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.consensus.types import Block, Roots
from parley.consensus.verify import Verifier
from parley.crypto.merkle import MountainRange


@dataclass(frozen=True)
class Memory:
    """Fixed things, and questions that the replica answers as of now."""

    genesis: Block
    genesis_root: bytes
    verifier: Verifier
    executed: Callable[[], int]
    history: Callable[[], MountainRange]
    roots: Callable[[int], Roots | None]  # of the last few executed blocks
    body: Callable[[bytes], bytes | None]  # of a batch that waits
    block: Callable[[bytes], Block | None]  # that is not executed yet
    all_near: Callable[[], bool]  # whether no member that may come back by blocks is far behind
