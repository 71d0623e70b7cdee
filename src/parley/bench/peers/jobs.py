"""What a publishing process is told and what it answers: lines of JSON on its standard input and output.

First comes a `Job`, which is answered by `READY` after the warm-up; `GO` begins what is measured, which a `Report` ends.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SystemName = Literal["parley", "nats", "kafka", "rabbitmq"]


class Job(Struct, forbid_unknown_fields=True, kw_only=True):
    """The same numbers of messages of the same size for every system; the rest is what suits it."""

    system: SystemName
    servers: list[str]  # host:port; of Parley the genesis file
    target: str  # a topic, stream or queue, which is made if need be
    size: int  # bytes of a message
    messages: int
    warm_up: int  # messages before those that count
    batch: int = 0  # messages that the client hands over as one; 0: as the client does by itself
    in_flight: int = (
        0  # messages, or batches, that wait for their acknowledgement; 0: as the client does by itself
    )
    synced: bool = False  # asked for where it is a property of the target
    identity: str = ""  # of Parley's client


class Report(Struct, forbid_unknown_fields=True):
    """From the first message handed over to the last acknowledgement."""

    seconds: float
    cpu_us: int  # of the publishing process
