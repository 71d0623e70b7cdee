"""The ledger itself, for auditors: whole blocks, each checked against a certified header whatever the client's level.

What is not shown proves nothing: a body that one broker does not show is asked of f+1 of them, one of which is honest,
before it counts as erased.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from parley.client.beliefs import VerifiedView, require_recent
from parley.client.errors import Malformed, Refused
from parley.client.quorum import QuorumClient, Request
from parley.consensus.types import MAX_BATCHES, Header
from parley.crypto import merkle
from parley.crypto.merkle import MountainRange
from parley.ledger.erasure import Remains, RemainsError, check_remains
from parley.ledger.history import before_row
from parley.ledger.proofs import Certified, ProofError, history_leaf_of
from parley.model.batches import Batch, open_batch
from parley.model.receipts import Leaf
from parley.modules.registry.tables import CLIENTS
from parley.net.messages import (
    MAX_ANSWER,
    Blocks,
    Bodies,
    Body,
    Prove,
    Proven,
    RawBlock,
    ReadBlocks,
    ReadBodies,
    encode,
)

__all__ = ["PAGE_BYTES", "CertifiedHead", "LedgerReader", "VerifiedBlock"]

PAGE_BYTES = 4 * 1024 * 1024
MAX_HEIGHT = 2**62 - 1


class CertifiedHead(NamedTuple):
    """Results are certified up to `height`; `block` is the id of the certified header that says so, `time` its time."""

    height: int
    block: bytes
    time: int


@dataclass(frozen=True)
class VerifiedBlock:
    """A block of the certified history. `bodies`, `opened` and `remains` are in the order of `batches`.

    A body is None if it was not asked for or is erased; then `remains` has what stays of it, if a broker still has that.
    `decode_leaf` is that of the network's application.
    """

    header: Header
    id: bytes
    batches: tuple[bytes, ...]
    raw_leaves: tuple[bytes, ...] = field(repr=False)
    bodies: tuple[bytes | None, ...] = field(repr=False)
    opened: tuple[Batch | None, ...] = field(
        repr=False
    )  # the bodies, decoded and with their signatures checked
    remains: tuple[Remains | None, ...] = field(repr=False)
    decode_leaf: Callable[[bytes], Leaf] = field(repr=False, compare=False)
    before: MountainRange | None = field(
        default=None, repr=False
    )  # the history up to it, of an answer's first block

    @property
    def height(self) -> int:
        return self.header.height

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """What applying it gave: receipts, then matches, then ends of orders."""
        return tuple(map(self.decode_leaf, self.raw_leaves))


_Checked = tuple[bytes | None, Batch | None, Remains | None]  # of one batch; only one of body and remains


@dataclass(frozen=True, repr=False)
class LedgerReader:
    """Reads blocks as brokers keep them; they show these to auditors only (P22)."""

    _quorum: QuorumClient

    async def certified_head(self) -> CertifiedHead:
        quorum, floor = self._quorum, self._quorum.height

        def read(_: VerifiedView, answer: Proven) -> CertifiedHead:
            certified = quorum.certified(answer.anchor)
            require_recent(certified, floor)
            quorum.require_fresh(certified)
            return CertifiedHead(certified.height, answer.anchor.header.id(), certified.time)

        question = Prove(0, (CLIENTS.key(quorum.reader.key),))
        return await quorum.ask(Request("asking how far the ledger is", question, Proven, read), needed=1)

    @cached_property
    def _chain(self) -> bytes:
        return self._quorum.reader.trust.genesis.chain  # which is hashed anew at each call

    async def blocks(self, height: int, *, bodies: bool, max_bytes: int) -> list[VerifiedBlock]:
        if not 1 <= height <= MAX_HEIGHT:
            raise Malformed("height", height=height)
        if not 1 <= max_bytes <= MAX_ANSWER:
            raise Malformed("max_bytes", limit=MAX_ANSWER, max_bytes=max_bytes)
        quorum, floor = self._quorum, self._quorum.height

        def read(_: VerifiedView, answer: Blocks) -> list[VerifiedBlock]:
            certified = quorum.certified(answer.anchor)
            found = self._check(certified, answer, height, bodies=bodies)
            if not found:
                if height <= floor:  # it knew the block, so a head below it is an old one
                    require_recent(certified, floor)
                quorum.require_fresh(certified)
            return found

        question = ReadBlocks(0, height, max_bytes, bodies)
        found = await quorum.ask(Request(f"reading block {height}", question, Blocks, read), needed=1)
        return await self._completed(found) if bodies else found

    def _check(
        self, certified: Certified, answer: Blocks, height: int, *, bodies: bool
    ) -> list[VerifiedBlock]:
        if not answer.blocks:
            if height <= certified.height:
                raise ProofError(f"it does not show block {height}, which its own header covers")
            return []
        heights = range(height, height + len(answer.blocks))
        for expected, raw in zip(heights, answer.blocks, strict=True):
            if raw.block.header.height != expected:
                raise ProofError(f"it shows block {raw.block.header.height} in the place of block {expected}")
        ids = [raw.block.header.id() for raw in answer.blocks]
        places = [
            history_leaf_of(at, name, raw.leaves)
            for at, name, raw in zip(heights, ids, answer.blocks, strict=True)
        ]
        proof, header = answer.history, certified.anchor.header
        # The tree's root does not bind its size or the leaves' places: the certified header does.
        wanted = tuple(at - 1 for at in heights)
        if proof is None or (proof.size, proof.indices) != (certified.height, wanted):
            raise ProofError(f"the history proof of block {height} is for other places or another size")
        if not merkle.verify_many(header.history_root, places, proof):
            raise ProofError(
                f"blocks {heights[0]} to {heights[-1]} and their receipts are not the certified ones"
            )
        found = [self._block(name, raw, bodies=bodies) for name, raw in zip(ids, answer.blocks, strict=True)]
        return [replace(found[0], before=before_row(proof)), *found[1:]]

    def _block(self, name: bytes, raw: RawBlock, *, bodies: bool) -> VerifiedBlock:
        header, batches = raw.block.header, raw.block.batches
        if merkle.root(batches) != header.batches_root:
            raise ProofError(f"the batches of block {header.height} are not those that its header covers")
        if len(raw.bodies) != len(batches):
            raise ProofError(f"block {header.height} has {len(batches)} batches and {len(raw.bodies)} bodies")
        if not bodies and any(body is not None for body in raw.bodies):
            raise ProofError(f"it shows bodies of block {header.height} that were not asked for")
        decode_leaf = self._quorum.reader.trust.decode_leaf
        return _with_bodies(
            VerifiedBlock(header, name, batches, raw.leaves, (), (), (), decode_leaf),
            [self._body(body, digest, header) for body, digest in zip(raw.bodies, batches, strict=True)],
        )

    def _body(self, body: Body, digest: bytes, header: Header) -> _Checked:
        """The digest does not cover the signature, so that both are checked."""
        chain = self._chain
        match body:
            case None:
                return None, None, None
            case Remains():
                try:
                    return None, None, check_remains(encode(body), digest, chain)
                except RemainsError as error:
                    raise ProofError(f"what it shows of erased batch {digest.hex()[:16]}: {error}") from None
            case _:
                try:
                    found, batch = open_batch(body, chain, header.shard)
                except Refused as refused:
                    raise ProofError(
                        f"the body of batch {digest.hex()[:16]} is no batch: {refused}"
                    ) from None
                if found != digest:
                    raise ProofError(f"it shows another body than that of batch {digest.hex()[:16]}")
                return body, batch, None

    async def _completed(self, blocks: list[VerifiedBlock]) -> list[VerifiedBlock]:
        """The blocks with those bodies that others have."""
        places = (
            (name, body) for block in blocks for name, body in zip(block.batches, block.bodies, strict=True)
        )
        missing = list(dict.fromkeys(name for name, body in places if body is None))
        found: dict[bytes, _Checked] = {}
        while left := missing[len(found) : len(found) + MAX_BATCHES]:
            found.update(zip(left, await self._bodies(tuple(left)), strict=False))
        return [_completed(block, found) for block in blocks] if found else blocks

    async def _bodies(self, digests: tuple[bytes, ...]) -> list[_Checked]:
        """As many as enough brokers have said something of; at least one."""
        quorum = self._quorum

        def read(_: VerifiedView, answer: Bodies) -> list[_Checked]:
            quorum.certified(answer.anchor)
            if len(answer.bodies) > len(digests):
                raise ProofError("it shows more bodies than were asked for")
            header, shown = answer.anchor.header, zip(answer.bodies, digests, strict=False)
            return [self._body(body, name, header) for body, name in shown]

        request = Request("reading bodies of batches", ReadBodies(0, digests), Bodies, read, _united)
        return await quorum.ask(request, needed=min(quorum.faults + 1, len(quorum.candidates())))


def _with_bodies(block: VerifiedBlock, checked: Sequence[_Checked]) -> VerifiedBlock:
    return replace(
        block,
        bodies=tuple(body for body, _, _ in checked),
        opened=tuple(batch for _, batch, _ in checked),
        remains=tuple(remains for _, _, remains in checked),
    )


def _completed(block: VerifiedBlock, found: Mapping[bytes, _Checked]) -> VerifiedBlock:
    had = zip(block.batches, block.bodies, block.opened, block.remains, strict=True)
    return _with_bodies(
        block, [_better((body, batch, rest), found.get(name)) for name, body, batch, rest in had]
    )


def _better(one: _Checked, other: _Checked | None) -> _Checked:
    """A body says more than what stays of it, and that says more than nothing."""
    if other is None or one[0] is not None:
        return one
    return other if other[0] is not None or one[2] is None else one


def _united(answers: Sequence[list[_Checked]], needed: int) -> list[_Checked] | None:
    """All bodies that anybody shows; that there is none, only if enough say so."""
    whole = next((answer for answer in answers if all(body is not None for body, _, _ in answer)), None)
    if whole is not None:
        return whole
    if len(answers) < needed:
        return None
    return [reduce(_better, said) for said in zip(*answers, strict=False)]
