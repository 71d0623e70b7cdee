"""What the machine takes and what it may do: the effect list documents every way in which consensus acts.

Verified messages are made by `verify.py`, by `collect.py` from verified parts, and by the machine for what it signed
itself (a test holds that), so no rule ever sees a certificate or signature that nobody checked (T6). Effects are executed in order; nothing after `PersistSafety` may
leave the replica before the record is on disk (T16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import Struct

from parley.consensus.errors import Reason
from parley.consensus.record import SafetyState
from parley.consensus.types import QC, TC, Block, Certificates, Proposal, Roots, Timeout, Vote

Message = Proposal | Vote | Timeout | Certificates

T = TypeVar("T")


# -- verified messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifiedQC:
    """A certificate whose signers, quorum and signatures were checked."""

    qc: QC

    @property
    def view(self) -> int:
        return self.qc.view

    @property
    def block(self) -> bytes:
        return self.qc.block


@dataclass(frozen=True, slots=True)
class VerifiedTC:
    """A timeout certificate whose signers, quorum and signatures were checked."""

    tc: TC

    @property
    def view(self) -> int:
        return self.tc.view


def bare(tc: VerifiedTC | None) -> TC | None:
    """The certificate as it is sent and stored."""
    return None if tc is None else tc.tc


@dataclass(frozen=True, slots=True)
class VerifiedVote:
    vote: Vote


@dataclass(frozen=True, slots=True)
class VerifiedTimeout:
    timeout: Timeout
    high_qc: VerifiedQC
    tc: VerifiedTC | None
    vote: VerifiedVote | None


@dataclass(frozen=True, slots=True)
class VerifiedProposal:
    block: Block
    justify: VerifiedQC
    tc: VerifiedTC | None
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class VerifiedCertificates:
    qc: VerifiedQC
    tc: VerifiedTC | None


@dataclass(frozen=True, slots=True)
class CertifiedChain:
    """Blocks fetched while catching up, parent before child; `qc` certifies the last and so all of them (T21)."""

    blocks: tuple[Block, ...]
    qc: VerifiedQC


# -- other inputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ViewTimer:
    """Runs while the replica waits for a view; later attempts pace the re-broadcast of its timeout (T11)."""

    view: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Runs while a leader has nothing to propose (P2)."""

    view: int


@dataclass(frozen=True, slots=True)
class PaceOver:
    """Runs while a leader lets a block fill, because the block before it holds batches and is young."""

    view: int


@dataclass(frozen=True, slots=True)
class GraceOver:
    """Runs while a collector that has a quorum of votes waits for those of the others (R7)."""

    view: int
    block: bytes


Timer = ViewTimer | Heartbeat | PaceOver | GraceOver


@dataclass(frozen=True, slots=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True)
class Executed:
    """The chain has been executed up to `height` with these results (P2)."""

    height: int
    roots: Roots


@dataclass(frozen=True, slots=True)
class BatchesReady:
    """Every batch of this block is stored and synced (T20)."""

    block: bytes


@dataclass(frozen=True, slots=True)
class Payload:
    """The answer to `RequestPayload`: what the leader may propose, possibly nothing."""

    view: int
    batches: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PayloadAvailable:
    """There is something to propose now; a waiting leader asks again."""


@dataclass(frozen=True, slots=True)
class WorkPending:
    """The answer to `RequestWork` if there is a batch that a leader should propose now. Without one there is no answer."""

    view: int


@dataclass(frozen=True, slots=True)
class Connection:
    """There is a connection to another member, or there no longer is one. At the start there is one to every member."""

    member: int
    up: bool


@dataclass(frozen=True, slots=True)
class Resume:
    """A replica that lost its safety record may sign again: this QC is newer than all that it can have signed (P10)."""

    qc: VerifiedQC


Input = (
    VerifiedProposal
    | VerifiedVote
    | VerifiedTimeout
    | VerifiedCertificates
    | CertifiedChain
    | TimerFired
    | Executed
    | BatchesReady
    | Payload
    | PayloadAvailable
    | WorkPending
    | Connection
    | Resume
)


# -- evidence -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DoubleVote:
    first: Vote
    second: Vote


@dataclass(frozen=True, slots=True)
class DoubleTimeout:
    first: Timeout
    second: Timeout


@dataclass(frozen=True, slots=True)
class DoubleProposal:
    first: Proposal
    second: Proposal


Evidence = DoubleVote | DoubleTimeout | DoubleProposal


# -- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreBlock:
    """Keep this uncommitted block; `sync` when a vote depends on it: a certified block must survive a power failure."""

    block: Block
    sync: bool


@dataclass(frozen=True, slots=True)
class PersistSafety:
    """Write and sync the safety record. A barrier: what follows waits for it."""

    state: SafetyState


@dataclass(frozen=True, slots=True)
class Send:
    to: int
    message: Struct


@dataclass(frozen=True, slots=True)
class Broadcast:
    """To every other member."""

    message: Struct


@dataclass(frozen=True, slots=True)
class SetTimer(Generic[T]):
    """Fire `timer` once, `delay` ms from now. Timers are never cancelled; late ones are ignored."""

    timer: T
    delay: int


@dataclass(frozen=True, slots=True)
class RequestPayload:
    """Ask for batches to propose in `view`, none of `exclude` (they are in the chain already)."""

    view: int
    exclude: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Ask whether there is a batch that the leader of `view` should propose, none of `exclude`."""

    view: int
    exclude: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class OfferWork:
    """Send the batch that should be proposed first to the leader, from whom a liar may have kept it (P29)."""

    to: int
    exclude: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class RequestBatches:
    """The vote on this block waits for its batches; ask `proposer` first."""

    block: Block


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """A certified block is not in memory: get it and its ancestors, from the local store or from the others."""

    qc: VerifiedQC


@dataclass(frozen=True, slots=True)
class Commit:
    """These blocks are final, parent before child."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """These uncommitted blocks can never be final: delete them."""

    blocks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReportMisbehaviour:
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class ViewFailed:
    """A view ended with a timeout certificate. `leader` should have proposed in it; if that is not known, this is not said."""

    view: int
    leader: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """An input was refused and changed nothing."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Diverged:
    """A quorum certified other results than this replica computed: its state is wrong, it has stopped voting (P2)."""

    height: int
    block: bytes


Effect = (
    StoreBlock
    | PersistSafety
    | Send
    | Broadcast
    | SetTimer[Timer]
    | RequestPayload
    | RequestWork
    | OfferWork
    | RequestBatches
    | RequestBlocks
    | Commit
    | Prune
    | ReportMisbehaviour
    | ViewFailed
    | Refuse
    | Diverged
)
