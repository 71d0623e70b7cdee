"""The library that applications import: connect, publish, subscribe, read, administer, and believe no single broker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley.client.administration import BrokerStatus, ClientInfo, PartitionInfo, TopicInfo
    from parley.client.advertisements import Advertisement
    from parley.client.blocking import (
        BlockingClient,
        BlockingPublisher,
        BlockingSubscription,
        connect_blocking,
    )
    from parley.client.client import Client, connect
    from parley.client.ledger import CertifiedHead, VerifiedBlock
    from parley.client.messages import Message, OperationReceipt, Receipt, Receipts
    from parley.client.position import Position
    from parley.client.publisher import Pending, Publisher
    from parley.client.subscription import Subscription

__all__ = [
    "Advertisement",
    "BlockingClient",
    "BlockingPublisher",
    "BlockingSubscription",
    "BrokerStatus",
    "CertifiedHead",
    "Client",
    "ClientInfo",
    "Message",
    "OperationReceipt",
    "PartitionInfo",
    "Pending",
    "Position",
    "Publisher",
    "Receipt",
    "Receipts",
    "Subscription",
    "TopicInfo",
    "VerifiedBlock",
    "connect",
    "connect_blocking",
]

_MODULES = (
    "messages",
    "position",
    "ledger",
    "administration",
    "advertisements",
    "publisher",
    "subscription",
    "client",
    "blocking",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # A program that wants only the errors, or only the contexts, does not wait for the rest.
        if name in __all__:
            for module in _MODULES:
                found = import_module(f"parley.client.{module}")
                if name in found.__all__:
                    return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
