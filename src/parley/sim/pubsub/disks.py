"""A look at every correct replica's disk when the run is over: it must be able to serve what the chain says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from parley.consensus.types import Roots
from parley.crypto import merkle
from parley.crypto.merkle import MountainRange
from parley.ledger import layout, state_map
from parley.ledger.indices import (
    BatchPlace,
    LeafPlace,
    ReceiptPlace,
    decode_place,
    offset_prefix,
    order_prefix,
    receipt_key,
)
from parley.ledger.layout import Head, StoredBlock, decode_receipts
from parley.ledger.proofs import history_leaf
from parley.model.batches import Batch
from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Code
from parley.model.receipts import BatchReceipt, Closed, Leaf, Match, Published, Staged
from parley.model.records import ConstraintRecord, decode_record
from parley.replica.ports import KeyValue
from parley.sim.observations import Observation, Opened
from parley.sim.pubsub.agreed import Agreed
from parley.sim.pubsub.checkers import Order, log_start, order_of

__all__ = ["SoundDisks"]

T = TypeVar("T", bound=Struct)
Log = tuple[str, int]


class _Fault(Exception):  # noqa: N818 - what was found
    pass


class SoundDisks:
    """Blocks, results and roots are those of the chain, the state gives the root, and indices lead to every delivery."""

    name = "sound disks"

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        if isinstance(event, Opened):
            fault = self.fault(event.store)
            return None if fault is None else f"on the disk of replica {event.replica} {fault}"
        return None

    def fault(self, store: KeyValue) -> str | None:
        """The first thing that is wrong on a disk."""
        try:
            _Look(self._agreed, store).run()
        except _Fault as fault:
            return str(fault)
        return None


class _Look:
    """One disk against the chain."""

    def __init__(self, agreed: Agreed, store: KeyValue) -> None:
        self._agreed = agreed
        self._store = store

    def run(self) -> None:
        for mark in (layout.JOINING, layout.BACKFILL):
            if self._store.get(mark) is not None:
                raise _Fault(f"there is {mark.decode()}: older records are still missing")
        head = self._read(layout.HEAD, Head)
        height = min(head.height, self._agreed.height)
        if self._chain(height) != head.history:
            raise _Fault("the head has another history than the blocks give")
        self._state(height)
        published, orders = self._expected(height)
        for log in sorted(published):
            self._offsets(log, published[log])
        for order in sorted(orders):
            self._deliveries(order, orders[order])
        self._heads(orders)
        self._receipts(height)

    def _chain(self, height: int) -> bytes:
        """Every block and what it did; the encoded history up to there."""
        history = MountainRange()
        for at in range(1, height + 1):
            block = self._read(layout.committed(at), StoredBlock).block()
            if block != self._agreed.block(at):
                raise _Fault(f"block {at} is not the one that was agreed on")
            if self._required(layout.receipts(at)) != self._agreed.results(at):
                raise _Fault(f"the results of block {at} are not those that were agreed on")
            named = block.header.executed_height
            roots = self._read(layout.roots(named), Roots)
            if roots != Roots(block.header.state_root, block.header.history_root):
                raise _Fault(f"the roots of height {named} are not those that block {at} names")
            leaves = decode_receipts(self._agreed.results(at))
            for level, index, node in history.append(history_leaf(at, block.id, merkle.root(leaves))):
                if self._store.get(layout.history_node(level, index)) != node:
                    raise _Fault(f"node {index} of level {level} is not the history's")
        return history.encode()

    def _state(self, height: int) -> None:
        entries = {key[len(layout.STATE) :]: value for key, value in self._store.scan(layout.STATE)}
        root, nodes = state_map.update({}, entries)
        if root != self._read(layout.roots(height), Roots).state:
            raise _Fault(f"the entries of the state do not give the root of height {height}")
        stored = {key[len(layout.NODE) :]: value for key, value in self._store.scan(layout.NODE)}
        if stored != {path: node for path, node in nodes.items() if node is not None}:
            raise _Fault("the nodes of the state map are not those that its entries give")

    def _expected(
        self, height: int
    ) -> tuple[dict[Log, dict[int, BatchPlace]], dict[Order, list[Match | Closed]]]:
        """The accepted batches of each log by their first offset, and what every constraint got that ever lived."""
        published: dict[Log, dict[int, BatchPlace]] = defaultdict(dict)
        orders: dict[Order, list[Match | Closed]] = defaultdict(list)
        for at in range(1, height + 1):
            for position, leaf in enumerate(self._agreed.leaves(at)):
                match leaf:
                    case BatchReceipt(outcome=Published(first_offset=first)):
                        place = BatchPlace(at, position, leaf.digest, leaf.count)
                        published[leaf.topic, leaf.partition][first] = place
                    case Match() | Closed():
                        orders[order_of(leaf)].append(leaf)
                    case _:
                        pass
        return published, orders

    def _offsets(self, log: Log, expected: dict[int, BatchPlace]) -> None:
        """The index of a log names its batches."""
        prefix = b"s/" + offset_prefix(*log)
        found = {
            int.from_bytes(key[len(prefix) :], "big"): _place(BatchPlace, value)
            for key, value in self._store.scan(prefix)
        }
        if found != expected:
            raise _Fault(f"the index of {log[0]}/{log[1]} does not have its batches")

    def _deliveries(self, order: Order, expected: list[Match | Closed]) -> None:
        """What a subscriber gets from the beginning of an order on, and the messages that still exist of it."""
        topic, partition, constraint, _ = order
        if list(self._indexed(order)) != expected:
            raise _Fault(
                f"constraint {constraint.hex()[:8]} on {topic}/{partition} has other deliveries than agreed"
            )
        start = log_start(self._store, topic, partition)
        for offset, leaf in (item for match in expected if isinstance(match, Match) for item in match.items):
            if offset >= start and self._message(topic, partition, offset) != leaf:
                raise _Fault(f"message {offset} of {topic}/{partition} is not the one that was matched")

    def _indexed(self, order: Order) -> Iterator[Leaf]:
        for _, value in self._store.scan(b"s/" + order_prefix(*order)):
            place = _place(LeafPlace, value)
            yield self._leaf(place.height, place.position)

    def _receipts(self, height: int) -> None:
        """Every batch that was ordered finds a receipt of its own: the one that accepted it, if one did."""
        for at in range(1, height + 1):
            for leaf in self._agreed.leaves(at):
                if isinstance(leaf, BatchReceipt) and leaf.code is not Code.DUPLICATE:
                    self._receipt(leaf)

    def _receipt(self, receipt: BatchReceipt) -> None:
        place = _place(ReceiptPlace, self._required(b"s/" + receipt_key(receipt.digest)))
        found = self._leaf(place.height, place.position)
        if not isinstance(found, BatchReceipt) or found.digest != receipt.digest:
            raise _Fault(f"batch {receipt.digest.hex()[:12]} finds the receipt of something else")
        first = found.outcome.first_offset if isinstance(found.outcome, Published) else None
        said = (place.first_offset, place.staged) == (first, isinstance(found.outcome, Staged))
        accepted = receipt.code is Code.OK and not (isinstance(receipt.outcome, Staged) and first is not None)
        if not said or (accepted and found != receipt):
            raise _Fault(f"batch {receipt.digest.hex()[:12]} does not find the receipt that accepted it")

    def _leaf(self, height: int, position: int) -> Leaf:
        if 0 < height <= self._agreed.height and position < len(self._agreed.leaves(height)):
            return self._agreed.leaves(height)[position]
        raise _Fault(f"an index leads to leaf {position} of height {height}, where there is none")

    def _heads(self, orders: dict[Order, list[Match | Closed]]) -> None:
        """Live constraints stand where their orders have come to."""
        for key, value in self._store.scan(layout.STATE + b"ps/"):
            order, head = _order_of(key, value), decode_record(ConstraintRecord, value)
            items = sum(len(match.items) for match in orders[order] if isinstance(match, Match))
            if head.next_ps != items or any(isinstance(leaf, Closed) for leaf in orders[order]):
                raise _Fault(
                    f"constraint {order[2].hex()[:8]} on {order[0]}/{order[1]} is not where its order is"
                )

    def _message(self, topic: str, partition: int, offset: int) -> bytes:
        """The leaf of the message that the index finds at an offset."""
        prefix = b"s/" + offset_prefix(topic, partition)
        first, place = max(
            (first, place)
            for key, place in self._store.scan(prefix)
            if (first := int.from_bytes(key[len(prefix) :], "big")) <= offset
        )
        batch = self._read(layout.batch(_place(BatchPlace, place).digest), Batch)
        return batch.messages[offset - first].leaf()

    def _read(self, key: bytes, kind: type[T]) -> T:
        try:
            return msgspec.msgpack.decode(self._required(key), type=kind)
        except DECODE_ERRORS as error:
            raise _Fault(f"{_named(key)} cannot be read: {error}") from None

    def _required(self, key: bytes) -> bytes:
        value = self._store.get(key)
        if value is None:
            raise _Fault(f"there is no {_named(key)}")
        return value


def _named(key: bytes) -> str:
    return f"{key[:2].decode()}{key[2:].hex()}"


def _place(kind: type[T], value: bytes) -> T:
    try:
        return decode_place(kind, value)
    except DECODE_ERRORS as error:
        raise _Fault(f"an index cannot be read: {error}") from None


def _order_of(key: bytes, value: bytes) -> Order:
    """From the entry of a head: `ps/<topic>/<partition>/<constraint>`."""
    rest = key[len(layout.STATE) + len(b"ps/") :]
    return (
        rest[: -32 - 4 - 1].decode(),
        int.from_bytes(rest[-32 - 4 : -32], "big"),
        rest[-32:],
        decode_record(ConstraintRecord, value).incarnation,
    )
