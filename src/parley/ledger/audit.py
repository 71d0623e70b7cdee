"""The offline verifier of a whole store: from the genesis file over every block, batch, receipt and state entry.

It believes nothing in the store. With an application it also executes every block again, so that a store is right only
if its results are what the ordered batches give; without one it checks that everything fits together.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from parley.consensus.errors import Refused
from parley.consensus.types import VERSION, Block, Instance, Roots, genesis_block
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.merkle import MountainRange
from parley.crypto.qc import Ed25519List
from parley.ledger import layout, state_map
from parley.ledger.application import Application, KeyValue, Outcome
from parley.ledger.layout import Head, StoredBlock
from parley.ledger.proofs import history_leaf
from parley.model.batches import PUBLISH, Batch, open_batch
from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Refusal
from parley.model.genesis import Genesis
from parley.model.receipts import BatchReceipt, Published, decode_leaf

__all__ = ["Verdict", "verify_store"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`heights` blocks were checked; `first_fault` names the first entry that is wrong and what is wrong with it."""

    heights: int
    publications: int
    first_fault: str | None

    @property
    def valid(self) -> bool:
        return self.first_fault is None


class _Fault(Exception):  # noqa: N818 - what the auditor found
    def __init__(self, entry: bytes, what: str) -> None:
        super().__init__(f"entry {_name(entry)} {what}")


def verify_store(
    store: KeyValue,
    genesis: Genesis,
    application: Application | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verdict:
    """Check everything that a broker stores; `progress` is told heights done and heights in all."""
    audit = _Audit(store, genesis, application)
    try:
        for height in audit.run():
            progress(height, audit.highest)
    except _Fault as fault:
        return Verdict(audit.height, audit.publications, str(fault))
    return Verdict(audit.height, audit.publications, None)


class _Audit:
    """The state of one pass over the chain, from the genesis block upwards."""

    def __init__(self, store: KeyValue, genesis: Genesis, application: Application | None) -> None:
        instance = Instance(genesis.chain, 0, 0, len(genesis.brokers))
        self._store = store
        self._chain = genesis.chain
        self._genesis = genesis_block(instance, state_map.EMPTY_ROOT, genesis.start_time)
        scheme = Ed25519List([broker.key for broker in genesis.brokers])
        self._verifier = Verifier(instance, scheme, self._genesis)
        self._replay = None if application is None else _Replay(application)
        self._history = MountainRange()
        self._roots = [Roots(state_map.EMPTY_ROOT, self._history.root())]
        self.height = 0
        self.highest = 0
        self.publications = 0

    def run(self) -> Iterator[int]:
        head = self._read(layout.HEAD, _heads)
        self.highest = head.height
        block = self._block(0)
        if block.id != self._genesis.id:
            raise _Fault(layout.committed(0), "is not the first block of this genesis file's network")
        self._require_roots(0, self._roots[0])
        for height in range(1, head.height + 1):
            block = self._next(block)
            self.height = height
            yield height
        if head.history != self._history.encode():
            raise _Fault(layout.HEAD, "holds another history than the blocks give")
        self._check_state(head.height)

    def _next(self, parent: Block) -> Block:
        height = parent.height + 1
        block = self._block(height)
        self._check_links(block, parent)
        bodies = [self._body(name) for name in block.batches]
        leaves = self._receipts(block, [batch for _, batch in bodies])
        self._check_history(block, leaves)
        if self._replay is not None:
            self._check_results(block, [data for data, _ in bodies], leaves)
        return block

    def _check_links(self, block: Block, parent: Block) -> None:
        key, header = layout.committed(block.height), block.header
        if (header.parent, header.height, header.justify.block) != (parent.id, parent.height + 1, parent.id):
            raise _Fault(key, "does not follow the block before it")
        if header.time <= parent.header.time:
            raise _Fault(key, "is not later than the block before it")
        if (header.version, header.chain, header.shard, header.epoch) != (VERSION, self._chain, 0, 0):
            raise _Fault(key, "belongs to another network")
        if merkle.root(block.batches) != header.batches_root:
            raise _Fault(key, "lists other batches than its header commits to")
        try:
            # The quorum that certified the parent; what certifies the last block stands in the next one.
            self._verifier.qc(header.justify)
            if header.tc is not None:
                self._verifier.tc(header.tc)
        except Refused as refused:
            raise _Fault(key, f"carries a certificate that does not hold: {refused}") from None
        if header.executed_height > parent.height:
            raise _Fault(key, "claims results of blocks that were not executed before it")
        if self._roots[header.executed_height] != Roots(header.state_root, header.history_root):
            raise _Fault(
                key, f"claims other results for height {header.executed_height} than the blocks give"
            )

    def _body(self, name: bytes) -> tuple[bytes, Batch]:
        key = layout.batch(name)
        data = self._required(key)
        try:
            found, batch = open_batch(data, self._chain)
        except Refusal as refusal:
            raise _Fault(key, f"is not a valid batch: {refusal}") from None
        if found != name:
            raise _Fault(key, "holds another batch than it is named after")
        return data, batch

    def _receipts(self, block: Block, batches: list[Batch]) -> tuple[bytes, ...]:
        key = layout.receipts(block.height)
        leaves = self._read(key, _receipts)
        try:
            receipts = [leaf for leaf in map(decode_leaf, leaves) if isinstance(leaf, BatchReceipt)]
        except ValueError as error:
            raise _Fault(key, f"cannot be read: {error}") from None
        if sorted(receipt.digest for receipt in receipts) != sorted(block.batches):
            raise _Fault(key, "does not have one receipt for each batch of its block")
        published = sum(batch.header.count for batch in batches if batch.header.kind == PUBLISH)
        accepted = sum(r.count for r in receipts if isinstance(r.outcome, Published))
        if accepted > published:
            raise _Fault(key, "accepts more publications than the block holds")
        self.publications += accepted
        return leaves

    def _check_history(self, block: Block, leaves: tuple[bytes, ...]) -> None:
        nodes = self._history.append(history_leaf(block.height, block.id, merkle.root(leaves)))
        for level, index, node in nodes:
            if self._store.get(layout.history_node(level, index)) != node:
                raise _Fault(layout.history_node(level, index), "is not the history's node")
        stored = self._read(layout.roots(block.height), _roots)
        if stored.history != self._history.root():
            raise _Fault(layout.roots(block.height), "holds another history root than the blocks give")
        self._roots.append(stored)

    def _check_results(self, block: Block, bodies: list[bytes], leaves: tuple[bytes, ...]) -> None:
        assert self._replay is not None
        outcome = self._replay.apply(block, bodies)
        if outcome.leaves != leaves:
            raise _Fault(layout.receipts(block.height), "is not what executing the block gives")
        if outcome.state_root != self._roots[block.height].state:
            raise _Fault(
                layout.roots(block.height), "holds another state root than executing the block gives"
            )

    def _check_state(self, height: int) -> None:
        """The entries give the root; the nodes are those of the map; indices are what execution wrote."""
        entries = {key[len(layout.STATE) :]: value for key, value in self._store.scan(layout.STATE)}
        root, nodes = state_map.update({}, entries)
        if root != self._roots[height].state:
            raise _Fault(layout.STATE, f"and all state entries do not give the state root of height {height}")
        self._require_equal(layout.NODE, {path: node for path, node in nodes.items() if node is not None})
        if self._replay is not None:
            self._require_equal(layout.INDEX, self._replay.entries(b"i"))

    def _require_equal(self, prefix: bytes, expected: dict[bytes, bytes]) -> None:
        for key, value in self._store.scan(prefix):
            if expected.pop(key[len(prefix) :], None) != value:
                raise _Fault(key, "is not what the state gives")
        for missing in sorted(expected)[:1]:
            raise _Fault(prefix + missing, "is missing")

    def _require_roots(self, height: int, roots: Roots) -> None:
        if self._read(layout.roots(height), _roots) != roots:
            raise _Fault(layout.roots(height), "holds other roots than the genesis file gives")

    def _block(self, height: int) -> Block:
        return self._read(layout.committed(height), _blocks).block()

    def _read(self, key: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
        try:
            return decoder.decode(self._required(key))
        except DECODE_ERRORS as error:
            raise _Fault(key, f"cannot be read: {error}") from None

    def _required(self, key: bytes) -> bytes:
        value = self._store.get(key)
        if value is None:
            raise _Fault(key, "is missing")
        return value


class _Replay:
    """The application on a state of its own, fed with the blocks of the store."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._state: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._write(application.genesis())

    def apply(self, block: Block, bodies: list[bytes]) -> Outcome:
        outcome = self._application.apply(block, list(zip(block.batches, bodies, strict=True)), self)
        self._write(outcome)
        return outcome

    def entries(self, prefix: bytes) -> dict[bytes, bytes]:
        return {key[len(prefix) :]: value for key, value in self.scan(prefix)}

    def get(self, key: bytes) -> bytes | None:
        return self._state.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        first = at = bisect_left(self._keys, prefix)
        while at < len(self._keys) and self._keys[at].startswith(prefix):
            at += 1
        return iter([(key, self._state[key]) for key in self._keys[first:at]])

    def _write(self, outcome: Outcome) -> None:
        for key, value in outcome.writes:
            if value is None:
                if self._state.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._state:
                    insort(self._keys, key)
                self._state[key] = value


def _name(entry: bytes) -> str:
    """An entry for people: readable as far as it is text, heights as numbers."""
    kind, rest = entry[:2], entry[2:]
    if kind in {b"c/", b"r/", b"e/"} and len(rest) == 8:
        return f"{kind.decode()}{int.from_bytes(rest, 'big')}"
    return "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in entry)


_heads = msgspec.msgpack.Decoder(Head)
_blocks = msgspec.msgpack.Decoder(StoredBlock)
_roots = msgspec.msgpack.Decoder(Roots)
_receipts = msgspec.msgpack.Decoder(tuple[bytes, ...])
