"""Raw blocks, batches and proofs of misbehaviour for auditors (P22): what they read is what brokers themselves keep."""

from __future__ import annotations

from parley.ledger.history import MissingNode
from parley.model.refusals import NotFound
from parley.net.messages import (
    MAX_BLOCKS,
    MAX_TOLD,
    Blocks,
    Bodies,
    Body,
    EvidenceList,
    Question,
    RawBlock,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
)
from parley.node.access import Caller, require_auditor
from parley.node.archive import Archive
from parley.node.services.asking import Asking
from parley.node.services.service import Cost, Judged, Showing
from parley.node.view import View

# Nothing is decoded that is not needed, so that an answer may be larger than one that is built message by message.
MAX_RAW_BYTES = 4 * 1024 * 1024
# A block whose receipts and bodies are larger than this is shown without the bodies: they can be asked for by digest.
MAX_INLINE = 16 * 1024 * 1024
BLOCK_COST = 8 * 1024  # bytes that take as long as finding a block
BODY_COST = 2 * 1024  # bytes that take as long as finding a body


def _may_audit(view: View, caller: Caller, _: Question) -> None:
    require_auditor(view, caller)


def _raw_blocks(_asking: Asking, view: View, question: ReadBlocks, _: None) -> Blocks:
    """Certified blocks from a height on, at least one if there is one, as far as `max_bytes` go."""
    found: list[RawBlock] = []
    left = min(question.max_bytes, MAX_RAW_BYTES)
    for height in range(question.height, min(view.height, question.height + MAX_BLOCKS - 1) + 1):
        block, leaves = view.archive.raw_block(height)
        cost = BLOCK_COST + sum(map(len, leaves))
        if found and cost > left:
            break
        room = left - cost if found else MAX_INLINE - cost
        shown = _bodies(view.archive, block.batches, room) if question.bodies else []
        if shown is None and found:
            break
        found.append(RawBlock(block, leaves, tuple(shown or [None] * len(block.batches))))
        left -= cost + sum(map(_cost, found[-1].bodies))
    if not found:
        return Blocks(question.id, view.anchor, (), None)
    try:
        proof = view.archive.history_range(question.height, len(found), view.height)
    except MissingNode:
        raise NotFound("history") from None
    return Blocks(question.id, view.anchor, tuple(found), proof)


def _raw_bodies(_asking: Asking, view: View, question: ReadBodies, _: None) -> Bodies:
    """The batches with these digests, at least the first."""
    found: list[Body] = []
    left = MAX_RAW_BYTES
    for digest in question.digests:
        body = view.archive.raw_batch(digest)
        left -= _cost(body)
        if found and left < 0:
            break
        found.append(body)
    return Bodies(question.id, view.anchor, tuple(found))


def _evidence(_asking: Asking, view: View, question: ReadEvidence, _: None) -> EvidenceList:
    """What this broker can prove of others, as it is stored, after the first `skip` records."""
    found: list[bytes] = []
    left = MAX_RAW_BYTES
    for place, record in enumerate(view.archive.evidence()):
        if place < question.skip:
            continue
        left -= len(record)
        if (found and left < 0) or place >= MAX_TOLD:
            return EvidenceList(question.id, tuple(found), more=place < MAX_TOLD)
        found.append(record)
    return EvidenceList(question.id, tuple(found), more=False)


def _bodies(archive: Archive, digests: tuple[bytes, ...], room: int) -> list[Body] | None:
    """The bodies with these digests; None: there is no room for all of them."""
    found: list[Body] = []
    for digest in digests:
        body = archive.raw_batch(digest)
        room -= _cost(body)
        if room < 0:
            return None
        found.append(body)
    return found


def _cost(body: Body) -> int:
    return BODY_COST + (len(body) if isinstance(body, bytes) else 0)


def _blocks_work(answer: Blocks) -> int:
    bodies = sum(len(block.bodies) for block in answer.blocks)
    return BLOCK_COST * (1 + len(answer.blocks)) + BODY_COST * bodies


def _bodies_work(answer: Bodies) -> int:
    return BLOCK_COST + BODY_COST * len(answer.bodies)


def _evidence_work(answer: EvidenceList) -> int:
    return BLOCK_COST + BODY_COST * len(answer.entries)


_BLOCK, _BODY = f"{BLOCK_COST // 1024} KiB", f"{BODY_COST // 1024} KiB"

_AUDITORS = Judged("auditors", _may_audit)

SERVICES = (
    Showing(
        question=ReadBlocks,
        right=_AUDITORS,
        cost=Cost(
            f"{_BLOCK}, the same for each block, and {_BODY} for each of its batches", after=_blocks_work
        ),
        whole=True,
        fresh=True,
        show=_raw_blocks,
    ),
    Showing(
        question=ReadBodies,
        right=_AUDITORS,
        cost=Cost(f"{_BLOCK}, and {_BODY} for each batch", after=_bodies_work),
        whole=True,
        fresh=True,
        show=_raw_bodies,
    ),
    Showing(
        question=ReadEvidence,
        right=_AUDITORS,
        cost=Cost(f"{_BLOCK}, and {_BODY} for each proof", after=_evidence_work),
        whole=True,
        fresh=True,
        show=_evidence,
    ),
)
