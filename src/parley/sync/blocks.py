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
from parley.ledger.layout import StoredBlock
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse

RETRY = 500  # ms before the next member is asked
MAX_DIGESTS = 4 * 1024  # batch digests in one answer, so that it fits a message


@dataclass(frozen=True, slots=True)
class SyncTimer:
    """Runs while an answer is awaited."""

    attempt: int


Effect = Send | SetTimer[SyncTimer]
Known = Callable[[bytes], bool]  # whether a block is the last committed one or above it
Arrived = Callable[[VerifiedQC], bool]


@dataclass(frozen=True, slots=True)
class _Question:
    member: int
    qc: VerifiedQC
    above: int


class BlockSync:
    """One fetch at a time, for the newest certified block that is wanted."""

    def __init__(self, index: int, size: int, verifier: Verifier) -> None:
        self._index = index
        self._size = size
        self._verifier = verifier
        self._target: VerifiedQC | None = None
        self._question: _Question | None = None  # the one whose answer is awaited
        # The height that each member's good answers have led to, though nothing up to there may be final. By member, so
        # that one who leads astray or answers nothing sets nobody else back.
        self._reached = [0] * size
        self._misses = 0  # bad answers in a row
        self._turn = index  # the member asked last
        self._attempt = 0
        self._unreachable: set[int] = set()

    def connected(self, member: int, *, up: bool) -> None:
        """Members without a connection are not asked, as long as there are others."""
        (self._unreachable.discard if up else self._unreachable.add)(member)

    def want(self, qc: VerifiedQC, above: int) -> list[Effect]:
        """A certified block is unknown here."""
        idle = self._target is None
        if self._target is None or qc.view > self._target.view:
            self._target = qc
        return self._ask(self._target, above) if idle else []

    def receive(self, sender: int, response: BlocksResponse, known: Known) -> CertifiedChain:
        """Check an answer. Refused or not, `resume` goes on from there, with another member if it was no good."""
        question = self._question
        if question is None or sender != question.member or response.target != question.qc.block:
            raise Refused(Reason.UNSOLICITED, f"blocks from member {sender}")
        self._question = None
        self._misses += 1
        self._reached[sender] = 0
        if not response.blocks:
            raise Refused(Reason.BAD_ANSWER, f"member {sender} has none of the blocks")
        blocks = tuple(stored.block() for stored in response.blocks)
        if blocks[0].height != question.above + 1:
            raise Refused(Reason.BAD_ANSWER, f"member {sender} sent blocks that were not asked for")
        chain = self._verifier.chain(blocks, question.qc.qc if response.qc is None else response.qc)
        if known(blocks[0].parent):  # if not, consensus judges what that means
            self._misses = self._misses - 1 if known(blocks[-1].id) else 0
            # Even if all of them were known: the next question to this member starts above them.
            self._reached[sender] = blocks[-1].height
        return chain

    def resume(self, above: int, arrived: Arrived) -> list[Effect]:
        """After an answer: done if the target has arrived, else ask for more."""
        if self._target is None or self._question is not None:
            return []
        if arrived(self._target):
            self._finish()
            return []
        if self._misses >= self._size - 1:
            return []  # nobody has an answer: wait for the timer instead of asking in a tight loop
        return self._ask(self._target, above)

    def on_timer(self, timer: SyncTimer, above: int, arrived: Arrived, *, paused: bool) -> list[Effect]:
        if self._target is None or timer.attempt != self._attempt:
            return []
        if paused:
            return [SetTimer(timer, RETRY)]
        if arrived(self._target):
            self._finish()
            return []
        self._misses = 0
        return self._ask(self._target, above)

    def _finish(self) -> None:
        self._target = self._question = None
        self._reached = [0] * self._size
        self._misses = 0

    def _ask(self, target: VerifiedQC, above: int) -> list[Effect]:
        # A turn per question, good answers or not: a member that answers slowly, a block at a time, gets no more than its.
        turns = [(self._turn + step) % self._size for step in range(1, self._size + 1)]
        others = [member for member in turns if member != self._index]
        self._turn = next((member for member in others if member not in self._unreachable), others[0])
        self._attempt += 1
        self._question = _Question(self._turn, target, max(above, self._reached[self._turn]))
        return [
            Send(self._turn, BlocksRequest(target.block, self._question.above)),
            SetTimer(SyncTimer(self._attempt), RETRY),
        ]


def answer(request: BlocksRequest, chain: Iterable[Block], tip: QC) -> BlocksResponse:
    """As much as fits of `chain`, the blocks above the asker's, with a certificate for the last one sent."""
    blocks: list[Block] = []
    digests = 0
    for block in islice(chain, MAX_BLOCKS):
        digests += len(block.batches)
        # After a snapshot there may be a gap: what lies above it is no answer.
        if digests > MAX_DIGESTS or block.height != request.above + 1 + len(blocks):
            break
        blocks.append(block)
    qc: QC | None = None
    if blocks and blocks[-1].id != request.target:
        # Each block carries its parent's certificate, so the newest block is given up for it if nothing else is known.
        qc = tip if tip.block == blocks[-1].id else blocks.pop().header.justify
    return BlocksResponse(request.target, tuple(map(StoredBlock.of, blocks)), qc)
