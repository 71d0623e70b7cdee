"""What the process of the attackers is told and tells: one JSON object in a line, in both directions."""

from __future__ import annotations

from msgspec import Struct

from parley.chaos.expensive.sizes import Size

MAX_LINE = 64 * 1024


class Job(Struct, frozen=True):
    directory: str  # of the network
    organisation: str  # that attacks
    brokers: dict[str, str]  # and their addresses
    metrics: str  # where the organisation's own broker tells its metrics
    size: Size


class Told(Struct, frozen=True):
    """An attack has ended. `attack` is empty when the attackers are ready to begin."""

    attack: str
    outcome: str = ""
    held: bool | None = None
