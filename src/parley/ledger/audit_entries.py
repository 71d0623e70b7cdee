"""What the offline verifier looks at besides the blocks: the state, the indices, and what belongs to no block yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec

from parley.consensus.errors import Refused
from parley.consensus.types import U16, U64, Proposal, Timeout, Vote
from parley.consensus.verify import Verifier
from parley.crypto.encoding import u64
from parley.ledger import layout, state_map
from parley.ledger.application import Application, KeyValue
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.ledger.indices import (
    BODIES_TO_ERASE,
    LOGS_TO_ERASE,
    TO_ERASE,
    BatchPlace,
    LeafPlace,
    LogToErase,
    ReceiptPlace,
    decode_place,
    receipt_key,
)
from parley.ledger.layout import Joins, StoredBlock
from parley.ledger.state_map import DamagedMap, StrayNode
from parley.model.batches import open_batch
from parley.model.codec import DECODE_ERRORS
from parley.model.errors import Refusal

__all__ = ["Fault", "StateEntries", "check_indices", "check_rest", "check_state", "decoded"]

T = TypeVar("T")

REMEMBERED = 64  # blocks whose indices are not derived again

_Signed = Proposal | Vote | Timeout
_PLACES: dict[bytes, type[BatchPlace | LeafPlace | ReceiptPlace]] = {
    b"io": BatchPlace,
    b"ip": LeafPlace,
    b"id": ReceiptPlace,
}


class Fault(Exception):  # noqa: N818 - what the auditor found
    def __init__(self, entry: bytes, what: str) -> None:
        super().__init__(f"entry {layout.name(entry)} {what}")


class StateEntries:
    """What the application writes."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(b"s/" + key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key[2:], value) for key, value in self._store.scan(b"s/" + prefix))


class _Nodes:
    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def get(self, path: bytes, /) -> bytes | None:
        return self._store.get(layout.state_node(path))


def decoded(decoder: msgspec.msgpack.Decoder[T], key: bytes, value: bytes) -> T:
    try:
        return decoder.decode(value)
    except DECODE_ERRORS as error:
        raise Fault(key, f"cannot be read: {error}") from None


def check_state(store: KeyValue, root: bytes) -> None:
    """Every node is what the one above it says, every entry has its leaf, and no leaf is without its entry."""
    nodes = _Nodes(store)
    leaves = 0
    try:
        if root != state_map.EMPTY_ROOT or nodes.get(b"") is not None:
            state_map.check_node(nodes, b"", root)
        for key, _ in store.scan(layout.NODE):
            contents = state_map.check_node(nodes, key[len(layout.NODE) :], root)
            leaves += contents.leaves
            for path, _ in contents.branches:
                state_map.check_node(nodes, path, root)
    except DamagedMap as damaged:
        raise Fault(layout.state_node(damaged.path), "is missing or is not the state map's node") from None
    except StrayNode as stray:
        raise Fault(layout.state_node(stray.path), "belongs to no state") from None
    for key, value in store.scan(layout.STATE):
        name = key[len(layout.STATE) :]
        if not state_map.verify(root, name, value, state_map.prove(nodes, name)):
            raise Fault(key, "is not what the state map says")
        leaves -= 1
    if leaves:
        raise Fault(layout.STATE, f"lacks {leaves} entries that the state map has")


def check_indices(store: KeyValue, application: Application) -> None:
    """Every index leads to a receipt that gives it; that none is missing was seen block by block."""
    derived = Derived(application, store, StateEntries(store))
    known: OrderedDict[int, frozenset[tuple[bytes, bytes | None]]] = OrderedDict()
    for key, value in store.scan(layout.INDEX):
        if key.startswith(b"s/" + TO_ERASE):
            _check_erasure(key, value)
            continue
        kind = _PLACES.get(key[2:4])
        if kind is None:
            raise Fault(key, "is of no known kind")
        try:
            height: int = decode_place(kind, value).height
            if height not in known:
                leaves = layout.decode_receipts(store.get(layout.receipts(height)) or b"")
                known[height] = frozenset(derived.of(height, leaves))
        except (*DECODE_ERRORS, ValueError):
            raise Fault(key, "leads nowhere") from None
        if (key[2:], value) not in known[height]:
            raise Fault(key, "does not lead to what it should")
        if len(known) > REMEMBERED:
            known.popitem(last=False)


def _check_erasure(key: bytes, value: bytes) -> None:
    name = key[2:]
    if name.startswith(LOGS_TO_ERASE):
        decoded(_logs, key, value)
    elif not name.startswith(BODIES_TO_ERASE) or len(value) != len(u64(0)):
        raise Fault(key, "cannot be read")


def check_rest(store: KeyValue, chain: bytes, verifier: Verifier) -> None:
    """Uncommitted blocks, batches that wait or that nobody names, what stayed of erased ones, evidence, marks."""
    for key, value in store.scan(layout.UNCOMMITTED):
        if layout.uncommitted(decoded(_blocks, key, value).block().id) != key:
            raise Fault(key, "is not the block that it is named after")
    for key, value in store.scan(layout.WAITING):
        decoded(_marks, key, value)
        if store.get(layout.batch(key[len(layout.WAITING) :])) is None:
            raise Fault(key, "marks a batch that is not here")
    for key, value in store.scan(layout.batch(b"")):
        name = key[len(layout.batch(b"")) :]
        if store.get(b"s/" + receipt_key(name)) is None:  # or it was looked at with its block
            check_body(key, value, name, chain)
    for key, value in store.scan(layout.erased(b"")):
        try:
            check_remains(value, key[len(layout.erased(b"")) :], chain)
        except RemainsError as error:
            raise Fault(key, f"is not what stayed of the batch: {error}") from None
    for key, value in store.scan(layout.EVIDENCE):
        _check_evidence(key, value, verifier)
    if (joins := store.get(layout.JOINS)) is not None:
        decoded(_joins, layout.JOINS, joins)


def check_body(key: bytes, data: bytes, name: bytes, chain: bytes) -> None:
    try:
        found, _ = open_batch(data, chain)
    except Refusal as refusal:
        raise Fault(key, f"is not a valid batch: {refusal}") from None
    if found != name:
        raise Fault(key, "holds another batch than it is named after")


def _check_evidence(key: bytes, value: bytes, verifier: Verifier) -> None:
    _, first, second = decoded(_evidence, key, value)
    try:
        verifier.message(first)
        verifier.message(second)
    except Refused as refused:
        raise Fault(key, f"proves nothing: {refused}") from None


_blocks = msgspec.msgpack.Decoder(StoredBlock)
_joins = msgspec.msgpack.Decoder(Joins)
_logs = msgspec.msgpack.Decoder(LogToErase)
_marks = msgspec.msgpack.Decoder(tuple[U16, U64, bytes])
_evidence = msgspec.msgpack.Decoder(tuple[Literal["proposals", "votes", "timeouts"], _Signed, _Signed])
