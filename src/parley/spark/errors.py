"""What can go wrong between Spark and a network: one class per condition, whose name begins every message of it.

Spark wraps what a Python source raises, and shows the text only; so the condition is part of the text, in brackets, as
Spark's own are. docs/spark.md lists them with what to do.
"""

from __future__ import annotations

from typing import ClassVar


class ParleySparkError(Exception):
    """A message is a sentence that says what happened, where, and what to do."""

    condition: ClassVar[str] = "PARLEY_ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"

    def __reduce__(self) -> tuple[type[ParleySparkError], tuple[str]]:
        return type(self), (self.message,)


class BadOption(ParleySparkError):
    """An option is unknown, missing, or has a value that it cannot have."""

    condition = "PARLEY_OPTION"


class NoJava(ParleySparkError):
    """There is no Java on this machine that Spark can run on."""

    condition = "PARLEY_JAVA"


class BadIdentity(ParleySparkError):
    """The identity cannot be read on this machine, is not of this network, was revoked, or has expired."""

    condition = "PARLEY_IDENTITY"


class Unreachable(ParleySparkError):
    """Too few brokers answered in time."""

    condition = "PARLEY_UNREACHABLE"


class Lying(ParleySparkError):
    """Every broker that answered showed something that its proof does not bear out; nothing of it was used."""

    condition = "PARLEY_LYING_BROKERS"


class NotAllowed(ParleySparkError):
    """The network's rules do not let this identity do it: subscribe, publish, or read the ledger."""

    condition = "PARLEY_NOT_ALLOWED"


class DataLoss(ParleySparkError):
    """Offsets that the query has still to read were pruned, and `failOnDataLoss` is on."""

    condition = "PARLEY_DATA_LOSS"


class Undecryptable(ParleySparkError):
    """The codec of the topic cannot open a message, and `onUndecryptable` is `fail`."""

    condition = "PARLEY_UNDECRYPTABLE"


class BackwardOffset(ParleySparkError):
    """The checkpoint is ahead of the network, or of another one: Spark would silently repeat rows (P23)."""

    condition = "PARLEY_BACKWARD_OFFSET"


class RightsChanged(ParleySparkError):
    """What the planned batch was to read may not be read any more, so a replay cannot give the same rows (P23)."""

    condition = "PARLEY_RIGHTS_CHANGED"


class TopicGone(ParleySparkError):
    """A topic does not exist, was deleted while the query read it, or is hidden from this identity."""

    condition = "PARLEY_TOPIC_GONE"


class TopicRemade(ParleySparkError):
    """A topic was deleted and made again. A checkpoint or a job is of the earlier one, whose messages are gone."""

    condition = "PARLEY_TOPIC_REPLACED"


class BadRow(ParleySparkError):
    """A data frame to be written has columns that a publication cannot be made of, or a row that is too large."""

    condition = "PARLEY_ROW"


class StageFailed(ParleySparkError):
    """What executors staged could not be committed: it expired, or another run of the query came first."""

    condition = "PARLEY_STAGE"
