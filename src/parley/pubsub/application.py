"""The data shard's application: every ordered batch, once, in sequence, by whoever may (P3, P6, P26).

The state's entries stand under `k`, the nodes of the map over them under `n`, and under `i` the indices that brokers
serve from, which are derived and not certified.
"""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Block
from parley.ledger import state_map
from parley.ledger.application import Admitted, Erasure, KeyValue, Outcome, Receipt, Writes
from parley.ledger.erasure import remains_of
from parley.model.batches import Batch
from parley.model.errors import Code, Refusal
from parley.model.genesis import Genesis
from parley.model.receipts import BatchReceipt, Leaf, decode_leaf, encode_leaf
from parley.pubsub import endings, erasing, expiry, numbering, retention, staging, subscriptions
from parley.pubsub.admission import Admission
from parley.pubsub.budget import Budget
from parley.pubsub.deadlines import Deadlines
from parley.pubsub.executed import Executed
from parley.pubsub.execution import execute, in_turn
from parley.pubsub.indexing import places
from parley.pubsub.interests import Interests
from parley.pubsub.orders import Orders
from parley.pubsub.records import PENDING
from parley.pubsub.state import ENTRIES, NODES, State
from parley.pubsub.step import Step
from parley.registry.registry import Registry

__all__ = ["PubSub"]

_REASONS = {
    Code.MALFORMED: Reason.MALFORMED,
    Code.OVERSIZED: Reason.OVERSIZED,
    Code.BAD_SIGNATURE: Reason.BAD_SIGNATURE,
    Code.WRONG_CHAIN: Reason.WRONG_CHAIN,
}
# These wait in the pools to be ordered again.
_NOT_SETTLED = frozenset({Code.OUT_OF_SEQUENCE, Code.BUSY})


class PubSub:
    """Topics, subscriptions and publications of one network. What it keeps between blocks is derived from the state."""

    numbered_bytes = numbering.MAX_NUMBERED_BYTES  # all brokers must have the same; simulations have less

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self._registry = Registry(genesis)
        self._admission = Admission(genesis.chain)
        self._interests = Interests()
        self._deadlines = Deadlines()
        self._height: int | None = None  # of the state that these are derived from
        self.executed = Executed()

    @property
    def subscriptions(self) -> int | None:
        """How many there are; None until the first block since this start has been executed."""
        return None if self._height is None else len(self._interests)

    def genesis(self) -> Outcome:
        """The empty state: organisations and administrators are those of the genesis file (P26)."""
        return Outcome((), state_map.EMPTY_ROOT, (), frozenset())

    def open(self, body: bytes) -> tuple[bytes, Batch]:
        """The digest and content of a batch that may be ordered. Raises `parley.model.errors.Refusal`."""
        opened = self._admission.open(body)
        return opened.digest, opened.batch

    def vouch(self, body: bytes, name: bytes) -> None:
        """Somebody whom this broker trusts has checked this very body, for this network, and found this digest."""
        self._admission.vouch(body, name)

    def admit(self, body: bytes) -> Admitted:
        try:
            name, batch = self.open(body)
        except Refusal as refusal:
            raise Refused(_REASONS[refusal.code], refusal.detail) from None
        return Admitted(name, batch.header.publisher)

    def is_body(self, body: bytes, name: bytes) -> bool:
        return self._admission.is_body(body, name)

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Outcome:
        step = self._begin(block, state)
        expiry.sweep(step)
        retention.sweep(step)
        subscriptions.expire(step, endings.clear(step, subscriptions.MAX_ENDED))
        staging.clear(step)
        line_up = in_turn([self._admission.recall(name, body) for name, body in batches])
        receipts = [execute(step, opened, position) for position, opened in enumerate(line_up)]
        sizes = {name: len(body) for name, body in batches}
        room = self._genesis.limits.block_bytes - sum(sizes.values())
        numbered = numbering.number(step, min(room, self.numbered_bytes))
        placed = [one.receipt for one in numbered]
        leaves: list[Leaf] = [*receipts, *placed, *step.orders.matched(), *step.orders.closed()]
        changes = dict(step.state.changes())
        root, nodes = state_map.update(_Nodes(state), changes)
        settled = frozenset(receipt.digest for receipt in receipts if receipt.code not in _NOT_SETTLED)
        self._admission.forget(settled)
        self.executed.block(leaves, sizes, {one.receipt.digest: one.size for one in numbered})
        self._height = block.height
        return Outcome(
            writes=(
                *((ENTRIES + key, value) for key, value in changes.items()),
                *((NODES + path, node) for path, node in nodes.items()),
                *places(block.height, leaves, state),
                *erasing.logs_to_erase(block.height, step.moved, step.state, state),
                *erasing.bodies_to_erase(block.height, receipts, step.dropped, state),
            ),
            state_root=root,
            receipts=tuple(Receipt(r.digest, r.code.value, at) for at, r in enumerate(receipts)),
            settled=settled,
            leaves=tuple(map(encode_leaf, leaves)),
            urgent=bool(numbered) or step.state.count(PENDING) > 0,
        )

    def indices(self, height: int, leaves: Sequence[bytes], state: KeyValue) -> Writes:
        return tuple(places(height, list(map(decode_leaf, leaves)), state))

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        receipt = decode_leaf(leaf)
        return isinstance(receipt, BatchReceipt) and erasing.is_kept(receipt, state)

    def erase(self, state: KeyValue, limit: int) -> Erasure:
        if self._height is None:  # just started: what waits here waits for the next block
            return Erasure((), ())
        return erasing.erase(state, self._height, limit)

    def remains(self, body: bytes) -> bytes:
        return remains_of(body)

    def _begin(self, block: Block, state: KeyValue) -> Step:
        if self._height is None or self._height != block.height - 1:
            self._interests, self._deadlines = Interests.load(state), Deadlines.load(state)
        self._height = None  # until this block is done
        entries = State(state)
        return Step(
            block.height,
            block.header.time,
            self._genesis,
            self._registry,
            entries,
            self._interests,
            self._deadlines,
            Orders(entries),
            Budget(),
            moved={},
            dropped=[],
        )


class _Nodes:
    """The map's nodes as they were before this block."""

    def __init__(self, store: KeyValue) -> None:
        self._get = store.get

    def get(self, path: bytes, /) -> bytes | None:
        return self._get(NODES + path)
