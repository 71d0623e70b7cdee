"""A look at every correct replica's disk when the run is over: it must be able to serve what the chain says."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeVar, TypeVarTuple

import msgspec
from msgspec import Struct

from parley.application.keeping import RECEIPTS
from parley.application.tables import Table
from parley.consensus.types import Roots
from parley.crypto.merkle import MountainRange
from parley.ledger import layout, state_map
from parley.ledger.layout import Head, StateView, StoredBlock, decode_receipts
from parley.ledger.proofs import history_leaf_of
from parley.model.batches import Batch
from parley.model.codec import DECODE_ERRORS
from parley.model.receipts import BatchReceipt, Leaf, receipt_of
from parley.model.refusals import DUPLICATE
from parley.modules.publishing.receipts import first_offset, published
from parley.modules.publishing.tables import OFFSETS, BatchPlace
from parley.modules.staging.receipts import is_staged
from parley.modules.subscriptions.receipts import Closed, Match, closed_of, match_of, order_leaf
from parley.modules.subscriptions.tables import ORDER_HEADS, ORDER_LEAVES
from parley.sim.observations import Observation, Opened
from parley.sim.pubsub.checkers import Agreed, Order, log_start, order_of
from parley.store.interface import KeyValue

T = TypeVar("T", bound=Struct)
R = TypeVar("R")
K = TypeVarTuple("K")
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
        self._state_view = StateView(store)

    def run(self) -> None:
        for mark in (layout.JOINING, layout.BACKFILL):
            if self._store.get(mark) is not None:
                raise _Fault(f"there is {mark.decode()}: older records are still missing")
        head = self._read(layout.HEAD, Head)
        height = min(head.height, self._agreed.height)
        if self._chain(height) != head.history:
            raise _Fault("the head has another history than the blocks give")
        self._state(height)
        logs, orders = self._expected(height)
        for log in sorted(logs):
            self._offsets(log, logs[log])
        for order in sorted(orders):
            self._deliveries(order, orders[order], logs[order[:2]])
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
            for level, index, node in history.append(history_leaf_of(at, block.id, leaves)):
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
        logs: dict[Log, dict[int, BatchPlace]] = defaultdict(dict)
        orders: dict[Order, list[Match | Closed]] = defaultdict(list)
        for at in range(1, height + 1):
            for position, leaf in enumerate(self._agreed.leaves(at)):
                if (placed := published(leaf)) is not None:
                    receipt, first = placed
                    place = BatchPlace(at, position, receipt.digest, receipt.count)
                    logs[receipt.topic, receipt.partition][first] = place
                if (one := order_leaf(leaf)) is not None:
                    orders[order_of(one)].append(one)
        return logs, orders

    def _offsets(self, log: Log, expected: dict[int, BatchPlace]) -> None:
        """The index of a log names its batches."""
        found = {first: place for (_, _, first), place in self._scan(OFFSETS, *log)}
        if found != expected:
            raise _Fault(f"the index of {log[0]}/{log[1]} does not have its batches")

    def _deliveries(
        self, order: Order, expected: list[Match | Closed], places: dict[int, BatchPlace]
    ) -> None:
        """What a subscriber gets from the beginning of an order on, and the messages that still exist of it.

        `places`: the batches of the log by their first offset, as the index has them.
        """
        topic, partition, constraint, _ = order
        places_of_leaves = (place for _, place in self._scan(ORDER_LEAVES, *order))
        if [self._leaf(place.height, place.position) for place in places_of_leaves] != expected:
            raise _Fault(
                f"constraint {constraint.hex()[:8]} on {topic}/{partition} has other deliveries than agreed"
            )
        start = log_start(self._store, topic, partition)
        matches = (match for match in map(match_of, expected) if match is not None)
        for offset, leaf in (item for match in matches for item in match.items):
            if offset >= start and self._message(places, offset) != leaf:
                raise _Fault(f"message {offset} of {topic}/{partition} is not the one that was matched")

    def _receipts(self, height: int) -> None:
        """Every batch that was ordered finds a receipt of its own: the one that accepted it, if one did."""
        for at in range(1, height + 1):
            for leaf in self._agreed.leaves(at):
                if (receipt := receipt_of(leaf)) is not None:
                    self._receipt(receipt)

    def _receipt(self, receipt: BatchReceipt) -> None:
        place = RECEIPTS.stored(self._state_view, receipt.digest)
        if place is None:
            raise _Fault(f"batch {receipt.digest.hex()[:12]} finds no receipt")
        found = receipt_of(self._leaf(place.height, place.position))
        if found is None or found.digest != receipt.digest:
            raise _Fault(f"batch {receipt.digest.hex()[:12]} finds the receipt of something else")
        said = (place.outcome, place.place) == (found.outcome_name, found.outcome.place)
        numbered = is_staged(receipt) and first_offset(found) is not None
        accepted = receipt.is_done and receipt.code != DUPLICATE and not numbered
        if not said or (accepted and found != receipt):
            raise _Fault(f"batch {receipt.digest.hex()[:12]} does not find the receipt that accepted it")

    def _leaf(self, height: int, position: int) -> Leaf:
        if 0 < height <= self._agreed.height and position < len(self._agreed.leaves(height)):
            return self._agreed.leaves(height)[position]
        raise _Fault(f"an index leads to leaf {position} of height {height}, where there is none")

    def _heads(self, orders: dict[Order, list[Match | Closed]]) -> None:
        """Live constraints stand where their orders have come to."""
        for (topic, partition, constraint), head in self._scan(ORDER_HEADS):
            order = topic, partition, constraint, head.incarnation
            items = sum(len(match.items) for match in map(match_of, orders[order]) if match is not None)
            if head.next_ps != items or any(map(closed_of, orders[order])):
                raise _Fault(
                    f"constraint {order[2].hex()[:8]} on {order[0]}/{order[1]} is not where its order is"
                )

    def _message(self, places: dict[int, BatchPlace], offset: int) -> bytes:
        """The leaf of the message that the index finds at an offset."""
        first = max(first for first in places if first <= offset)
        return self._read(layout.batch(places[first].digest), Batch).messages[offset - first].leaf()

    def _scan(self, table: Table[R, *K], *leading: object) -> list[tuple[tuple[*K], R]]:
        try:
            return list(table.scan_stored(self._state_view, *leading))
        except (*DECODE_ERRORS, ValueError) as error:
            raise _Fault(f"an entry of table {table.name} cannot be read: {error}") from None

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
    kind, rest = layout.split(key)
    return f"{kind.decode()}{rest.hex()}"
