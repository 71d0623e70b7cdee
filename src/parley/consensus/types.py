"""The values that consensus signs, hashes and sends: votes, timeouts, certificates, and the block header of P2.

Structs travel as MessagePack arrays; what is hashed or signed is the length-prefixed `enc` of crypto-spec section 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from parley.crypto import merkle
from parley.crypto.encoding import enc, u16, u32, u64
from parley.crypto.hashing import digest
from parley.crypto.qc import Aggregate, bitmap_of

MAX_BATCHES = 1024
MAX_COMMITTEE = 256

U16 = Annotated[int, Meta(ge=0, lt=2**16)]
U32 = Annotated[int, Meta(ge=0, lt=2**32)]
U64 = Annotated[int, Meta(ge=0, lt=2**62)]  # short of 64 bits, so that sums of two stay in the encoding
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(max_length=96)]


class QC(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Quorum certificate: q members voted for `block` in `view`."""

    epoch: U64
    view: U64
    block: Hash
    votes: Aggregate

    def encode(self) -> bytes:
        return enc(u64(self.epoch), u64(self.view), self.block, self.votes.bitmap, self.votes.signature)


class TC(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Timeout certificate: q members gave up on `view`; `qc_views` are their highest QC views, in bitmap order."""

    epoch: U64
    view: U64
    qc_views: Annotated[tuple[U64, ...], Meta(max_length=MAX_COMMITTEE)]
    timeouts: Aggregate

    @property
    def highest_qc_view(self) -> int:
        return max(self.qc_views)

    def encode(self) -> bytes:
        views = b"".join(map(u64, self.qc_views))
        return enc(u64(self.epoch), u64(self.view), views, self.timeouts.bitmap, self.timeouts.signature)


class Governance(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The governance state that a block reads (P9, P26)."""

    height: U64
    id: Hash


class Header(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """What a vote is for (P2). The block id hashes all of it, certificates and their signer bitmaps included."""

    version: U16  # of the application
    chain: Hash
    shard: U32
    epoch: U64
    height: U64
    view: U64
    parent: Hash
    proposer: U16
    time: U64
    governance: Governance
    batches_root: Hash
    executed_height: U64
    state_root: Hash
    history_root: Hash
    justify: QC
    tc: TC | None

    def id(self) -> bytes:
        return digest(
            "block/id",
            u16(self.version),
            self.chain,
            u32(self.shard),
            u64(self.epoch),
            u64(self.height),
            u64(self.view),
            self.parent,
            u16(self.proposer),
            u64(self.time),
            u64(self.governance.height),
            self.governance.id,
            self.batches_root,
            u64(self.executed_height),
            self.state_root,
            self.history_root,
            self.justify.encode(),
            self.tc.encode() if self.tc else b"",
        )


class Vote(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """One member's signature on (view, block)."""

    epoch: U64
    view: U64
    block: Hash
    signer: U16
    signature: Signature


class Timeout(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """One member gives up on a view. It carries what lets the receiver follow (T7, T11) and the vote of the view (T15)."""

    epoch: U64
    view: U64
    high_qc: QC
    tc: TC | None
    vote: Vote | None
    signer: U16
    signature: Signature


class Proposal(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """A block as its proposer sends it: the header, the digests that the header's root covers, the signature."""

    header: Header
    batches: Annotated[tuple[Hash, ...], Meta(max_length=MAX_BATCHES)]
    signature: Signature


class Certificates(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """Certificates on their own: a leader with nothing to propose shows the QC that it formed (P2)."""

    qc: QC
    tc: TC | None


class Roots(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The results of executing the chain up to some height."""

    state: Hash
    history: Hash


@dataclass(frozen=True)
class Block:
    """A header with its batch digests; `id` is computed once."""

    header: Header
    batches: tuple[bytes, ...]

    @cached_property
    def id(self) -> bytes:
        return self.header.id()

    @property
    def height(self) -> int:
        return self.header.height

    @property
    def view(self) -> int:
        return self.header.view

    @property
    def parent(self) -> bytes:
        return self.header.parent


@dataclass(frozen=True)
class Instance:
    """One consensus instance; every signature is bound to it, so none can be replayed into another (T4, T22)."""

    chain: bytes
    shard: int
    epoch: int
    size: int
    version: int  # of the application, by whose rules results are computed (P24)

    def vote_message(self, view: int, block: bytes) -> bytes:
        return self._message(b"PSB1/sig/vote", enc(u64(view), block))

    def timeout_message(self, view: int, qc_view: int) -> bytes:
        return self._message(b"PSB1/sig/timeout", enc(u64(view), u64(qc_view)))

    def proposal_message(self, block: bytes) -> bytes:
        return self._message(b"PSB1/sig/proposal", block)

    def _message(self, kind: bytes, body: bytes) -> bytes:
        return _context(kind, self) + enc(body)


@lru_cache(maxsize=64)
def _context(kind: bytes, instance: Instance) -> bytes:
    """What every message of a kind starts with; `enc` of a list is that of its parts, one after another."""
    return enc(kind, instance.chain, u32(instance.shard), u64(instance.epoch))


def genesis_block(instance: Instance, state_root: bytes, time: int) -> Block:
    """Block 0: nobody proposed it, everybody derives it from the genesis file (P26)."""
    nothing = bytes(32)
    header = Header(
        version=instance.version,
        chain=instance.chain,
        shard=instance.shard,
        epoch=instance.epoch,
        height=0,
        view=0,
        parent=nothing,
        proposer=0,
        time=time,
        governance=Governance(0, instance.chain),
        batches_root=merkle.root(()),
        executed_height=0,
        state_root=state_root,
        history_root=merkle.root(()),
        justify=_empty_qc(instance, nothing),
        tc=None,
    )
    return Block(header, ())


def genesis_qc(instance: Instance, genesis: Block) -> QC:
    """The empty certificate, valid for block 0 only."""
    return _empty_qc(instance, genesis.id)


def _empty_qc(instance: Instance, block: bytes) -> QC:
    return QC(instance.epoch, 0, block, Aggregate(bitmap_of((), instance.size), b""))
