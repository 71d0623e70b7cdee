"""From decoded messages to verified ones: every check that needs no chain, and every signature check.

Parse, then verify, then trust (T6): the machine's inputs are the types made here. Cheap checks come before
signatures, so that garbage costs little; a message is accepted whole or refused whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from typing import assert_never

from parley.consensus.committee import quorum
from parley.consensus.errors import Reason, Refused
from parley.consensus.events import (
    CertifiedChain,
    Message,
    VerifiedCertificates,
    VerifiedProposal,
    VerifiedQC,
    VerifiedTC,
    VerifiedTimeout,
    VerifiedVote,
)
from parley.consensus.types import (
    QC,
    TC,
    Block,
    Certificates,
    Governance,
    Header,
    Instance,
    Proposal,
    Timeout,
    Vote,
    genesis_qc,
)
from parley.crypto import merkle
from parley.crypto.qc import NOTHING, Aggregate, QCScheme, voters

_CACHED_CERTIFICATES = 1024


class Verifier:
    """Checks messages of one instance. Certificates travel in many messages, so those that passed are remembered."""

    def __init__(self, instance: Instance, scheme: QCScheme, genesis: Block) -> None:
        self._instance = instance
        self._scheme = scheme
        self._quorum = quorum(instance.size)
        self._genesis_qc = genesis_qc(instance, genesis)
        self._governance = Governance(0, instance.chain)
        self._passed: OrderedDict[QC | TC, None] = OrderedDict()
        self._own: Vote | None = None

    def remember_own(self, vote: Vote | None) -> None:
        """This member's own newest vote: its signature in a QC needs no check."""
        self._own = vote

    def message(
        self, message: Message
    ) -> VerifiedProposal | VerifiedVote | VerifiedTimeout | VerifiedCertificates:
        """Whatever members send each other."""
        match message:
            case Proposal():
                return self.proposal(message)
            case Vote():
                return self.vote(message)
            case Timeout():
                return self.timeout(message)
            case Certificates():
                return self.certificates(message)
            case _:
                assert_never(message)

    def qc(self, qc: QC) -> VerifiedQC:
        if qc == self._genesis_qc:  # empty, and valid for block 0 only (P26)
            return VerifiedQC(qc)
        self._require_epoch(qc.epoch)
        if qc not in self._passed:
            signers = self._signers(qc.votes)
            message = self._instance.vote_message(qc.view, qc.block)
            self._require_signatures([message] * len(signers), qc.votes, self._known(qc))
            self._remember(qc)
        return VerifiedQC(qc)

    def tc(self, tc: TC) -> VerifiedTC:
        self._require_epoch(tc.epoch)
        if tc not in self._passed:
            signers = self._signers(tc.timeouts)
            if len(tc.qc_views) != len(signers) or tc.highest_qc_view >= tc.view:
                raise Refused(Reason.BAD_CERTIFICATE, f"TC of view {tc.view}")
            messages = [self._instance.timeout_message(tc.view, qc_view) for qc_view in tc.qc_views]
            self._require_signatures(messages, tc.timeouts)
            self._remember(tc)
        return VerifiedTC(tc)

    def vote(self, vote: Vote) -> VerifiedVote:
        self._require_epoch(vote.epoch)
        message = self._instance.vote_message(vote.view, vote.block)
        self._require_signature(vote.signer, message, vote.signature)
        return VerifiedVote(vote)

    def timeout(self, timeout: Timeout) -> VerifiedTimeout:
        self._require_epoch(timeout.epoch)
        _require_entitled(timeout.view, timeout.high_qc, timeout.tc)
        vote = timeout.vote
        if vote is not None and (vote.signer, vote.view) != (timeout.signer, timeout.view):
            raise Refused(Reason.BAD_CERTIFICATE, "timeout carries a vote of another signer or view")
        message = self._instance.timeout_message(timeout.view, timeout.high_qc.view)
        self._require_signature(timeout.signer, message, timeout.signature)
        return VerifiedTimeout(
            timeout,
            self.qc(timeout.high_qc),
            None if timeout.tc is None else self.tc(timeout.tc),
            None if vote is None else self.vote(vote),
        )

    def proposal(self, proposal: Proposal) -> VerifiedProposal:
        header = proposal.header
        self._require_header(header)
        _require_entitled(header.view, header.justify, header.tc)
        if header.justify.block != header.parent:
            raise Refused(Reason.BAD_CERTIFICATE, "justify certifies another block than the parent")
        _require_batches(header, proposal.batches)
        block = Block(header, proposal.batches)
        self._require_signature(
            header.proposer, self._instance.proposal_message(block.id), proposal.signature
        )
        justify = self.qc(header.justify)
        return VerifiedProposal(block, justify, None if header.tc is None else self.tc(header.tc), proposal)

    def certificates(self, message: Certificates) -> VerifiedCertificates:
        if message.tc is not None and not (
            message.tc.qc_views and message.tc.highest_qc_view <= message.qc.view
        ):
            raise Refused(Reason.BAD_CERTIFICATE, "the QC is older than one that the TC has seen")
        return VerifiedCertificates(self.qc(message.qc), None if message.tc is None else self.tc(message.tc))

    def chain(self, blocks: tuple[Block, ...], qc: QC) -> CertifiedChain:
        """Fetched blocks: hash links to the last, and a QC on it. Its honest voters checked all that lies below (T21)."""
        for block in blocks:
            self._require_header(block.header)
            _require_batches(block.header, block.batches)
        for parent, child in pairwise(blocks):
            if child.parent != parent.id or child.height != parent.height + 1:
                raise Refused(Reason.BAD_ANSWER, "fetched blocks are not a chain")
        if not blocks or (qc.block, qc.view) != (blocks[-1].id, blocks[-1].view):
            raise Refused(Reason.BAD_ANSWER, "the certificate is not of the last fetched block")
        return CertifiedChain(blocks, self.qc(qc))

    def _require_header(self, header: Header) -> None:
        if header.version != self._instance.version:
            raise Refused(Reason.WRONG_VERSION, f"version {header.version}, this is {self._instance.version}")
        if (header.chain, header.shard) != (self._instance.chain, self._instance.shard):
            raise Refused(Reason.WRONG_CHAIN)
        self._require_epoch(header.epoch)
        if header.proposer >= self._instance.size:
            raise Refused(Reason.UNKNOWN_SIGNER, f"proposer {header.proposer}")
        if header.governance != self._governance:
            raise Refused(Reason.BAD_GOVERNANCE)

    def _require_epoch(self, epoch: int) -> None:
        if epoch != self._instance.epoch:
            raise Refused(Reason.WRONG_EPOCH, f"epoch {epoch}, this is {self._instance.epoch}")

    def _require_signature(self, signer: int, message: bytes, signature: bytes) -> None:
        if signer >= self._instance.size:
            raise Refused(Reason.UNKNOWN_SIGNER, f"signer {signer}")
        if not self._scheme.verify(signer, message, signature):
            raise Refused(Reason.BAD_SIGNATURE, f"signer {signer}")

    def _signers(self, aggregate: Aggregate) -> tuple[int, ...]:
        # A bitmap cannot name a signer twice (T5); unknown bits are refused, not ignored.
        signers = voters(aggregate.bitmap, self._instance.size)
        if signers is None:
            raise Refused(Reason.BAD_BITMAP)
        if len(signers) < self._quorum:
            raise Refused(Reason.TOO_FEW_SIGNERS, f"{len(signers)} of {self._quorum}")
        return signers

    def _known(self, qc: QC) -> Mapping[int, bytes]:
        own = self._own
        if own is None or (own.view, own.block) != (qc.view, qc.block):
            return NOTHING
        return {own.signer: own.signature}

    def _require_signatures(
        self, messages: list[bytes], aggregate: Aggregate, known: Mapping[int, bytes] = NOTHING
    ) -> None:
        if not self._scheme.verify_aggregate(messages, aggregate, known):
            raise Refused(Reason.BAD_SIGNATURE, "certificate")

    def _remember(self, certificate: QC | TC) -> None:
        self._passed[certificate] = None
        if len(self._passed) > _CACHED_CERTIFICATES:
            self._passed.popitem(last=False)


def _require_entitled(view: int, qc: QC, tc: TC | None) -> None:
    """A view is entered by the QC of the view before, or by its TC and a QC as high as any in it (T2, T3, T7)."""
    if qc.view + 1 == view:
        if tc is not None:  # present iff needed: an optional field that changes nothing is a second encoding
            raise Refused(Reason.NOT_ENTITLED, "a TC beside the QC of the view before")
        return
    if tc is None or tc.view + 1 != view or not tc.qc_views or not tc.highest_qc_view <= qc.view < tc.view:
        raise Refused(Reason.NOT_ENTITLED, f"view {view} with the QC of view {qc.view}")


def _require_batches(header: Header, batches: tuple[bytes, ...]) -> None:
    if len(set(batches)) != len(batches) or merkle.root(batches) != header.batches_root:
        raise Refused(Reason.BAD_BATCHES)
