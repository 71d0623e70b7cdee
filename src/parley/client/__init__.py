"""The library that applications import: connect, publish, subscribe, read, administer, and believe no single broker."""

from __future__ import annotations

from parley.client.administration import Advertisement, BrokerStatus, ClientInfo, PartitionInfo, TopicInfo
from parley.client.blocking import BlockingClient, BlockingPublisher, BlockingSubscription, connect_blocking
from parley.client.client import Client, connect
from parley.client.messages import Message, Receipt
from parley.client.publisher import Pending, Publisher
from parley.client.subscription import Subscription

__all__ = [
    "Advertisement",
    "BlockingClient",
    "BlockingPublisher",
    "BlockingSubscription",
    "BrokerStatus",
    "Client",
    "ClientInfo",
    "Message",
    "PartitionInfo",
    "Pending",
    "Publisher",
    "Receipt",
    "Subscription",
    "TopicInfo",
    "connect",
    "connect_blocking",
]
