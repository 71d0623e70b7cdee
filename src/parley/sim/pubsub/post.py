"""Between clients and brokers: batches are carried there again and again, byte for byte, until a receipt settles them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from random import Random

from parley.applications import DATA_SHARD
from parley.consensus.committee import faults
from parley.ledger.layout import decode_receipts
from parley.model.batches import NO_TOPIC
from parley.model.names import Position
from parley.model.receipts import BatchReceipt, Duplicate, Leaf, receipt_of
from parley.model.refusals import DUPLICATE, OK, class_of
from parley.sim.observations import Applied, Observation, Submitted
from parley.sim.report import Answers
from parley.sim.world import World

ACK_TIMEOUT = 3_000
OFTEN_AT_ONCE = 0.15  # of the batches go to several brokers right away
REMEMBERED = 64  # batches that can be handed in again after they are done

Settle = Callable[[BatchReceipt], None]


class Post:
    """All batches on their way. A receipt counts only from a correct replica; which those are, the simulator tells."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers = Answers()
        self.height = 0
        self._at: Position = NO_TOPIC  # the receipt that is looked at
        self._topics: dict[str, Position] = {}
        self._waiting: dict[bytes, Settle] = {}
        self._earlier: deque[bytes] = deque(maxlen=REMEMBERED)

    def outstanding(self) -> tuple[bytes, ...]:
        return tuple(self._waiting)

    def hand_in(
        self, digest: bytes, body: bytes, chance: Random, settle: Settle, *, everywhere: bool = False
    ) -> None:
        """`settle` gets the receipt that decides the batch. `everywhere`: it goes to every broker right away."""
        self.world.observe(Submitted(digest, body))
        self._waiting[digest] = settle
        self._earlier.append(body)
        several = faults(len(self.world.hosts)) + 1 if chance.random() < OFTEN_AT_ONCE else 1
        self._carry(body, chance, len(self.world.hosts) if everywhere else several)
        self.world.after(ACK_TIMEOUT, partial(self._retry, digest, body, chance))

    def expect(self, digest: bytes, settle: Settle) -> None:
        """`settle` gets the next receipt of a batch that has had one: what was staged is published later."""
        self._waiting[digest] = settle

    def throw_in(self, digest: bytes | None, body: bytes, chance: Random, brokers: int = 1) -> None:
        """Hand in what no client waits for; without a digest it is not a batch."""
        if digest is not None:
            self.world.observe(Submitted(digest, body))
        self._carry(body, chance, brokers)

    def repeat(self, chance: Random) -> None:
        """A client, or a thief of its bytes, hands in once more what was handed in before."""
        if self._earlier:
            self._carry(chance.choice(self._earlier), chance, faults(len(self.world.hosts)) + 1)

    def see(self, event: Observation) -> None:
        if not isinstance(event, Applied) or event.suspect:
            return
        first = event.block.height > self.height
        self.height = max(self.height, event.block.height)
        for at, leaf in enumerate(read_leaves(event.leaves)):
            self._at = (event.block.height, at)
            if (receipt := receipt_of(leaf)) is not None:
                self.answers.receipts[receipt.code] += first
                self._settle(receipt, event.block.height)

    def topic_id(self, topic: str) -> Position:
        """The id of a topic; (0, 0) until its receipt was seen."""
        return self._topics.get(topic, NO_TOPIC)

    def created(self, topic: str, settle: Settle, receipt: BatchReceipt) -> None:
        """Learn the id of a topic from the receipt of its creation."""
        first = receipt.given(Duplicate)
        if receipt.is_done or first is not None:
            self._topics[topic] = self._at if first is None else first.original
        settle(receipt)

    def _settle(self, receipt: BatchReceipt, height: int) -> None:
        if not class_of(receipt.code).settles:
            return
        settle = self._waiting.pop(receipt.digest, None)
        if settle is not None:
            self.answers.settled = height
            self.answers.acknowledged += receipt.code in {OK, DUPLICATE}
            settle(receipt)

    def _retry(self, digest: bytes, body: bytes, chance: Random) -> None:
        """One of f + 1 replicas is correct."""
        if digest in self._waiting:
            self._carry(body, chance, faults(len(self.world.hosts)) + 1)
            self.world.after(ACK_TIMEOUT, partial(self._retry, digest, body, chance))

    def _carry(self, body: bytes, chance: Random, brokers: int) -> None:
        size = len(self.world.hosts)
        first = chance.randrange(size)
        for step in range(brokers):
            submit = partial(self.world.submit, (first + step) % size, body)
            self.world.after(chance.randint(1, 20), submit)


@lru_cache(maxsize=64)
def read_leaves(data: bytes) -> tuple[Leaf, ...]:
    """The results of a block as they lie on a disk; every replica has the same, so they are read once."""
    return tuple(map(DATA_SHARD.decode_leaf, decode_receipts(data))) if data else ()
