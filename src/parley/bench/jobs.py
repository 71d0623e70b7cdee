"""What a load process is told and what it answers: lines of JSON on its standard input and output.

First comes a `Job`, which is answered by `READY`; `GO` begins the load, and is answered by `BEGUN` when it has had an
effect; a `Window` ends it and is answered by a `Report`. Times are those of the clock that all processes of a machine
share.
"""

from __future__ import annotations

import sys
from typing import Literal

from msgspec import Struct

READY = b"ready\n"
GO = b"go\n"
BEGUN = b"begun\n"


class Job(Struct, forbid_unknown_fields=True, kw_only=True):
    """A client that publishes, or some that subscribe, each with a connection of its own."""

    role: Literal["publish", "subscribe"]
    genesis: str
    identities: list[str]  # paths; the publisher uses the first
    topics: list[str]
    size: int = 128  # bytes of a value
    batch: int = 100  # messages
    in_flight: int = 16  # batches without a receipt
    rate: float = 0.0  # messages per second; 0: as fast as receipts come
    tags: dict[str, str] = {}
    progress: str = ""  # a file through which subscribers hold a publisher back
    place: int = 0  # of a subscribing process in that file


class Window(Struct, forbid_unknown_fields=True):
    begin: float
    end: float


class Report(Struct, forbid_unknown_fields=True, kw_only=True):
    """What happened within the window; failures are counted from the beginning."""

    publications: int = 0
    latencies_us: list[int] = []  # of batches, from handing them over to the certified receipt
    times: list[float] = []  # when these receipts came
    deliveries: int = 0
    failed: int = 0  # batches
    problem: str = ""  # of the first failure
    height: int = 0


def say(answer: bytes) -> None:
    """What a load process does with its answers."""
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
