"""Builders of blocks, certificates and messages of a test committee: valid by default, every field can be overridden."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace

from parley.consensus.committee import quorum
from parley.consensus.types import (
    QC,
    TC,
    Block,
    Governance,
    Header,
    Instance,
    Proposal,
    Roots,
    Timeout,
    Vote,
    genesis_block,
    genesis_qc,
)
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.encoding import u64
from parley.crypto.hashing import digest
from parley.crypto.qc import Aggregate, bitmap_of
from parley.crypto.simulated import SimulatedAuthority

CHAIN = digest("tests/chain")
GENESIS_STATE = digest("tests/state", u64(0))


def batch(number: int) -> bytes:
    """The digest of some batch."""
    return digest("tests/batch", u64(number))


def roots_at(height: int) -> Roots:
    """What every correct replica computes at this height."""
    if height == 0:
        return Roots(GENESIS_STATE, merkle.root(()))
    return Roots(digest("tests/state", u64(height)), digest("tests/history", u64(height)))


def finalised(certified: Sequence[Block], depth: int) -> int:
    """The commit rule, slow and obvious: of all runs of `depth` blocks with consecutive views, the newest one's head."""
    heads = [0]
    for start in range(len(certified) - depth + 1):
        run = certified[start : start + depth]
        if all(child.view == parent.view + 1 for parent, child in pairwise(run)):
            heads.append(run[0].height)
    return max(heads)


class Committee:
    """All members' keys and every block they made; `depth` decides the executed_height that blocks name (P2)."""

    def __init__(self, size: int = 4, *, epoch: int = 0, depth: int = 2, version: int = 1) -> None:
        self.size = size
        self.depth = depth
        self.quorum = quorum(size)
        self.instance = Instance(CHAIN, 0, epoch, size, version)
        self.authority = SimulatedAuthority(b"tests/consensus", size)
        self.scheme = self.authority.scheme()
        self.genesis = genesis_block(self.instance, GENESIS_STATE, 0)
        self.genesis_qc = genesis_qc(self.instance, self.genesis)
        self._blocks = {self.genesis.id: self.genesis}

    def verifier(self) -> Verifier:
        return Verifier(self.instance, self.scheme, self.genesis)

    def lineage(self, block: Block) -> list[Block]:
        """From genesis to `block`."""
        line = [block]
        while line[-1].id != self.genesis.id:
            line.append(self._blocks[line[-1].parent])
        return line[::-1]

    def executed_height(self, parent: Block) -> int:
        """What the certificates in the parent header and its ancestors make final: the parent itself has none yet."""
        return finalised(self.lineage(parent)[:-1], self.depth)

    def block(
        self,
        parent: Block | None = None,
        view: int | None = None,
        batches: tuple[bytes, ...] = (),
        **fields: object,
    ) -> Block:
        parent = self.genesis if parent is None else parent
        view = parent.view + 1 if view is None else view
        executed = self.executed_height(parent)
        roots = roots_at(executed)
        header = Header(
            version=self.instance.version,
            chain=self.instance.chain,
            shard=self.instance.shard,
            epoch=self.instance.epoch,
            height=parent.height + 1,
            view=view,
            parent=parent.id,
            proposer=view % self.size,
            time=parent.header.time + 1,
            governance=Governance(0, self.instance.chain),
            batches_root=merkle.root(batches),
            executed_height=executed,
            state_root=roots.state,
            history_root=roots.history,
            justify=self.qc(parent),
            tc=None if view <= parent.view + 1 else self.tc(view - 1, parent.view),
        )
        made = Block(replace(header, **fields), batches)
        self._blocks[made.id] = made
        return made

    def chain(self, *views: int, parent: Block | None = None) -> list[Block]:
        """Blocks of these views, each on the one before."""
        made: list[Block] = []
        for view in views:
            made.append(self.block(made[-1] if made else parent, view))
        return made

    def qc(self, block: Block, signers: Iterable[int] | None = None, *, view: int | None = None) -> QC:
        if block.id == self.genesis.id and signers is None and view is None:
            return self.genesis_qc
        view = block.view if view is None else view
        message = self.instance.vote_message(view, block.id)
        signed = {signer: self._sign(signer, message) for signer in self._signers(signers)}
        return QC(self.instance.epoch, view, block.id, self.scheme.aggregate(signed))

    def tc(self, view: int, qc_views: int | Sequence[int] = 0, signers: Iterable[int] | None = None) -> TC:
        members = sorted(self._signers(signers))
        views = (qc_views,) * len(members) if isinstance(qc_views, int) else tuple(qc_views)
        signed = {
            signer: self._sign(signer, self.instance.timeout_message(view, qc_view))
            for signer, qc_view in zip(members, views, strict=True)
        }
        return TC(self.instance.epoch, view, views, self.scheme.aggregate(signed))

    def vote(self, block: Block, signer: int, *, view: int | None = None) -> Vote:
        view = block.view if view is None else view
        signature = self._sign(signer, self.instance.vote_message(view, block.id))
        return Vote(self.instance.epoch, view, block.id, signer, signature)

    def timeout(
        self,
        view: int,
        signer: int,
        high_qc: QC | None = None,
        tc: TC | None = None,
        vote: Vote | None = None,
    ) -> Timeout:
        """With the certificate that entitles the view, unless one is given."""
        high_qc = self.genesis_qc if high_qc is None else high_qc
        if tc is None and high_qc.view + 1 < view:
            tc = self.tc(view - 1, high_qc.view)
        signature = self._sign(signer, self.instance.timeout_message(view, high_qc.view))
        return Timeout(self.instance.epoch, view, high_qc, tc, vote, signer, signature)

    def proposal(self, block: Block, signer: int | None = None) -> Proposal:
        signer = block.header.proposer if signer is None else signer
        signature = self._sign(signer, self.instance.proposal_message(block.id))
        return Proposal(block.header, block.batches, signature)

    def _signers(self, signers: Iterable[int] | None) -> Iterable[int]:
        return range(self.quorum) if signers is None else signers

    def _sign(self, signer: int, message: bytes) -> bytes:
        return self.authority.signer(signer).sign(message)


class Tree:
    """Blocks by the thousand, for leader schemes: anybody proposes, anybody votes, and nothing is signed.

    They commit two deep, so a `Forest` takes them; history roots follow from the blocks that are executed (P2).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.quorum = quorum(size)
        self.instance = Instance(CHAIN, 0, 0, size, 1)
        self.genesis = genesis_block(self.instance, GENESIS_STATE, 0)
        self._blocks = {self.genesis.id: self.genesis}
        self._finalises = {self.genesis.id: 0}

    def block(
        self,
        parent: Block | None = None,
        view: int | None = None,
        *,
        proposer: int | None = None,
        signers: Iterable[int] | None = None,
        time: int | None = None,
    ) -> Block:
        """`signers` voted for the parent: a quorum unless others are named; `time` tells twins apart."""
        parent = self.genesis if parent is None else parent
        view = parent.view + 1 if view is None else view
        voted = () if parent.height == 0 else range(self.quorum) if signers is None else signers
        executed = self._executed(parent)
        header = replace(
            self.genesis.header,
            height=parent.height + 1,
            view=view,
            parent=parent.id,
            proposer=view % self.size if proposer is None else proposer,
            time=parent.header.time + 1 if time is None else time,
            executed_height=executed.height,
            history_root=digest("tests/history", executed.id),
            justify=QC(0, parent.view, parent.id, Aggregate(bitmap_of(voted, self.size), b"")),
        )
        made = Block(header, ())
        self._blocks[made.id] = made
        self._finalises[made.id] = parent.height if parent.view + 1 == view else self._finalises[parent.id]
        return made

    def chain(self, length: int, parent: Block | None = None) -> list[Block]:
        """Blocks of consecutive views, each on the one before."""
        made: list[Block] = []
        for _ in range(length):
            made.append(self.block(made[-1] if made else parent))
        return made

    def lineage(self, block: Block) -> list[Block]:
        """From genesis to `block`."""
        line = [block]
        while line[-1].height:
            line.append(self._blocks[line[-1].parent])
        return line[::-1]

    def ancestry(self, block: Block) -> Iterator[Header]:
        """As a scheme reads it: newest first, as far down as it likes."""
        yield block.header
        while block.height:
            block = self._blocks[block.parent]
            yield block.header

    def _executed(self, parent: Block) -> Block:
        """The block that a child of `parent` names as executed."""
        block = parent if parent.height == 0 else self._blocks[parent.parent]
        height = self._finalises[block.id]
        while block.height > height:
            block = self._blocks[block.parent]
        return block
