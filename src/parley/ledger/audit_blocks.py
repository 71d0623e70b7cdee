"""The checks of the offline verifier, block by block and then of what else a store holds.

Those of a block need only the blocks beside it and the history up to it, so that `Audit` can begin at any height and many
can share a store; `found` decides whether the first fault is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import ParamSpec

import msgspec

from parley.consensus.committee import committees_of
from parley.consensus.types import Block, Roots
from parley.crypto.hashing import DIGEST_SIZE
from parley.crypto.merkle import MountainRange
from parley.ledger import layout, state_map
from parley.ledger.application import Mounted
from parley.ledger.audit_chain import check_links, fits, is_listed, require_certified, stored_history
from parley.ledger.audit_entries import (
    Fault,
    T,
    check_body,
    check_indices,
    check_rest,
    check_state,
    decoded,
    stop,
)
from parley.ledger.bodies import kept_batches
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.ledger.proofs import history_leaf_of, verifier_of
from parley.ledger.replay import Replay
from parley.model.batches import CONTROL, Batch, BatchHeader
from parley.model.codec import DECODE_ERRORS
from parley.model.genesis import Genesis
from parley.model.receipts import BatchReceipt
from parley.store.interface import KeyValue

P = ParamSpec("P")

NOT_IT = "is not what the history says"
NAMED_WITHIN = 64  # heights above a block in which a header may name its results


class Check(IntEnum):
    """What is looked at, in this order: block by block up to the indices of each, then the store as a whole."""

    WHOLE = 0
    LINKS = 1
    RECEIPTS = 2
    BODIES = 3
    RESULTS = 4
    HISTORY = 5
    ROOTS = 6
    INDICES = 7
    STATE = 8
    REST = 9


class Audit:
    """The state of one pass over the chain, upwards. What depends on something damaged is not reported as well.

    `shown`: the store is what brokers show of theirs, each block proven to be in the certified history, with bodies
    whose signatures were checked. What such a store lacks may have been erased rightly.
    """

    def __init__(
        self,
        store: KeyValue,
        genesis: Genesis,
        mounted: Mounted,
        *,
        shard: int,
        replay: bool = False,
        shown: bool = False,
        found: Callable[[Fault], None] = stop,
    ) -> None:
        self._store = store
        self._state = layout.StateView(store)
        self._chain = genesis.chain
        committee = committees_of(genesis)[shard]
        self._instance = committee.instance
        self._genesis = committee.first_block(state_map.EMPTY_ROOT, genesis.start_time)
        self._verifier = verifier_of(committee, genesis.start_time)
        self._keeper = mounted.keeper
        # What is shown proves nothing of the indices.
        self._derived = None if shown else Derived(mounted.keeper, store, self._state)
        self._replay = Replay(mounted.machine) if replay else None
        self._shown = shown
        self._found = found
        self._history: MountainRange | None = MountainRange()  # None: not known, after damage
        self.check = Check.WHOLE  # what is being looked at
        self.leaf: bytes | None = None  # the hash in the history of the last block
        self.at = 0  # the height of the block that is being looked at
        self.height = 0
        self.highest = 0
        self.publications = 0
        self.gone = 0  # bodies that need not be here any more

    @property
    def replayed(self) -> bool:
        return self._replay is not None and self.height == self.highest

    def run(self) -> Iterator[int]:
        yield from self.blocks(1, self.begin().height)
        self.state()
        self.indices()
        self.rest()

    def begin(self) -> layout.Head:
        """What everything else hangs on: the first fault here is the last, also for whoever collects them."""
        self._require_whole()
        head = self._read(layout.HEAD, layout.decode_head)
        self.highest = head.height
        if self._block(0).id != self._genesis.id:
            raise Fault(layout.committed(0), "is not the first block of this genesis file's network")
        if self._read(layout.roots(0), layout.decode_roots) != Roots(
            state_map.EMPTY_ROOT, MountainRange().root()
        ):
            raise Fault(layout.roots(0), "holds other roots than the genesis file gives")
        return head

    def blocks(self, first: int, last: int, before: MountainRange | None = None) -> Iterator[int]:
        """Check the blocks of these heights; `before` is the history up to them, by default as it is stored.

        If there are faults below `first`, these are found by whoever looks there.
        """
        self._history = stored_history(self._store, first - 1) if before is None else before.copy()
        parent = self._parent(first - 1) if first > 1 else self._genesis
        for height in range(first, last + 1):
            parent = self._next(parent, height)
            self.height = height
            yield height
        if last == self.highest and self._history is not None and not self._shown:
            self._tried(self._check_head, self._history)

    def _parent(self, height: int) -> Block | None:
        """The block, unless whoever looks at its height finds that it is wrong."""
        try:
            block = self._block(height)
            require_certified(self._store, block)
        except Fault:
            return None
        return block

    def executed(self) -> Iterator[int]:
        """Execute the blocks again, one after another, as far as their bodies are here. Other faults are not reported."""
        for height in range(1, self.highest + 1):
            try:
                block = self._block(height)
                leaves = self._receipts(block)
                bodies = self._all_bodies(block)
            except Fault:
                return
            self.check = Check.RESULTS
            self._check_results(block, bodies, leaves)
            self.height = height
            yield height

    def _all_bodies(self, block: Block) -> list[bytes]:
        bodies: list[bytes] = []
        for name in block.batches:
            data = self._store.get(layout.batch(name))
            if data is None:
                raise Fault(layout.batch(name), "is missing")
            self._header(data, name)
            bodies.append(data)
        return bodies

    def _check_head(self, history: MountainRange) -> None:
        if self._read(layout.HEAD, layout.decode_head).history != history.encode():
            raise Fault(layout.HEAD, "holds another history than the blocks give")

    def state(self) -> None:
        self.check = Check.STATE
        roots = self._tried(self._read, layout.roots(self.highest), layout.decode_roots)
        if roots is not None:
            check_state(self._store, roots.state, self._found)

    def indices(self, under: bytes = layout.INDEX) -> None:
        self.check = Check.INDICES
        if not self._shown:
            check_indices(self._store, self._keeper, self._found, under)

    def rest(self) -> None:
        self.check = Check.REST
        check_rest(self._store, self._instance, self._verifier, self._keeper, self._found)

    def _require_whole(self) -> None:
        if self._store.get(layout.JOINING) is not None:
            raise Fault(layout.JOINING, "says that this broker is still fetching a snapshot of the state")
        missing = self._store.get(layout.BACKFILL)
        if missing is not None:
            below = int.from_bytes(missing, "big")
            raise Fault(layout.BACKFILL, f"says that the history below height {below} is not filled in yet")

    def _tried(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return check(*args, **kwargs)
        except Fault as fault:
            self._found(fault)
            return None

    def _next(self, parent: Block | None, height: int) -> Block | None:
        """The block, if it may be the parent of the next one."""
        self.check, self.at = Check.LINKS, height
        block = self._tried(self._block, height)
        if block is None or not (self._linked(block, parent) or is_listed(self._store, block)):
            self._replay = None
            self._resume(height)
            return None
        self.check = Check.RECEIPTS
        leaves = self._tried(self._receipts, block)
        self.check = Check.BODIES
        bodies = self._bodies(block, leaves)
        if bodies is None:
            self._replay = None
        if leaves is None:
            self._resume(height)
        else:
            self.check = Check.RESULTS
            self._tried(self._check_results, block, bodies, leaves)
            self.check = Check.HISTORY
            self._check_history(block, leaves)
        self.check = Check.ROOTS
        self._tried(self._check_roots, block)
        self._tried(self._check_named_roots, block)
        if leaves is not None:
            self._check_derived(height, leaves)
        return block

    def _linked(self, block: Block, parent: Block | None) -> bool:
        try:
            check_links(self._store, self._verifier, self._instance, block, parent)
        except Fault as fault:
            self._found(fault)
            return False
        return True

    def _check_derived(self, height: int, leaves: tuple[bytes, ...]) -> None:
        self.check = Check.INDICES
        if self._derived is not None:
            for key, _ in self._derived.wrong(height, leaves):
                self._found(
                    Fault(layout.APPLICATION + key, f"does not lead to the receipt in block {height}")
                )

    # -- receipts and bodies -----------------------------------------------------------------------------------------

    def _receipts(self, block: Block) -> tuple[bytes, ...]:
        key = layout.receipts(block.height)
        leaves = self._read(key, layout.decode_receipts)
        try:
            receipts = [*filter(None, map(self._keeper.receipt, leaves))]
        except ValueError as error:
            raise Fault(key, f"cannot be read: {error}") from None
        own, late = receipts[: len(block.batches)], receipts[len(block.batches) :]
        if sorted(receipt.digest for receipt in own) != sorted(block.batches):
            raise Fault(key, "does not have one receipt for each batch of its block")
        if not all(map(self._may_be_late, late)):
            raise Fault(key, "numbers a batch that is neither its own nor was staged like this")
        self.publications += sum(r.count for r in receipts if r.outcome.place is not None)
        return leaves

    def _may_be_late(self, receipt: BatchReceipt) -> bool:
        """Whether a receipt can finish a batch of an earlier block, as far as the batch or what stayed of it is here (P23)."""
        if receipt.outcome.place is None:
            return False
        body = self._store.get(layout.batch(receipt.digest))
        try:
            if body is not None:
                header = _batches.decode(body).header
            elif (remains := self._store.get(layout.erased(receipt.digest))) is not None:
                header = check_remains(remains, receipt.digest, self._chain).header
            else:
                return True
        except (*DECODE_ERRORS, RemainsError):
            return True  # its own fault, where it was staged
        said = (receipt.publisher, receipt.topic, receipt.partition, receipt.count)
        ordered = (header.publisher, header.topic, header.partition, header.count)
        return self._keeper.may_be_late(header.kind) and said == ordered

    def _bodies(self, block: Block, leaves: tuple[bytes, ...] | None) -> list[bytes] | None:
        """In the block's order; None if some are rightly gone, or any is wrong."""
        bodies: list[bytes] = []
        headers: list[BatchHeader] = []
        for name in block.batches:
            data = self._store.get(layout.batch(name))
            if data is not None:
                header = self._tried(self._header, data, name)
                bodies.append(data)
            else:
                header = None if leaves is None else self._tried(self._erased, block, leaves, name)
            if header is not None:
                headers.append(header)
        if leaves is None or len(headers) != len(block.batches):
            return None  # and so many publications cannot be counted
        self._tried(self._check_accepted, block, leaves, headers)
        return bodies if len(bodies) == len(block.batches) else None

    def _header(self, data: bytes, name: bytes) -> BatchHeader:
        if self._shown:
            return _batches.decode(data).header
        return check_body(layout.batch(name), data, name, self._instance).header

    def _check_accepted(
        self, block: Block, leaves: tuple[bytes, ...], headers: Sequence[BatchHeader]
    ) -> None:
        late = self._keeper.may_be_late
        published = sum(
            header.count for header in headers if header.kind != CONTROL and not late(header.kind)
        )
        receipts = filter(None, map(self._keeper.receipt, leaves[: len(block.batches)]))
        accepted = sum(receipt.count for receipt in receipts if receipt.outcome.place is not None)
        if accepted > published:
            raise Fault(layout.receipts(block.height), "accepts more publications than the block holds")

    def _erased(self, block: Block, leaves: tuple[bytes, ...], name: bytes) -> BatchHeader | None:
        """The header of a batch whose body may be gone, if that has stayed."""
        if not self._shown and name in self._kept(block, leaves):
            raise Fault(layout.batch(name), "is missing")
        self.gone += 1
        remains = self._store.get(layout.erased(name))
        try:
            return None if remains is None else check_remains(remains, name, self._chain).header
        except RemainsError as error:
            raise Fault(layout.erased(name), f"is not what stayed of the batch: {error}") from None

    def _kept(self, block: Block, leaves: tuple[bytes, ...]) -> tuple[bytes, ...]:
        try:
            return kept_batches(block, leaves, self._keeper, self._state, highest=self.highest)
        except (*DECODE_ERRORS, ValueError) as error:
            raise Fault(layout.STATE, f"has an entry that cannot be read: {error}") from None

    # -- results -----------------------------------------------------------------------------------------------------

    def _check_results(self, block: Block, bodies: list[bytes] | None, leaves: tuple[bytes, ...]) -> None:
        if self._replay is None or bodies is None:
            return
        outcome = self._replay.apply(block, bodies)
        if outcome.leaves != leaves:
            raise Fault(layout.receipts(block.height), "is not what executing the block gives")
        key = layout.roots(block.height)
        stored = self._store.get(key)
        if stored is not None and decoded(layout.decode_roots, key, stored).state != outcome.state_root:
            raise Fault(key, "holds another state root than executing the block gives")

    def _check_history(self, block: Block, leaves: tuple[bytes, ...]) -> None:
        if self._history is None:
            self._resume(block.height)
            return
        completed = self._history.append(history_leaf_of(block.height, block.id, leaves))
        self.leaf = completed[0][-1]
        for level, index, node in completed:
            key = layout.history_node(level, index)
            if self._shown or self._store.get(key) == node:
                continue
            if not level and fits(self._store, index):
                # Block or receipts are wrong: not the receipts, if executing the block has just given them.
                suspect = layout.receipts if self._replay is None else layout.committed
                self._found(Fault(suspect(block.height), NOT_IT))
                self._resume(block.height)
                return
            self._found(Fault(key, NOT_IT))

    def _resume(self, height: int) -> None:
        """Go on from what is stored, after something by which the history up to this height cannot be computed."""
        self._history = stored_history(self._store, height)
        leaf = self._store.get(layout.history_node(0, height - 1))
        self.leaf = leaf if leaf is not None and len(leaf) == DIGEST_SIZE else None

    def _check_roots(self, block: Block) -> None:
        """What a header names must be here; of other heights nobody can ask for the roots any more."""
        key = layout.roots(block.height)
        stored = self._store.get(key)
        if stored is None:
            if self._is_named(block.height):
                raise Fault(key, "is missing")
        elif (
            self._history is not None
            and decoded(layout.decode_roots, key, stored).history != self._history.root()
        ):
            raise Fault(key, "holds another history root than the blocks give")

    def _check_named_roots(self, block: Block) -> None:
        header = block.header
        named = layout.roots(header.executed_height)
        if self._read(named, layout.decode_roots) != Roots(header.state_root, header.history_root):
            raise Fault(named, f"is not what block {block.height} says, and a quorum with it")

    def _is_named(self, height: int) -> bool:
        for above in range(height + 1, min(height + NAMED_WITHIN, self.highest) + 1):
            executed = self._block(above).header.executed_height
            if executed >= height:
                return executed == height
        return height == self.highest and not self._shown

    def _block(self, height: int) -> Block:
        block = self._read(layout.committed(height), layout.decode_block).block()
        if block.height != height:
            raise Fault(layout.committed(height), "is a block of another height")
        return block

    def _read(self, key: bytes, decode: Callable[[bytes], T]) -> T:
        value = self._store.get(key)
        if value is None:
            raise Fault(key, "is missing")
        return decoded(decode, key, value)


_batches = msgspec.msgpack.Decoder(Batch)
