"""Proofs that hold against any broker: from an item over a path to a header that a quorum certified (P2, P7).

One certified header covers every block, receipt and state entry up to its executed height. `Trust` is what a reader
has: the genesis file. `Certified` is what it may believe after checking one header and its QC.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from parley.consensus.committee import Committee, committees_of
from parley.consensus.errors import Refused
from parley.consensus.types import QC, Header
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.encoding import enc, u32, u64
from parley.ledger import state_map
from parley.model.genesis import Genesis
from parley.model.names import Hash
from parley.model.receipts import Leaf

MAX_LEAVES = 65_536
_REMEMBERED = 64  # certified headers whose signatures are not checked again


class ProofError(ValueError):
    """Something that a broker showed does not prove what it claims: the broker lies or is broken."""


class Anchor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A header and the votes of a quorum for it."""

    header: Header
    qc: QC


class BlockProof(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Some leaves of the receipts of one executed block, and the block's place in the history."""

    header: Header
    receipts_root: Hash
    history: merkle.Proof
    leaves: Annotated[tuple[bytes, ...], Meta(min_length=1, max_length=MAX_LEAVES)]
    receipts: merkle.MultiProof


class StateEntry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry of the replicated state; None: there is none under this key."""

    key: Annotated[bytes, Meta(max_length=4096)]
    value: bytes | None
    proof: state_map.StateProof


def history_leaf(height: int, block: bytes, receipts_root: bytes, receipts: int) -> bytes:
    """What the history certifies of a block. Without the number of receipts a proof's index and size would be malleable."""
    return enc(u64(height), block, receipts_root, u32(receipts))


def history_leaf_of(height: int, block: bytes, leaves: Sequence[bytes]) -> bytes:
    return history_leaf(height, block, merkle.root(leaves), len(leaves))


def verifier_of(committee: Committee, start_time: int) -> Verifier:
    """Checks the signatures of a committee whose first block the genesis file makes."""
    first = committee.first_block(state_map.EMPTY_ROOT, start_time)
    return Verifier(committee.instance, committee.scheme, first)


class Trust:
    """Checks headers against the committees of a genesis file; `decode_leaf` is that of the network's application.

    `shard`: only its headers are believed. None: those of every shard, each by the committee of the shard that it names.
    """

    def __init__(
        self, genesis: Genesis, decode_leaf: Callable[[bytes], Leaf], shard: int | None = None
    ) -> None:
        self.genesis = genesis
        self.decode_leaf = decode_leaf
        known = committees_of(genesis)
        believed = known if shard is None else known[shard : shard + 1]
        self._verifiers = {
            (one.shard, one.epoch): (one, verifier_of(one, genesis.start_time)) for one in believed
        }
        self._passed: OrderedDict[Anchor, Certified] = OrderedDict()

    def committee_of(self, header: Header) -> Committee:
        """The members that may vote for the header. Raises `ProofError` if none are known for its shard and epoch."""
        return self._responsible(header)[0]

    @property
    def committee(self) -> Committee:
        """The members of the one shard that is believed."""
        return self._only[0]

    @property
    def verifier(self) -> Verifier:
        """Checks what members of that shard sign, such as proofs of misbehaviour."""
        return self._only[1]

    @property
    def _only(self) -> tuple[Committee, Verifier]:
        ((found),) = self._verifiers.values()
        return found

    def certified(self, anchor: Anchor) -> Certified:
        """Raises `ProofError` unless a quorum of the committee voted for the header."""
        found = self._passed.get(anchor)
        if found is None:
            found = self._passed[anchor] = self._check(anchor)
            if len(self._passed) > _REMEMBERED:
                self._passed.popitem(last=False)
        return found

    def voted(self, anchor: Anchor) -> Certified:
        """What `certified` returns. Raises `ProofError` also if no broker voted, as for block 0."""
        certified = self.certified(anchor)
        if not any(anchor.qc.votes.bitmap):
            raise ProofError("the certificate is empty: no broker voted for the header")
        return certified

    def _responsible(self, header: Header) -> tuple[Committee, Verifier]:
        if header.chain != self.genesis.chain:
            raise ProofError("the header belongs to another network")
        found = self._verifiers.get((header.shard, header.epoch))
        if found is None:
            known = ", ".join(f"shard {shard} in epoch {epoch}" for shard, epoch in self._verifiers)
            raise ProofError(
                f"the header belongs to shard {header.shard} in epoch {header.epoch}; what is believed is {known}"
            )
        return found

    def _check(self, anchor: Anchor) -> Certified:
        header, qc = anchor.header, anchor.qc
        committee, verifier = self._responsible(header)
        if header.version != committee.instance.version:
            raise ProofError(
                f"the header was made by version {header.version} of the application; the genesis file names version "
                f"{committee.instance.version}"
            )
        if (qc.block, qc.view) != (header.id(), header.view):
            raise ProofError("the certificate is not of the header")
        try:
            verifier.qc(qc)
        except Refused as refused:
            raise ProofError(f"the header is not certified by a quorum: {refused}") from None
        return Certified(anchor, self.decode_leaf)


@dataclass(frozen=True, slots=True)
class Certified:
    """A header that a quorum voted for. Made by `Trust` only."""

    anchor: Anchor
    decode_leaf: Callable[[bytes], Leaf] = field(compare=False, repr=False)

    @property
    def height(self) -> int:
        """The height up to which results are certified."""
        return self.anchor.header.executed_height

    @property
    def time(self) -> int:
        return self.anchor.header.time

    def leaves(self, proof: BlockProof) -> tuple[Leaf, ...]:
        """The proven receipts of a block. Raises `ProofError` unless all of it is in the certified history."""
        height = proof.header.height
        if not 0 < proof.receipts.size < 2**32:
            raise ProofError(f"block {height} cannot have {proof.receipts.size} receipts")
        leaf = history_leaf(height, proof.header.id(), proof.receipts_root, proof.receipts.size)
        # The tree's root does not bind its size or the leaf's place: the certified header does.
        if (proof.history.index, proof.history.size) != (height - 1, self.height):
            raise ProofError(f"the history proof of block {height} is for another place or another size")
        if not merkle.verify(self.anchor.header.history_root, leaf, proof.history):
            raise ProofError(f"block {height} is not in the certified history")
        if not merkle.verify_many(proof.receipts_root, proof.leaves, proof.receipts):
            raise ProofError(f"the receipts shown are not those of block {height}")
        try:
            return tuple(self.decode_leaf(leaf) for leaf in proof.leaves)
        except ValueError as error:
            raise ProofError(f"a receipt of block {height} cannot be read: {error}") from None

    def value(self, entry: StateEntry, key: bytes) -> bytes | None:
        """The certified value under `key`, None if there is certainly none."""
        if entry.key != key:
            raise ProofError("the broker proved another entry than the one asked for")
        if not state_map.verify(self.anchor.header.state_root, key, entry.value, entry.proof):
            raise ProofError(f"entry {key!r:.40} is not in the certified state")
        return entry.value
