"""What a client may ask about its advertisements."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from parley.application.operations import Operation
from parley.model.names import TopicName

MAX_ADVERTISEMENT = 1024  # characters


class Advertise(Operation, frozen=True):
    """Say what one publishes on a topic, to those who may describe it; empty withdraws it."""

    topic: TopicName
    text: Annotated[str, Meta(max_length=MAX_ADVERTISEMENT)]
