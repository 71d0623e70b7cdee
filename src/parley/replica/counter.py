"""A small application: it counts batches, each author's in order and each once. It stands in for pub/sub in tests."""

from __future__ import annotations

from collections.abc import Sequence

from parley.consensus.types import Block
from parley.crypto.encoding import enc, u32, u64
from parley.crypto.hashing import digest
from parley.ledger.application import Admitted, Erasure, KeyValue, Outcome, Receipt, Writes
from parley.mempool.pool import admit_any

__all__ = ["Counter", "encode_batch"]

_HEADER = 4 + 8


def encode_batch(author: int, sequence: int, payload: bytes) -> bytes:
    """The `sequence`-th batch of `author`, counting from 0."""
    return u32(author) + u64(sequence) + payload


class Counter:
    """State: next sequence by author, and the total. A replica of it is equal iff it counted the same."""

    _TOTAL = b"total"

    def genesis(self) -> Outcome:
        entries = {self._TOTAL: u64(0)}
        return Outcome(tuple(entries.items()), _root(entries), (), frozenset())

    def admit(self, body: bytes) -> Admitted:
        return admit_any(body)

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Outcome:
        del block  # a count depends on nothing but the batches
        entries = dict(state.scan(b""))
        changed: dict[bytes, bytes | None] = {}
        receipts: list[Receipt] = []
        # Within a block an author's batches apply in sequence order, whatever order the leader chose (P3).
        for name, body in sorted(batches, key=lambda batch: batch[1][:_HEADER]):
            code = self._count(entries, changed, body)
            receipts.append(Receipt(name, code, int.from_bytes(entries[self._TOTAL], "big")))
        settled = frozenset(receipt.batch for receipt in receipts if receipt.code != "out_of_sequence")
        leaves = tuple(enc(r.batch, r.code.encode(), u64(r.position)) for r in receipts)
        return Outcome(tuple(changed.items()), _root(entries), tuple(receipts), settled, leaves)

    def indices(self, height: int, leaves: Sequence[bytes], state: KeyValue) -> Writes:  # noqa: ARG002 - it has none
        return ()

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:  # noqa: ARG002 - it never forgets
        return True

    def erase(self, state: KeyValue, limit: int) -> Erasure:  # noqa: ARG002 - it never forgets
        return Erasure((), ())

    def remains(self, body: bytes) -> bytes:  # noqa: ARG002 - nobody signed it
        return b""

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


def _root(entries: dict[bytes, bytes]) -> bytes:
    return digest("counter/state", *(part for key in sorted(entries) for part in (key, entries[key])))
