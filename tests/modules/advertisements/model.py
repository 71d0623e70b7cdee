"""Advertisements in random histories, and what they should do according to the reference model."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from parley.application.operations import Operation
from parley.modules.advertisements.operations import Advertise
from parley.modules.advertisements.tables import ADVERTISEMENTS

if TYPE_CHECKING:
    from tests.application.reference import Reference
    from tests.application.world import World

EXAMPLE: Operation = Advertise("orders", "spare beds")


def random_operation(random: Random, topic: str) -> Operation:
    return Advertise(topic, random.choice(("", "spare beds")))


class Model:
    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self.texts: dict[tuple[str, bytes], str] = {}

    def begin_block(self, ending: set[str], leaving: set[bytes]) -> None:
        """Topics that the block before deleted, and clients that it revoked."""
        self.texts = {
            (topic, client): text
            for (topic, client), text in self.texts.items()
            if topic not in ending and client not in leaving
        }

    def operate(self, key: bytes, operation: Operation) -> bool:
        """Whether it is an operation of this module."""
        if not isinstance(operation, Advertise):
            return False
        client, topic = self._reference.client(key), self._reference.topic(operation.topic)
        if operation.text:
            self._reference.allow(topic, "publish", client)
            self.texts[operation.topic, key] = operation.text
        elif self.texts.pop((operation.topic, key), None) is None:
            self._reference.describe(topic, client)
        return True

    def compare(self, world: World) -> None:
        assert {key: record.text for key, record in world.table(ADVERTISEMENTS).items()} == self.texts
