"""The leaves of a batch and the tree over them (P3): hashed for every message at every broker, so laid out for speed.

The tree's lowest nodes are groups of sixteen leaves, hashed as one piece: a fifteenth of the hashes of a tree with one
leaf per node, for proofs that are half a kilobyte longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from parley.crypto import merkle
from parley.crypto.encoding import enc, u32
from parley.crypto.hashing import DIGEST_SIZE, domain_prefix
from parley.model.names import U32

if TYPE_CHECKING:
    from parley.model.batches import Message

GROUP = 16  # leaves

_NONE, _HASH = u32(0), u32(DIGEST_SIZE)
# digest("message/header", salt, header), digest("message/payload", salt, payload) and digest("message/leaf", ...) up to
# their first variable byte. A copy of a hash that has begun costs half as much as a new one.
_HEADER = hashlib.sha256(domain_prefix("message/header") + u32(16))
_PAYLOAD = hashlib.sha256(domain_prefix("message/payload") + u32(16))
_LEAF = hashlib.sha256(domain_prefix("message/leaf") + _HASH)


class LeafProof(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """That a leaf stands at `index` of a batch: its group as one piece, and the group's place in the tree."""

    index: U32
    group: Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=GROUP * DIGEST_SIZE)]
    path: merkle.Proof


def leaves_of(messages: Iterable[Message]) -> list[bytes]:
    """For each message: leaf = H(Hc, access rule, Pc), Hc = H('h', salt, header), Pc = H('p', salt, payload)."""
    header_hash, payload_hash, leaf_hash = _HEADER.copy, _PAYLOAD.copy, _LEAF.copy
    leaves: list[bytes] = []
    add = leaves.append
    header, rule, size = (
        b"",
        "",
        0,
    )  # of the message before: neighbours are mostly alike in all but salt and payload
    framed_header, framed_rule, framed_size = _NONE, _NONE + _HASH, _NONE
    for message in messages:
        salt, payload = message.salt, message.payload
        if message.header != header:
            header = message.header
            framed_header = u32(len(header)) + header
        if message.rule != rule:
            rule = message.rule
            framed_rule = enc(rule.encode()) + _HASH
        if len(payload) != size:
            size = len(payload)
            framed_size = u32(size)
        hc = header_hash()
        hc.update(salt + framed_header)
        pc = payload_hash()
        pc.update(salt + framed_size + payload)
        leaf = leaf_hash()
        leaf.update(hc.digest() + framed_rule + pc.digest())
        add(leaf.digest())
    return leaves


def leaves_of_columns(
    salts: Sequence[bytes], headers: Sequence[bytes], rules: Sequence[str], payloads: Sequence[bytes]
) -> list[bytes]:
    """The same of messages whose parts stand in columns; making columns of messages first would cost publishers a sixth."""
    header_hash, payload_hash, leaf_hash = _HEADER.copy, _PAYLOAD.copy, _LEAF.copy
    leaves: list[bytes] = []
    add = leaves.append
    framed = {header: u32(len(header)) + header for header in set(headers)}
    ruled = {rule: enc(rule.encode()) + _HASH for rule in set(rules)}
    sized = {size: u32(size) for size in set(map(len, payloads))}
    columns = (
        salts,
        map(framed.__getitem__, headers),
        map(ruled.__getitem__, rules),
        map(sized.__getitem__, map(len, payloads)),
        payloads,
    )
    for salt, header, rule, size, payload in zip(*columns, strict=True):
        hc = header_hash()
        hc.update(salt + header)
        pc = payload_hash()
        pc.update(salt + size + payload)
        leaf = leaf_hash()
        leaf.update(hc.digest() + rule + pc.digest())
        add(leaf.digest())
    return leaves


def root(leaves: Sequence[bytes]) -> bytes:
    return merkle.root(_groups(leaves))


def prove(leaves: Sequence[bytes], index: int) -> LeafProof:
    if not 0 <= index < len(leaves):
        raise ValueError(f"there is no leaf {index} among {len(leaves)}")
    groups = _groups(leaves)
    return LeafProof(index, groups[index // GROUP], merkle.prove(groups, index // GROUP))


def verify(root: bytes, leaf: bytes, count: int, proof: LeafProof) -> bool:
    """Whether the leaf stands at the proof's index of a batch with `count` messages and this root."""
    if not 0 <= proof.index < count:
        return False
    place, within = divmod(proof.index, GROUP)
    size = min(GROUP, count - place * GROUP) * DIGEST_SIZE
    if (proof.path.index, proof.path.size, len(proof.group)) != (place, -(-count // GROUP), size):
        return False
    start = within * DIGEST_SIZE
    return proof.group[start : start + DIGEST_SIZE] == leaf and merkle.verify(root, proof.group, proof.path)


def _groups(leaves: Sequence[bytes]) -> list[bytes]:
    return [b"".join(leaves[start : start + GROUP]) for start in range(0, len(leaves), GROUP)]
