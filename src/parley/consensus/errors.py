"""Why consensus refuses an input, and the two conditions under which it stops."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """One member per way in which an input can be unacceptable; each is counted under its name."""

    OVERSIZED = "larger than the limit for its kind"
    MALFORMED = "not a well-formed message"
    NOT_CANONICAL = "not in the one canonical encoding"
    WRONG_CHAIN = "made for another chain or shard"
    WRONG_EPOCH = "made in another epoch"
    WRONG_VERSION = "made by another version of the application"
    UNKNOWN_SIGNER = "signed by nobody in the committee"
    BAD_SIGNATURE = "signature does not verify"
    BAD_BITMAP = "signer bitmap has a wrong length or unknown bits"
    TOO_FEW_SIGNERS = "fewer signers than a quorum"
    BAD_CERTIFICATE = "certificate contradicts itself"
    NOT_ENTITLED = "no certificate of the view before entitles this view"
    STALE = "for a view or height that is over"
    FUTURE = "too far ahead of the current view"
    REPLAYED = "already received"
    EQUIVOCATION = "contradicts what its signer signed before"
    NOT_LEADER = "proposed by a replica that does not lead the view"
    BAD_HEIGHT = "height does not follow the parent's"
    BAD_TIME = "block time is not after the parent's or too far ahead"
    BAD_GOVERNANCE = "names a governance state that is not this epoch's"
    BAD_EXECUTED_HEIGHT = "names another executed height than the chain implies"
    ROOTS_DIFFER = "claims other results than this replica computed"
    BAD_BATCHES = "batch list contradicts the header"
    CONFLICT = "does not extend the committed chain"
    UNSOLICITED = "answers a question that was not asked"
    BAD_ANSWER = "does not answer the question that was asked"
    HALTED = "this replica has stopped taking part"
    QUOTA = "sender has used up its share of the buffer"
    INADMISSIBLE = "a batch that is refused before order"


class Refused(Exception):  # noqa: N818 - it names what happened to the input, as receipts do
    """An input was refused: it changed nothing, and `reason` says why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail


class SafetyViolation(Exception):  # noqa: N818 - the condition, not an error of the caller
    """Two conflicting blocks are final: more than f replicas are faulty, or this code is wrong. Never continue."""


class SafetyRecordError(Exception):
    """The safety record cannot be read, so the replica cannot know what it has signed and must not sign."""
