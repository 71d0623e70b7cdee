"""Why the network refuses: one stable code per reason, the same in receipts, on the wire and in exceptions."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Code", "Refusal", "malformed"]

MAX_FAULT = 200  # characters that are said about bytes from outside


class Code(StrEnum):
    """Scripts and other languages rely on these words; they are never renamed."""

    OK = "Ok"
    DUPLICATE = "Duplicate"
    # decided in order, by every broker alike
    PERMISSION_DENIED = "PermissionDenied"
    UNKNOWN_CLIENT = "UnknownClient"
    REVOKED = "Revoked"
    CLIENT_EXISTS = "ClientExists"
    UNKNOWN_TOPIC = "UnknownTopic"
    TOPIC_EXISTS = "TopicExists"
    UNKNOWN_PARTITION = "UnknownPartition"
    NOT_SUBSCRIBED = "NotSubscribed"
    UNSUPPORTED = "Unsupported"
    LIMIT_EXCEEDED = "LimitExceeded"
    INVALID = "Invalid"
    OUT_OF_SEQUENCE = "OutOfSequence"
    SEQUENCE_REUSED = "SequenceReused"
    EXPIRED = "Expired"
    STAGE_OVER = "StageOver"
    NOT_STAGED = "NotStaged"
    # decided by one broker, before order
    MALFORMED = "Malformed"
    OVERSIZED = "Oversized"
    BAD_SIGNATURE = "BadSignature"
    WRONG_CHAIN = "WrongChain"
    NOT_AUTHENTICATED = "NotAuthenticated"
    BUSY = "Busy"  # in a receipt: nothing is decided (decision 9)
    NOT_FOUND = "NotFound"
    PRUNED = "Pruned"
    NOT_READY = "NotReady"


class Refusal(Exception):  # noqa: N818 - it names what happened to the operation, as receipts do
    """An operation was refused: nothing changed but its session's sequence (P3)."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{code.value}: {detail}")
        self.code = code
        self.detail = detail


def malformed(fault: str) -> Refusal:
    """What is wrong may quote what somebody sent, so it is cut."""
    return Refusal(Code.MALFORMED, fault if len(fault) <= MAX_FAULT else fault[: MAX_FAULT - 3] + "...")
