"""Parley: a Byzantine-fault-tolerant publish/subscribe network for organisations that do not trust each other."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from parley.client import (
        Advertisement,
        BlockingClient,
        BlockingPublisher,
        BlockingSubscription,
        BrokerStatus,
        Client,
        ClientInfo,
        Message,
        PartitionInfo,
        Pending,
        Position,
        Publisher,
        Receipt,
        Receipts,
        Subscription,
        TopicInfo,
        connect,
        connect_blocking,
    )
    from parley.client.errors import (
        BadSignature,
        Busy,
        ClientClosed,
        ClientExists,
        ContextError,
        Expired,
        IdentityError,
        Invalid,
        InvalidConstraint,
        InvalidMessage,
        InvalidRule,
        LimitExceeded,
        LyingBroker,
        Malformed,
        NotAuthenticated,
        NotFound,
        NotReady,
        NotStaged,
        NotSubscribed,
        OutOfSequence,
        Overloaded,
        Oversized,
        ParleyError,
        PermissionDenied,
        Pruned,
        Refused,
        Revoked,
        SequenceReused,
        StageOver,
        Stalled,
        TopicExists,
        UnknownClient,
        UnknownPartition,
        UnknownTopic,
        Unreachable,
        Unsupported,
        WrongChain,
    )

__all__ = [
    "Advertisement",
    "BadSignature",
    "BlockingClient",
    "BlockingPublisher",
    "BlockingSubscription",
    "BrokerStatus",
    "Busy",
    "Client",
    "ClientClosed",
    "ClientExists",
    "ClientInfo",
    "ContextError",
    "Expired",
    "IdentityError",
    "Invalid",
    "InvalidConstraint",
    "InvalidMessage",
    "InvalidRule",
    "LimitExceeded",
    "LyingBroker",
    "Malformed",
    "Message",
    "NotAuthenticated",
    "NotFound",
    "NotReady",
    "NotStaged",
    "NotSubscribed",
    "OutOfSequence",
    "Overloaded",
    "Oversized",
    "ParleyError",
    "PartitionInfo",
    "Pending",
    "PermissionDenied",
    "Position",
    "Pruned",
    "Publisher",
    "Receipt",
    "Receipts",
    "Refused",
    "Revoked",
    "SequenceReused",
    "StageOver",
    "Stalled",
    "Subscription",
    "TopicExists",
    "TopicInfo",
    "UnknownClient",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "WrongChain",
    "__version__",
    "connect",
    "connect_blocking",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # The client is loaded when it is first used: whoever needs only a part of the package pays only for that part.
        if name in __all__:
            errors = import_module("parley.client.errors")
            return getattr(errors if name in errors.__all__ else import_module("parley.client"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
