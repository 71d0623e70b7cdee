"""A small application: it counts batches, each author's in order and each once. It stands in for pub/sub in tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from parley.consensus.types import Block
from parley.crypto.encoding import enc, u32, u64
from parley.ledger import state_map
from parley.ledger.application import AdmittedBatch, Erasure, Indexing, Mounted, Receipt, Results, Writes
from parley.ledger.layout import ENTRIES, NODES
from parley.mempool.pool import admit_any, batch_digest
from parley.model.names import Position
from parley.model.receipts import BatchReceipt
from parley.store.interface import KeyValue

_HEADER = 4 + 8


def encode_batch(author: int, sequence: int, payload: bytes) -> bytes:
    """The `sequence`-th batch of `author`, counting from 0."""
    return u32(author) + u64(sequence) + payload


class Counter:
    """State: next sequence by author, and the total. A replica of it is equal iff it counted the same."""

    _TOTAL = b"total"

    def genesis(self) -> Results:
        writes, root = _written({self._TOTAL: u64(0)}, _Nodes(lambda _: None))
        return Results(writes, root, (), frozenset())

    def admit(self, body: bytes) -> AdmittedBatch:
        return admit_any(body)

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        del block  # a count depends on nothing but the batches
        entries = {key[len(ENTRIES) :]: value for key, value in state.scan(ENTRIES)}
        changed: dict[bytes, bytes | None] = {}
        receipts: list[Receipt] = []
        # Within a block an author's batches apply in sequence order, whatever order the leader chose (P3).
        for name, body in sorted(batches, key=lambda batch: batch[1][:_HEADER]):
            code = self._count(entries, changed, body)
            receipts.append(Receipt(name, code, int.from_bytes(entries[self._TOTAL], "big")))
        settled = frozenset(receipt.batch for receipt in receipts if receipt.code != "out_of_sequence")
        leaves = tuple(enc(r.batch, r.code.encode(), u64(r.position)) for r in receipts)
        writes, root = _written(changed, _Nodes(state.get))
        return Results(writes, root, tuple(receipts), settled, leaves)

    def repaired(self, keys: Collection[bytes]) -> None:
        """Nothing to do: it keeps nothing in memory."""

    def _count(self, entries: dict[bytes, bytes], changed: dict[bytes, bytes | None], body: bytes) -> str:
        if len(body) < _HEADER:
            return "malformed"
        author, sequence = b"next/" + body[:4], int.from_bytes(body[4:_HEADER], "big")
        expected = int.from_bytes(entries.get(author, b""), "big")
        if sequence != expected:
            return "duplicate" if sequence < expected else "out_of_sequence"
        entries[author] = changed[author] = u64(expected + 1)
        entries[self._TOTAL] = changed[self._TOTAL] = u64(int.from_bytes(entries[self._TOTAL], "big") + 1)
        return "ok"


class Keeper:
    """It keeps every body and has no indices."""

    def is_body(self, body: bytes, digest: bytes) -> bool:
        return batch_digest(body) == digest

    def receipt(self, leaf: bytes) -> BatchReceipt | None:  # noqa: ARG002 - its leaves are of another kind
        return None

    def may_be_late(self, kind: int) -> bool:  # noqa: ARG002 - batches have no kinds
        return False

    def indexing(self, height: int, state: KeyValue, first: int = 0) -> Indexing:  # noqa: ARG002 - it has none
        return NoIndices()

    def place_of(self, key: bytes, value: bytes) -> Position | None:  # noqa: ARG002 - it has none
        raise ValueError("is of no known kind")

    def passing(self) -> tuple[bytes, ...]:
        return ()

    def receipt_height(self, digest: bytes, state: KeyValue) -> int | None:  # noqa: ARG002 - it has no index
        return None

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:  # noqa: ARG002 - it never forgets
        return True

    def erase(self, state: KeyValue, height: int, limit: int) -> Erasure:  # noqa: ARG002 - it never forgets
        return Erasure((), ())

    def remains(self, body: bytes) -> bytes:  # noqa: ARG002 - nobody signed it
        return b""


class NoIndices:
    """Of a block whose leaves lead nowhere."""

    def add(self, leaves: Sequence[bytes]) -> Writes:  # noqa: ARG002 - they give nothing
        return ()

    def rest(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter(())


def mounted() -> Mounted:
    return Mounted(Counter(), Keeper())


class _Nodes:
    """The map's nodes as they were before this block."""

    def __init__(self, get: Callable[[bytes], bytes | None]) -> None:
        self._get = get

    def get(self, path: bytes, /) -> bytes | None:
        return self._get(NODES + path)


def _written(changed: dict[bytes, bytes | None], nodes: _Nodes) -> tuple[Writes, bytes]:
    """The entries and the nodes to write, and the root after them."""
    root, changed_nodes = state_map.update(nodes, changed)
    entries = [(ENTRIES + key, value) for key, value in changed.items()]
    return (*entries, *((NODES + path, node) for path, node in changed_nodes.items())), root
