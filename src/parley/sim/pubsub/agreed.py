"""The chain of a run, block by block, as the first correct replica that executed each has it on disk."""

from __future__ import annotations

from collections.abc import Iterator

from parley.consensus.types import Block
from parley.model.receipts import Leaf
from parley.sim.observations import Applied, Observation, Submitted
from parley.sim.pubsub.post import read_leaves


class Agreed:
    """Several checkers share one and show it what they see: it takes each block once."""

    def __init__(self) -> None:
        self.bodies: dict[bytes, bytes] = {}
        self._blocks: list[tuple[Block, bytes]] = []

    @property
    def height(self) -> int:
        return len(self._blocks)

    def see(self, event: Observation) -> None:
        match event:
            case Submitted():
                self.bodies[event.batch] = event.data
            case Applied(block=block, suspect=False) if block.height == len(self._blocks) + 1:
                self._blocks.append((block, event.leaves))
            case _:
                pass

    def block(self, height: int) -> Block:
        return self._blocks[height - 1][0]

    def results(self, height: int) -> bytes:
        """As they lie on the disk."""
        return self._blocks[height - 1][1]

    def leaves(self, height: int) -> tuple[Leaf, ...]:
        return read_leaves(self.results(height))

    def after(self, height: int) -> Iterator[tuple[int, tuple[Leaf, ...]]]:
        """The results of the blocks above a height."""
        return ((above, self.leaves(above)) for above in range(height + 1, self.height + 1))
