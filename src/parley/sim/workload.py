"""Clients that publish: each keeps one batch outstanding and retries it, byte for byte, until a receipt shows it done."""

from __future__ import annotations

from functools import partial
from random import Random

from parley.consensus.committee import faults
from parley.mempool.pool import batch_digest
from parley.sim.chance import stream
from parley.sim.counter import encode_batch
from parley.sim.observations import Applied, Observation, Submitted
from parley.sim.report import Answers
from parley.sim.world import World

ACK_TIMEOUT = 3000
MAX_THINKING = 400
DONE = frozenset({"ok", "duplicate"})


class Client:
    """One author. It believes a receipt only from a correct replica; which those are, the simulator tells it."""

    def __init__(self, world: World, author: int, batches: int, chance: Random) -> None:
        self._world = world
        self._author = author
        self._remaining = batches
        self._chance = chance
        self._sequence = 0
        self._attempt = 0
        self.waiting_for: bytes | None = None
        self._data = b""

    def start(self) -> None:
        self._world.after(self._chance.randint(0, MAX_THINKING), self._publish)

    def stop(self) -> None:
        """Publish nothing new; what is outstanding is still retried."""
        self._remaining = 0

    def receipt(self, batch: bytes, code: str) -> bool:
        """Whether this settles the outstanding batch."""
        if batch != self.waiting_for or code not in DONE:
            return False
        self.waiting_for = None
        self._sequence += 1
        self._world.after(self._chance.randint(0, MAX_THINKING), self._publish)
        return True

    def _publish(self) -> None:
        if not self._remaining:
            return
        self._remaining -= 1
        payload = self._chance.randbytes(self._chance.randint(0, 64))
        self._data = encode_batch(self._author, self._sequence, payload)
        self.waiting_for = batch_digest(self._data)
        self._attempt += 1
        self._world.observe(Submitted(self.waiting_for, self._data))
        self._send(self._chance.randrange(len(self._world.hosts)))
        self._world.after(ACK_TIMEOUT, partial(self._retry, self._attempt))

    def _retry(self, attempt: int) -> None:
        """One of f + 1 replicas is correct."""
        if attempt != self._attempt or self.waiting_for is None:
            return
        size = len(self._world.hosts)
        first = self._chance.randrange(size)
        for step in range(faults(size) + 1):
            self._send((first + step) % size)
        self._world.after(ACK_TIMEOUT, partial(self._retry, attempt))

    def _send(self, replica: int) -> None:
        self._world.after(self._chance.randint(1, 20), partial(self._world.submit, replica, self._data))


class Workload:
    """All clients of a run."""

    def __init__(self, world: World, seed: int, clients: int, batches: int) -> None:
        self.clients = [Client(world, i, batches, stream(seed, "client", i)) for i in range(clients)]
        self.answers = Answers()
        self._height = 0

    def start(self) -> None:
        for client in self.clients:
            client.start()

    def stop(self) -> None:
        for client in self.clients:
            client.stop()

    def outstanding(self) -> tuple[bytes, ...]:
        return tuple(client.waiting_for for client in self.clients if client.waiting_for is not None)

    def see(self, event: Observation) -> None:
        if isinstance(event, Applied):
            if event.block.height > self._height:
                self._height = event.block.height
                self.answers.receipts.update(receipt.code for receipt in event.receipts)
            for receipt in event.receipts:
                for client in self.clients:
                    if client.receipt(receipt.batch, receipt.code):
                        self.answers.settled = event.block.height
                        self.answers.acknowledged += 1
