"""Whose batches are numbered next: those of organisations in turn, and within each those of its clients (P23).

This is start-time fair queueing. Each organisation and client that waits has a tag, which grows by the work that is done
for it, also in vain; the lowest comes next. One that begins to wait is put behind the others: each of them gets one more batch, and then it
is the newcomer's turn, however much the others have. A client's own batches come in the order of its commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from parley.application.block import BlockContext
from parley.application.state import State
from parley.modules.staging.tables import (
    COMMITTED,
    QUEUES,
    TURNS,
    WAITING,
    CommittedRecord,
    QueueRecord,
    WaitingRecord,
)

MAX_VISITED = 256  # clients a block, about: of an organisation with more, those who wait longest


def enqueue(
    block: BlockContext, organisation: str, publisher: bytes, more: Sequence[CommittedRecord]
) -> None:
    """Put committed batches behind those of the same client."""
    state = block.state
    queue = QUEUES.get(state, publisher) or _begin(block, organisation, publisher)
    for number, one in enumerate(more, queue.next):
        COMMITTED.put(state, publisher, number, record=one)
    QUEUES.put(state, publisher, record=replace(queue, next=queue.next + len(more)))


def _begin(block: BlockContext, organisation: str, publisher: bytes) -> QueueRecord:
    state = block.state
    waiting = WAITING.get(state, organisation)
    if waiting is None:
        tags = [record.tag for _, record in _waiting(block)]
        waiting = WaitingRecord(0, max(tags, default=0) + 1, 0)
    tag = waiting.last + 1
    TURNS.put(state, organisation, tag, publisher, record=b"")
    WAITING.put(state, organisation, record=WaitingRecord(waiting.clients + 1, waiting.tag, tag))
    return QueueRecord(0, 0, tag)


def _waiting(block: BlockContext) -> list[tuple[str, WaitingRecord]]:
    """The organisations that wait, of which there are few."""
    names = [organisation.name for organisation in block.genesis.organisations]
    found = ((name, WAITING.get(block.state, name)) for name in names)
    return [(name, record) for name, record in found if record is not None]


@dataclass(eq=False)
class Client:
    """A client that waits, and the first of its entries."""

    organisation: str
    publisher: bytes
    queue: QueueRecord
    entry: CommittedRecord
    tag: int
    done: int = 0  # batches of the entry

    @property
    def digest(self) -> bytes:
        return self.entry.digests[self.done]


class Turns:
    """Who comes next, in one block. What it reads and writes grows with those who have their turn, not with all who wait."""

    def __init__(self, block: BlockContext) -> None:
        self._state = block.state
        self._waiting = dict(_waiting(block))
        most = max(1, MAX_VISITED // max(1, len(self._waiting)))
        # Of each organisation: tag and key of clients.
        self._heaps: dict[str, list[tuple[int, bytes]]] = {
            name: [(tag, key) for _, tag, key in TURNS.first(block.state, most, name)]
            for name in self._waiting
        }
        self._clients: dict[bytes, Client] = {}

    def next(self) -> Client | None:
        """The client whose turn it is; None if nobody waits who can have it in this block."""
        organisation = min(
            (name for name, heap in self._heaps.items() if heap),
            key=lambda name: self._waiting[name].tag,
            default=None,
        )
        if organisation is None:
            return None
        _, publisher = self._heaps[organisation][0]
        if publisher not in self._clients:
            self._clients[publisher] = _client(self._state, organisation, publisher)
        return self._clients[publisher]

    def charge(self, client: Client, cost: int) -> None:
        """The first batch of the client that `next` gave has had its turn, and its entry is settled if it was the last."""
        self._pay(client, cost)
        client.done += 1
        heap = self._heaps[client.organisation]
        if client.done < len(client.entry.digests) or self._next_entry(client):
            heapq.heapreplace(heap, (client.tag, client.publisher))
        else:
            heapq.heappop(heap)

    def pass_over(self, client: Client, cost: int) -> None:
        """The next batch of the client that `next` gave does not fit: it pays for the look, and has no turn any more."""
        self._pay(client, cost)
        heapq.heappop(self._heaps[client.organisation])

    def _pay(self, client: Client, cost: int) -> None:
        client.tag += cost
        waiting = self._waiting[client.organisation]
        self._waiting[client.organisation] = replace(
            waiting, tag=waiting.tag + cost, last=max(waiting.last, client.tag)
        )

    def _next_entry(self, client: Client) -> bool:
        """Go on with the next entry of a client; returns whether there is one."""
        COMMITTED.delete(self._state, client.publisher, client.queue.first)
        client.queue = replace(client.queue, first=client.queue.first + 1)
        if client.queue.first == client.queue.next:
            return False
        client.entry, client.done = _entry(self._state, client.publisher, client.queue), 0
        return True

    def keep(self) -> None:
        """Write the tags and queues of those that had a turn."""
        state, left = self._state, dict.fromkeys(self._waiting, 0)
        for client in self._clients.values():
            before = QUEUES.get(state, client.publisher)
            assert before is not None, "it waits"
            TURNS.delete(state, client.organisation, before.tag, client.publisher)
            if client.queue.first == client.queue.next:
                QUEUES.delete(state, client.publisher)
                left[client.organisation] += 1
                continue
            TURNS.put(state, client.organisation, client.tag, client.publisher, record=b"")
            QUEUES.put(state, client.publisher, record=replace(client.queue, tag=client.tag))
            if client.done:
                rest = replace(client.entry, digests=client.entry.digests[client.done :])
                COMMITTED.put(state, client.publisher, client.queue.first, record=rest)
        for name, waiting in self._waiting.items():
            if waiting.clients == left[name]:
                WAITING.delete(state, name)
            else:
                WAITING.put(state, name, record=replace(waiting, clients=waiting.clients - left[name]))


def _client(state: State, organisation: str, publisher: bytes) -> Client:
    queue = QUEUES.get(state, publisher)
    assert queue is not None, "who has a turn has a queue"
    return Client(organisation, publisher, queue, _entry(state, publisher, queue), queue.tag)


def _entry(state: State, publisher: bytes, queue: QueueRecord) -> CommittedRecord:
    entry = COMMITTED.get(state, publisher, queue.first)
    assert entry is not None, "the queue says that there is one"
    return entry
