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
    RawBlock,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
)
from parley.node.access import Caller, require_auditor
from parley.node.archive import Archive
from parley.node.view import View

# Nothing is decoded that is not needed, so that an answer may be larger than one that is built message by message.
MAX_RAW_BYTES = 4 * 1024 * 1024
# A block whose receipts and bodies are larger than this is shown without the bodies: they can be asked for by digest.
MAX_INLINE = 16 * 1024 * 1024
BLOCK_COST = 8 * 1024  # bytes that take as long as finding a block
BODY_COST = 2 * 1024  # bytes that take as long as finding a body


def audited(
    view: View, caller: Caller, question: ReadBlocks | ReadBodies | ReadEvidence
) -> Blocks | Bodies | EvidenceList:
    """Raises `Refused` unless the caller has the right."""
    require_auditor(view, caller)
    match question:
        case ReadBlocks():
            return _raw_blocks(view, question)
        case ReadBodies():
            return _raw_bodies(view, question)
        case ReadEvidence():
            return _evidence(view, question)


def _raw_blocks(view: View, question: ReadBlocks) -> Blocks:
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


def _raw_bodies(view: View, question: ReadBodies) -> Bodies:
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


def _evidence(view: View, question: ReadEvidence) -> EvidenceList:
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
    """None: they are more than there is room for."""
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
