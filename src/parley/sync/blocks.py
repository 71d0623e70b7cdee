"""Fetching the chain below a certified block that is unknown here. Progress does not depend on the view timer (T13).

The only thing believed is a certificate: the asker holds a QC for a block, asks one member at a time for the blocks
up to it, and checks hashes and certificates of every answer. A bad or missing answer means the next member's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import CertifiedChain, Send, SetTimer, VerifiedQC
from parley.consensus.types import QC, Block
from parley.consensus.verify import Verifier
from parley.crypto.qc import voters
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse, StoredBlock

__all__ = ["BlockSync", "Effect", "SyncTimer", "answer"]

RETRY = 500  # ms before the next member is asked
MAX_DIGESTS = 4 * 1024  # batch digests in one answer, so that it fits a message


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Runs while an answer is awaited."""

    attempt: int


Effect = Send | SetTimer[SyncTimer]
Arrived = Callable[[VerifiedQC], bool]


class BlockSync:
    """One fetch at a time, for the newest certified block that is wanted."""

    def __init__(self, index: int, size: int, verifier: Verifier) -> None:
        self._index = index
        self._size = size
        self._verifier = verifier
        self._target: VerifiedQC | None = None
        self._asked: int | None = None  # the member whose answer is awaited
        self._attempt = 0
        self._misses = 0  # answers that were bad or never came: whose turn it is

    def want(self, qc: VerifiedQC, above: int) -> list[Effect]:
        """A certified block is unknown here."""
        idle = self._target is None
        if self._target is None or qc.view > self._target.view:
            self._target = qc
        return self._ask(above) if idle else []

    def receive(self, sender: int, response: BlocksResponse) -> CertifiedChain:
        """Check an answer. Refused or not, `resume` goes on from there."""
        target = self._target
        if target is None or sender != self._asked or response.target != target.block:
            raise Refused(Reason.UNSOLICITED, f"blocks from member {sender}")
        self._asked = None
        self._misses += 1  # until the answer turns out to be good
        if not response.blocks:
            raise Refused(Reason.BAD_ANSWER, f"member {sender} has none of the blocks")
        qc = target.qc if response.qc is None else response.qc
        chain = self._verifier.chain(tuple(stored.block() for stored in response.blocks), qc)
        self._misses -= 1
        return chain

    def resume(self, above: int, arrived: Arrived) -> list[Effect]:
        """After an answer: done if the target has `arrived`, else ask for more."""
        if self._target is None or self._asked is not None:
            return []
        if arrived(self._target):
            self._target = None
            self._misses = 0
            return []
        if self._misses and self._misses % (self._size - 1) == 0:
            return []  # everybody was asked: wait for the timer instead of asking in a tight loop
        return self._ask(above)

    def on_timer(self, timer: SyncTimer, above: int, arrived: Arrived, *, paused: bool) -> list[Effect]:
        if self._target is None or timer.attempt != self._attempt:
            return []
        if paused:
            return [SetTimer(timer, RETRY)]
        if arrived(self._target):
            self._target = None
            self._asked = None
            return []
        self._misses += 1
        return self._ask(above)

    def _ask(self, above: int) -> list[Effect]:
        assert self._target is not None
        peers = self._peers(self._target.qc)
        self._asked = peers[self._misses % len(peers)]
        self._attempt += 1
        request = BlocksRequest(self._target.block, above)
        return [Send(self._asked, request), SetTimer(SyncTimer(self._attempt), RETRY)]

    def _peers(self, qc: QC) -> list[int]:
        """Those who voted for the block first: they had it; then everybody else."""
        signers = voters(qc.votes.bitmap, self._size) or ()
        others = [member for member in range(self._size) if member not in signers]
        return [member for member in (*signers, *others) if member != self._index]


def answer(request: BlocksRequest, chain: Iterable[Block], tip: QC) -> BlocksResponse:
    """As much as fits of `chain`, the blocks above the asker's, with a certificate for the last one sent."""
    blocks: list[Block] = []
    digests = 0
    for block in islice(chain, MAX_BLOCKS):
        digests += len(block.batches)
        if digests > MAX_DIGESTS:
            break
        blocks.append(block)
    qc: QC | None = None
    if blocks and blocks[-1].id != request.target:
        # Each block carries its parent's certificate, so the newest block is given up for it if nothing else is known.
        qc = tip if tip.block == blocks[-1].id else blocks.pop().header.justify
    return BlocksResponse(request.target, tuple(map(StoredBlock.of, blocks)), qc)
