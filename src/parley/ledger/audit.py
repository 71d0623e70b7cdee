"""The offline verifier of a whole store: from the genesis file over every block, batch, receipt and state entry.

It believes nothing in the store. With an application it also executes every block again, so that a store is right only
if its results are what the ordered batches give; without one it checks that everything fits together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from parley.consensus.errors import Refused
from parley.consensus.types import VERSION, Block, Instance, Roots, genesis_block
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.encoding import EncodingError
from parley.crypto.merkle import MountainRange
from parley.crypto.qc import Ed25519List
from parley.ledger import history, layout, state_map
from parley.ledger.application import Application, KeyValue
from parley.ledger.audit_entries import (
    Fault,
    StateEntries,
    check_body,
    check_indices,
    check_rest,
    check_state,
    decoded,
)
from parley.ledger.bodies import kept_batches
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.ledger.layout import Head, StoredBlock
from parley.ledger.proofs import history_leaf
from parley.ledger.replay import Replay
from parley.model.batches import PUBLISH, Batch, BatchHeader
from parley.model.codec import DECODE_ERRORS
from parley.model.genesis import Genesis
from parley.model.receipts import BatchReceipt, Published, decode_leaf

__all__ = ["Verdict", "verify_store"]

T = TypeVar("T")

_NOT_IT = "is not what the history says"
NAMED_WITHIN = 64  # heights above a block in which a header may name its results


@dataclass(frozen=True, slots=True)
class Verdict:
    """`heights` blocks were checked; `first_fault` names the first entry that is wrong and what is wrong with it.

    `replayed`: every block was executed again. It cannot be once bodies have been erased.
    """

    heights: int
    publications: int
    first_fault: str | None
    replayed: bool = False

    @property
    def valid(self) -> bool:
        return self.first_fault is None


def verify_store(
    store: KeyValue,
    genesis: Genesis,
    application: Application | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    *,
    replay: bool = True,
) -> Verdict:
    """Check everything that a broker stores; `progress` is told heights done and heights in all."""
    audit = _Audit(store, genesis, application, replay=replay)
    fault: str | None = None
    try:
        for height in audit.run():
            progress(height, audit.highest)
    except Fault as found:
        fault = str(found)
    return Verdict(audit.height, audit.publications, fault, audit.replayed)


class _Audit:
    """The state of one pass over the chain, from the genesis block upwards."""

    def __init__(
        self, store: KeyValue, genesis: Genesis, application: Application | None, *, replay: bool
    ) -> None:
        instance = Instance(genesis.chain, 0, 0, len(genesis.brokers))
        self._store = store
        self._state = StateEntries(store)
        self._chain = genesis.chain
        self._genesis = genesis_block(instance, state_map.EMPTY_ROOT, genesis.start_time)
        scheme = Ed25519List([broker.key for broker in genesis.brokers])
        self._verifier = Verifier(instance, scheme, self._genesis)
        self._application = application
        self._derived = None if application is None else Derived(application, store, self._state)
        self._replay = Replay(application) if application is not None and replay else None
        self._history = MountainRange()
        self.height = 0
        self.highest = 0
        self.publications = 0

    @property
    def replayed(self) -> bool:
        return self._replay is not None and self.height == self.highest

    def run(self) -> Iterator[int]:
        self._require_whole()
        head = self._read(layout.HEAD, _heads)
        self.highest = head.height
        block = self._block(0)
        if block.id != self._genesis.id:
            raise Fault(layout.committed(0), "is not the first block of this genesis file's network")
        if self._read(layout.roots(0), _roots) != Roots(state_map.EMPTY_ROOT, self._history.root()):
            raise Fault(layout.roots(0), "holds other roots than the genesis file gives")
        for height in range(1, head.height + 1):
            block = self._next(block)
            self.height = height
            yield height
        if head.history != self._history.encode():
            raise Fault(layout.HEAD, "holds another history than the blocks give")
        check_state(self._store, self._read(layout.roots(head.height), _roots).state)
        if self._application is not None:
            check_indices(self._store, self._application)
        check_rest(self._store, self._chain, self._verifier)

    def _require_whole(self) -> None:
        if self._store.get(layout.JOINING) is not None:
            raise Fault(layout.JOINING, "says that this broker is still fetching a snapshot of the state")
        missing = self._store.get(layout.BACKFILL)
        if missing is not None:
            below = int.from_bytes(missing, "big")
            raise Fault(layout.BACKFILL, f"says that the history below height {below} is not filled in yet")

    def _next(self, parent: Block) -> Block:
        height = parent.height + 1
        block = self._block(height)
        self._check_links(block, parent)
        leaves = self._receipts(block)
        bodies = self._bodies(block, leaves)
        if bodies is None:
            self._replay = None
        self._check_results(block, bodies, leaves)
        self._check_history(block, leaves)
        self._check_roots(block)
        if self._derived is not None:
            for key, _ in self._derived.wrong(height, leaves):
                raise Fault(b"s/" + key, f"does not lead to the receipt in block {height}")
        return block

    def _check_links(self, block: Block, parent: Block) -> None:
        key, header = layout.committed(block.height), block.header
        if header.height != parent.height + 1 or header.justify.block != header.parent:
            raise Fault(key, "does not follow the block before it")
        if header.parent != parent.id:
            # The parent was linked to the one before it, so one of the two is wrong; a quorum certified what is named.
            raise Fault(key, "does not follow the block before it, or that one is not what was certified")
        if header.time <= parent.header.time:
            raise Fault(key, "is not later than the block before it")
        if (header.version, header.chain, header.shard, header.epoch) != (VERSION, self._chain, 0, 0):
            raise Fault(key, "belongs to another network")
        if merkle.root(block.batches) != header.batches_root:
            raise Fault(key, "lists other batches than its header commits to")
        try:
            # The quorum that certified the parent; what certifies the last block stands in the next one.
            self._verifier.qc(header.justify)
            if header.tc is not None:
                self._verifier.tc(header.tc)
        except Refused as refused:
            raise Fault(key, f"carries a certificate that does not hold: {refused}") from None
        if header.executed_height > parent.height:
            raise Fault(key, "claims results of blocks that were not executed before it")
        self._require_certified(block)

    def _require_certified(self, block: Block) -> None:
        """The next block names this one, so one that it does not name is not the one that a quorum certified."""
        above = self._store.get(layout.committed(block.height + 1))
        try:
            named = block.id if above is None else _blocks.decode(above).header.parent
        except DECODE_ERRORS:
            return  # its own fault, in a moment
        if named != block.id and self._is_certified_above(block.height):
            raise Fault(layout.committed(block.height), "is not the block that the next one follows")

    def _is_certified_above(self, height: int) -> bool:
        """Whether the next block is itself the one that its follower names, so that it can be believed."""
        blocks = [self._store.get(layout.committed(height + above)) for above in (1, 2)]
        if blocks[0] is None or blocks[1] is None:
            return False
        try:
            below, above = (_blocks.decode(data) for data in blocks if data is not None)
        except DECODE_ERRORS:
            return False
        return above.header.parent == below.block().id

    # -- receipts and bodies -----------------------------------------------------------------------------------------

    def _receipts(self, block: Block) -> tuple[bytes, ...]:
        key = layout.receipts(block.height)
        leaves = self._read(key, _receipts)
        try:
            receipts = [leaf for leaf in map(decode_leaf, leaves) if isinstance(leaf, BatchReceipt)]
        except ValueError as error:
            raise Fault(key, f"cannot be read: {error}") from None
        if sorted(receipt.digest for receipt in receipts) != sorted(block.batches):
            raise Fault(key, "does not have one receipt for each batch of its block")
        self.publications += sum(r.count for r in receipts if isinstance(r.outcome, Published))
        return leaves

    def _bodies(self, block: Block, leaves: tuple[bytes, ...]) -> list[bytes] | None:
        """In the block's order; None if some are rightly gone."""
        bodies: list[bytes] = []
        published = 0
        for name in block.batches:
            data = self._store.get(layout.batch(name))
            if data is None:
                header = self._erased(block, leaves, name)
            else:
                check_body(layout.batch(name), data, name, self._chain)
                header = _batches.decode(data).header
                bodies.append(data)
            if header is None:
                return None  # and so many publications cannot be counted
            published += header.count if header.kind == PUBLISH else 0
        accepted = sum(
            leaf.count
            for leaf in map(decode_leaf, leaves)
            if isinstance(leaf, BatchReceipt) and isinstance(leaf.outcome, Published)
        )
        if accepted > published:
            raise Fault(layout.receipts(block.height), "accepts more publications than the block holds")
        return bodies if len(bodies) == len(block.batches) else None

    def _erased(self, block: Block, leaves: tuple[bytes, ...], name: bytes) -> BatchHeader | None:
        """The header of a batch whose body may be gone, if that has stayed."""
        if self._application is None or name in self._kept(block, leaves):
            raise Fault(layout.batch(name), "is missing")
        remains = self._store.get(layout.erased(name))
        try:
            return None if remains is None else check_remains(remains, name, self._chain).header
        except RemainsError as error:
            raise Fault(layout.erased(name), f"is not what stayed of the batch: {error}") from None

    def _kept(self, block: Block, leaves: tuple[bytes, ...]) -> tuple[bytes, ...]:
        assert self._application is not None
        try:
            return kept_batches(block, leaves, self._application, self._state, highest=self.highest)
        except (*DECODE_ERRORS, ValueError) as error:
            raise Fault(layout.STATE, f"has an entry that cannot be read: {error}") from None

    # -- results -----------------------------------------------------------------------------------------------------

    def _check_results(self, block: Block, bodies: list[bytes] | None, leaves: tuple[bytes, ...]) -> None:
        if self._replay is None or bodies is None:
            return
        outcome = self._replay.apply(block, bodies)
        if outcome.leaves != leaves:
            raise Fault(layout.receipts(block.height), "is not what executing the block gives")
        stored = self._store.get(layout.roots(block.height))
        key = layout.roots(block.height)
        if stored is not None and decoded(_roots, key, stored).state != outcome.state_root:
            raise Fault(key, "holds another state root than executing the block gives")

    def _check_history(self, block: Block, leaves: tuple[bytes, ...]) -> None:
        leaf = history_leaf(block.height, block.id, merkle.root(leaves))
        for level, index, node in self._history.append(leaf):
            key = layout.history_node(level, index)
            if self._store.get(key) != node:
                raise Fault(key if level or not self._fits(index) else self._suspect(block.height), _NOT_IT)

    def _suspect(self, height: int) -> bytes:
        """Block or receipts are wrong: not the receipts, if executing the block has just given them."""
        return layout.receipts(height) if self._replay is None else layout.committed(height)

    def _fits(self, index: int) -> bool:
        """Whether the stored leaf leads to the head's root: then it is right, and what was hashed is not."""
        stored = self._store.get(layout.history_node(0, index))
        try:
            head = MountainRange.decode(self._read(layout.HEAD, _heads).history)
            if stored is None or len(stored) != len(head.root()):
                return False
            get = lambda key: self._store.get(b"h/" + key)  # noqa: E731 - a name for what is passed on
            return history.climb(get, (0, index), head.size, stored) == head.root()
        except (history.MissingNode, EncodingError):
            return False

    def _check_roots(self, block: Block) -> None:
        """What a header names must be here; of other heights nobody can ask for the roots any more."""
        key, header = layout.roots(block.height), block.header
        stored = self._store.get(key)
        if stored is None:
            if self._is_named(block.height):
                raise Fault(key, "is missing")
        elif decoded(_roots, key, stored).history != self._history.root():
            raise Fault(key, "holds another history root than the blocks give")
        named = layout.roots(header.executed_height)
        if self._read(named, _roots) != Roots(header.state_root, header.history_root):
            raise Fault(named, f"is not what block {block.height} says, and a quorum with it")

    def _is_named(self, height: int) -> bool:
        for above in range(height + 1, min(height + NAMED_WITHIN, self.highest) + 1):
            executed = self._block(above).header.executed_height
            if executed >= height:
                return executed == height
        return height == self.highest

    def _block(self, height: int) -> Block:
        block = self._read(layout.committed(height), _blocks).block()
        if block.height != height:
            raise Fault(layout.committed(height), "is a block of another height")
        return block

    def _read(self, key: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
        value = self._store.get(key)
        if value is None:
            raise Fault(key, "is missing")
        return decoded(decoder, key, value)


_heads = msgspec.msgpack.Decoder(Head)
_blocks = msgspec.msgpack.Decoder(StoredBlock)
_batches = msgspec.msgpack.Decoder(Batch)
_roots = msgspec.msgpack.Decoder(Roots)
_receipts = msgspec.msgpack.Decoder(tuple[bytes, ...])
