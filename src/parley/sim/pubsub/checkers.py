"""What must hold of publications in every run: their places, their permanence, who may publish, and staged batches (P23)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import msgspec

from parley.applications import DATA_SHARD
from parley.consensus.types import Block
from parley.ledger import layout
from parley.ledger.erasure import remains_of
from parley.model.batches import STAGED, Batch
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Position
from parley.model.receipts import BatchReceipt, Leaf, receipt_of
from parley.modules.publishing.receipts import first_offset, published
from parley.modules.registry.operations import registered, revoked
from parley.modules.staging import tables as staging
from parley.modules.staging.operations import commit_of
from parley.modules.staging.receipts import is_staged
from parley.modules.subscriptions.receipts import Closed, Match, closed_of, match_of
from parley.modules.topics.operations import deleted
from parley.modules.topics.tables import HEADS
from parley.sim.observations import (
    Applied,
    Certified,
    Observation,
    Opened,
    Resumed,
    Started,
    Submitted,
    Wiped,
)
from parley.sim.pubsub.post import read_leaves
from parley.store.interface import KeyValue

Order = tuple[str, int, bytes, Position]  # topic, partition, constraint, incarnation


class Agreed:
    """The chain of a run, block by block, as the first correct replica that executed each has it on disk.

    Several checkers share one and show it what they see: it takes each block once.
    """

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


class PublicationOrder:
    """Offsets and ps have no gaps, every accepted batch has one place, and all replicas have the same (P5, P6)."""

    name = "publication order"

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._height = 0
        self._next_offset: dict[tuple[str, int], int] = {}
        self._next_ps: dict[Order, int] = {}
        self._closed: set[Order] = set()
        self._placed: dict[bytes, Position] = {}

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        if not isinstance(event, Applied) or event.suspect:
            return None
        for height, leaves in self._agreed.after(self._height):
            self._height = height
            for position, leaf in enumerate(leaves):
                if (fault := self._place(leaf, (height, position))) is not None:
                    return f"at height {height}, leaf {position}: {fault}"
        height = event.block.height
        if height <= self._agreed.height and event.leaves != self._agreed.results(height):
            return f"replica {event.replica} has other results of height {height} on disk than the first to execute it"
        return None

    def _place(self, leaf: Leaf, at: Position) -> str | None:
        if (placed := published(leaf)) is not None:
            return self._published(*placed, at)
        if (match := match_of(leaf)) is not None:
            return self._matched(match)
        if (closed := closed_of(leaf)) is not None:
            order = order_of(closed)
            self._closed.add(order)
            if closed.final_ps != self._next_ps.get(order, 0):
                return f"{_name(order)} ends at ps {closed.final_ps}, but had come to {self._next_ps.get(order, 0)}"
        return None

    def _published(self, receipt: BatchReceipt, first: int, at: Position) -> str | None:
        log = (receipt.topic, receipt.partition)
        expected = self._next_offset.get(log, 0)
        self._next_offset[log] = first + receipt.count
        if first != expected:
            return f"offset {first} of {log[0]}/{log[1]} follows {expected - 1}"
        before = self._placed.setdefault(receipt.digest, at)
        if before != at:
            return f"batch {receipt.digest.hex()[:12]} was placed at {before} already"
        return None

    def _matched(self, match: Match) -> str | None:
        order = order_of(match)
        expected = self._next_ps.get(order, 0)
        self._next_ps[order] = match.first_ps + len(match.items)
        if order in self._closed:
            return f"{_name(order)} goes on after its end"
        if match.first_ps != expected:
            return f"ps {match.first_ps} of {_name(order)} follows {expected - 1}"
        offsets = [offset for offset, _ in match.items]
        if offsets != sorted(set(offsets)) or offsets[-1] >= self._next_offset.get(order[:2], 0):
            return f"{_name(order)} has offsets {offsets}"
        return None


class NothingLost:
    """What a correct replica could prove to be accepted stays in every chain.

    Its body can be read until retention ends it.
    """

    name = "nothing acknowledged is lost"

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._acknowledged: dict[int, int] = {}

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        match event:
            case Certified():
                highest = max(event.height, self._acknowledged.get(event.replica, 0))
                self._acknowledged[event.replica] = highest
            case Wiped() | Started(joining=True):  # it comes back with what others have, maybe a little less
                self._acknowledged.pop(event.replica, None)
            case Resumed():
                # Results need not be on disk, as long as blocks and batches are: executing again brings them back.
                acknowledged = self._acknowledged.get(event.replica, 0)
                if event.executed < acknowledged:
                    return (
                        f"replica {event.replica} came back at height {event.executed} although it had answered for "
                        f"height {acknowledged}"
                    )
            case Opened():
                fault = self.fault(event.store)
                return None if fault is None else f"replica {event.replica} {fault}"
            case _:
                pass
        return None

    def fault(self, store: KeyValue) -> str | None:
        """What a disk lacks."""
        highest = max(self._acknowledged.values(), default=0)
        leaves = (leaf for height in range(1, highest + 1) for leaf in self._agreed.leaves(height))
        numbered = {found[0].digest: found[0] for found in map(published, leaves) if found is not None}
        for height in range(1, highest + 1):
            stored = store.get(layout.committed(height))
            if stored is None or _block(stored) != self._agreed.block(height):
                return f"does not have block {height}, for which one answered"
            for leaf in self._agreed.leaves(height):
                receipt = receipt_of(leaf)
                if receipt is None or not receipt.is_done:
                    continue
                if self._is_gone(numbered.get(receipt.digest, receipt), store):
                    return f"has no body of batch {receipt.digest.hex()[:12]}, accepted at {height}"
        return None

    def _is_gone(self, receipt: BatchReceipt, store: KeyValue) -> bool:
        body, first = store.get(layout.batch(receipt.digest)), first_offset(receipt)
        if body is not None:
            return body != self._agreed.bodies[receipt.digest]
        if is_staged(receipt):  # and not numbered: it may have expired, or its commit left it out
            return store.get(layout.state(staging.STAGED.key(receipt.digest))) is not None
        if first is None:
            return True
        # A replica that came back by a snapshot after the end of retention has not even a stub: no broker had the body.
        stub = store.get(layout.erased(receipt.digest))
        if stub is not None and stub != remains_of(self._agreed.bodies[receipt.digest]):
            return True
        return first + receipt.count > log_start(store, receipt.topic, receipt.partition)


class Revocation:
    """Nothing of a revoked key is accepted after its revocation; what it had committed before is still numbered."""

    name = "revocation"

    def __init__(self, agreed: Agreed, administrators: Mapping[bytes, str]) -> None:
        """`administrators`: the organisation of each administrator's key."""
        self._agreed = agreed
        self._administrators = administrators
        self._height = 0
        self._keys: dict[tuple[str, str], bytes] = {}
        self._revoked: dict[bytes, int] = {}

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        if isinstance(event, Applied):
            for height, leaves in self._agreed.after(self._height):
                self._height = height
                for leaf in leaves[: len(self._agreed.block(height).batches)]:
                    if (receipt := receipt_of(leaf)) is not None and receipt.is_done:
                        if (since := self._revoked.get(receipt.publisher)) is not None:
                            return (
                                f"height {height} accepts batch {receipt.digest.hex()[:12]} of {receipt.client}, which "
                                f"was revoked at height {since}"
                            )
                        self._note(receipt, height)
        return None

    def _note(self, receipt: BatchReceipt, height: int) -> None:
        """What the accepted operation says of a key."""
        organisation = self._administrators.get(receipt.publisher)
        if receipt.topic or organisation is None:
            return
        batch = msgspec.msgpack.decode(self._agreed.bodies[receipt.digest], type=Batch)
        operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
        if (client := registered(operation)) is not None:
            self._keys[organisation, client.name] = client.key
        if (revocation := revoked(operation)) is not None:
            self._revoked[self._keys[organisation, revocation.name]] = height


def log_start(store: KeyValue, topic: str, partition: int) -> int:
    """Where a log begins that retention has shortened, as the replica's state has it."""
    value = store.get(layout.state(HEADS.key(topic, partition)))
    return 0 if value is None else HEADS.decode(value).log_start_offset


def _block(stored: bytes) -> Block | None:
    try:
        return msgspec.msgpack.decode(stored, type=layout.StoredBlock).block()
    except DECODE_ERRORS:
        return None


def order_of(leaf: Match | Closed) -> Order:
    return leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation


def _name(order: Order) -> str:
    topic, partition, constraint, incarnation = order
    return f"the order of constraint {constraint.hex()[:8]}, begun at {incarnation}, on {topic}/{partition}"


class WholeStages:
    """What a client has committed is numbered batch by batch, in that order, and nothing else is that was staged."""

    name = "whole stages"

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._height = 0
        self._queues: dict[bytes, deque[tuple[str, bytes]]] = {}  # of publishers: topic and digest
        self._stages: dict[tuple[bytes, str, bytes], int] = {}

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        if not isinstance(event, Applied) or event.suspect:
            return None
        for height, leaves in self._agreed.after(self._height):
            self._height = height
            own = len(self._agreed.block(height).batches)
            receipts = [found for found in map(receipt_of, leaves) if found is not None]
            for position, receipt in enumerate(receipts):
                fault = self._decided(receipt) if position < own else self._numbered(receipt)
                if fault is not None:
                    return f"at height {height}, leaf {position}: {fault}"
        return None

    def _decided(self, receipt: BatchReceipt) -> str | None:
        batch = msgspec.msgpack.decode(self._agreed.bodies[receipt.digest], type=Batch)
        if first_offset(receipt) is not None and batch.header.kind == STAGED:
            return f"batch {receipt.digest.hex()[:12]} was published instead of staged"
        if receipt.topic or not receipt.is_done:
            return None
        operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
        if (deletion := deleted(operation)) is not None:
            for publisher, queue in self._queues.items():
                self._queues[publisher] = deque(waiting for waiting in queue if waiting[0] != deletion.name)
        if (commit := commit_of(operation)) is not None:
            writer = (receipt.publisher, commit.topic, commit.writer)
            before = self._stages.get(writer, -1)
            self._stages[writer] = commit.stage
            named = ((commit.topic, digest) for digest in commit.digests)
            self._queues.setdefault(receipt.publisher, deque()).extend(named)
            if commit.stage <= before:
                return f"stage {commit.stage} was committed after stage {before} of the same writer"
        return None

    def _numbered(self, receipt: BatchReceipt) -> str | None:
        queue = self._queues.get(receipt.publisher)
        if not queue or queue[0] != (receipt.topic, receipt.digest):
            return f"batch {receipt.digest.hex()[:12]} was numbered, which is not the next one that was committed"
        queue.popleft()
        return None if first_offset(receipt) is not None else "a numbered batch was not published"
