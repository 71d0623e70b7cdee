"""What the offline verifier looks at besides the blocks: the state, the indices, and what belongs to no block yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import Literal, NoReturn, TypeVar

import msgspec

from parley.consensus.errors import Refused
from parley.consensus.types import U16, U64, Instance, Proposal, Timeout, Vote
from parley.consensus.verify import Verifier
from parley.ledger import layout, state_map
from parley.ledger.application import BodyKeeper
from parley.ledger.derived import Derived
from parley.ledger.erasure import RemainsError, check_remains
from parley.model.batches import Batch, open_batch
from parley.model.codec import DECODE_ERRORS
from parley.model.names import Position
from parley.model.refusals import Refused as InadmissibleError
from parley.store.interface import KeyValue

T = TypeVar("T")

GROUP = 65_536  # entries of indices that are sorted by block at a time

_Signed = Proposal | Vote | Timeout


class Fault(Exception):  # noqa: N818 - what the auditor found
    def __init__(self, entry: bytes, what: str) -> None:
        super().__init__(f"entry {layout.name(entry)} {what}")
        self.entry = entry
        self.what = what


Found = Callable[[Fault], None]


def stop(fault: Fault) -> NoReturn:
    """For whoever wants to know only the first."""
    raise fault


def decoded(decode: Callable[[bytes], T], key: bytes, value: bytes) -> T:
    try:
        return decode(value)
    except DECODE_ERRORS as error:
        raise Fault(key, f"cannot be read: {error}") from None


def check_state(store: KeyValue, root: bytes, found: Found = stop) -> None:
    """Every node is what the one above it says, every entry has its leaf, and no leaf is without its entry."""
    nodes = layout.StateNodes(store)
    whole = True

    def heard(fault: Fault) -> None:
        nonlocal whole
        whole = False
        found(fault)

    leaves = _leaves(store, nodes, root, heard)
    for key, value in store.scan(layout.STATE):
        name = key[len(layout.STATE) :]
        if whole and not state_map.verify(root, name, value, state_map.prove(nodes, name)):
            found(Fault(key, "is not what the state map says"))
        leaves -= 1
    if leaves and whole:
        found(Fault(layout.STATE, f"lacks {leaves} entries that the state map has"))


def _leaves(store: KeyValue, nodes: layout.StateNodes, root: bytes, found: Found) -> int:
    """How many entries the nodes of the state map have, which are all looked at."""
    leaves = 0
    if root != state_map.EMPTY_ROOT or nodes.get(b"") is not None:
        _contents(nodes, b"", root, found)
    for key, _ in store.scan(layout.NODE):
        contents = _contents(nodes, key[len(layout.NODE) :], root, found)
        if contents is None:
            continue
        leaves += contents.leaves
        for path, _ in contents.branches:
            _contents(nodes, path, root, found)
    return leaves


def _contents(nodes: layout.StateNodes, path: bytes, root: bytes, found: Found) -> state_map.Contents | None:
    try:
        return state_map.check_node(nodes, path, root)
    except state_map.DamagedMap as damaged:
        found(Fault(layout.state_node(damaged.path), "is missing or is not the state map's node"))
    except state_map.StrayNode as stray:
        found(Fault(layout.state_node(stray.path), "belongs to no state"))
    return None


def check_indices(
    store: KeyValue, keeper: BodyKeeper, found: Found = stop, under: bytes = layout.INDEX
) -> None:
    """Every index leads to a receipt that gives it; that none is missing was seen block by block."""
    derived = Derived(keeper, store, layout.StateView(store))
    entries = store.scan(under)
    while some := list(islice(entries, GROUP)):
        for fault in _wrong_places(some, keeper, derived, store):
            found(fault)


def _wrong_places(
    entries: Iterable[tuple[bytes, bytes]], keeper: BodyKeeper, derived: Derived, store: KeyValue
) -> Iterator[Fault]:
    """Yield a fault for each entry that does not lead to the receipt that gives it.

    Sorted by block, so that the receipts of each block are read once.
    """
    places: list[tuple[Position, bytes, bytes]] = []
    for key, value in entries:
        try:
            place = keeper.place_of(key.removeprefix(layout.APPLICATION), value)
        except (*DECODE_ERRORS, ValueError) as error:
            yield Fault(key, str(error))
        else:
            if place is not None:
                places.append((place, key, value))
    for height, of_block in groupby(sorted(places), lambda one: one[0][0]):
        leaves = _receipts(store, height)
        for place, key, value in of_block:
            if place[1] >= len(leaves):
                yield Fault(key, "leads nowhere")
            elif not derived.gives(place, leaves[place[1]], (key.removeprefix(layout.APPLICATION), value)):
                yield Fault(key, "does not lead to what it should")


def _receipts(store: KeyValue, height: int) -> tuple[bytes, ...]:
    """The receipts of a block; empty if they are missing or damaged."""
    try:
        return layout.decode_receipts(store.get(layout.receipts(height)) or b"")
    except DECODE_ERRORS:
        return ()


def check_rest(
    store: KeyValue, instance: Instance, verifier: Verifier, keeper: BodyKeeper, found: Found = stop
) -> None:
    """Uncommitted blocks, batches that wait or that nobody names, what stayed of erased ones, evidence, marks."""
    for key, value, check in _rest(store, instance, verifier, keeper):
        try:
            check(key, value)
        except Fault as fault:
            found(fault)


def _rest(
    store: KeyValue, instance: Instance, verifier: Verifier, keeper: BodyKeeper
) -> Iterator[tuple[bytes, bytes, Callable[[bytes, bytes], object]]]:
    state = layout.StateView(store)

    def waiting(key: bytes, value: bytes) -> None:
        decoded(_decode_mark, key, value)
        if store.get(layout.batch(key[len(layout.WAITING) :])) is None:
            raise Fault(key, "marks a batch that is not here")

    def batch(key: bytes, value: bytes) -> None:
        digest = key[len(layout.batch(b"")) :]
        if keeper.receipt_height(digest, state) is None:  # or it was looked at with its block
            check_body(key, value, digest, instance)

    def remains(key: bytes, value: bytes) -> None:
        try:
            check_remains(value, key[len(layout.erased(b"")) :], instance.chain)
        except RemainsError as error:
            raise Fault(key, f"is not what stayed of the batch: {error}") from None

    def evidence(key: bytes, value: bytes) -> None:
        _, first, second = decoded(_decode_evidence, key, value)
        try:
            verifier.message(first)
            verifier.message(second)
        except Refused as refused:
            raise Fault(key, f"proves nothing: {refused}") from None

    checks: tuple[tuple[bytes, Callable[[bytes, bytes], object]], ...] = (
        (layout.UNCOMMITTED, _check_uncommitted),
        (layout.WAITING, waiting),
        (layout.batch(b""), batch),
        (layout.erased(b""), remains),
        (layout.EVIDENCE, evidence),
        (layout.JOINS, partial(decoded, layout.decode_joins)),
    )
    return ((key, value, check) for prefix, check in checks for key, value in store.scan(prefix))


def _check_uncommitted(key: bytes, value: bytes) -> None:
    if layout.uncommitted(decoded(layout.decode_block, key, value).block().id) != key:
        raise Fault(key, "is not the block that it is named after")


def check_body(key: bytes, data: bytes, name: bytes, instance: Instance) -> Batch:
    try:
        found, batch = open_batch(data, instance.chain, instance.shard)
    except InadmissibleError as refused:
        raise Fault(key, f"is not a valid batch: {refused}") from None
    if found != name:
        raise Fault(key, "holds another batch than it is named after")
    return batch


_decode_mark = msgspec.msgpack.Decoder(tuple[U16, U64, bytes]).decode
_decode_evidence = msgspec.msgpack.Decoder(
    tuple[Literal["proposals", "votes", "timeouts"], _Signed, _Signed]
).decode
