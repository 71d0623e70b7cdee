"""What happened at a broker's edges since its process began: plain numbers, one addition for an event or a batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from parley.consensus.errors import Reason
from parley.replica.commit_times import Durations

FULL, DISPLACED, HANDSHAKE = "full", "displaced", "handshake"
TURNED_AWAY = (FULL, DISPLACED, HANDSHAKE)  # connections that ended before it was known who came


@dataclass(eq=False, slots=True)
class Tally:
    """It outlives the lives of a broker: what ends one of them must still be seen in the next."""

    receipts: Durations = field(default_factory=Durations)  # from submission to certified receipt
    deliveries: int = 0  # messages that streams have sent
    refused: Counter[str] = field(default_factory=Counter)  # what clients asked, by code
    turned_away: Counter[str] = field(default_factory=Counter)  # connections, by one of `TURNED_AWAY`
    misbehaviour: Counter[tuple[str, str]] = field(default_factory=Counter)  # by broker and kind
    messages_refused: dict[str, Counter[Reason]] = field(default_factory=dict)  # by the broker that sent them
    damage: Counter[bool] = field(default_factory=Counter)  # by whether it was mended
    largest_receipts: int = 0  # bytes of the receipts of one block
    longest_sync_ns: int = 0  # of the disk
    longest_execution_ns: int = 0  # of one block
