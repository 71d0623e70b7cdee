"""How large the attacks are: the figures that once stopped networks, and small ones for a quick look."""

from __future__ import annotations

from msgspec import Struct


class Size(Struct, frozen=True, forbid_unknown_fields=True):
    partitions: int = 64  # of the topics that are attacked
    constraints: int = 1_024  # on a topic whose partitions are added
    altered: int = 3  # topics that are altered at once
    rounds: int = 2  # how often
    revoked: int = 7  # clients that are revoked at once
    subscriptions: int = 1_000  # that each of them holds
    widening_s: float = 60.0  # after which they are revoked, even if not all partitions are there yet
    churned: int = 1_000  # subscriptions that one client begins and ends
    staged_batches: int = 1_000  # committed at once, each as costly to match as a batch may be
    rows_per_batch: int = 4_000  # of the large commit
    row_batches: int = 28
    costly_batches: int = 400  # as costly as those, published
    busy_batches: int = 1_000  # the same, each in a session of its own
    wrong_batches: int = 4_000  # with a sequence that is never reached
    sessions: int = 64  # with a batch for each partition
    undisturbed_s: float = 15.0  # in which a bystander works before the first attack
    quiet_s: float = 60.0  # within which nothing is to be left of batches that never take effect


FULL = Size()
SMALL = Size(
    partitions=8,
    constraints=16,
    altered=2,
    rounds=1,
    revoked=2,
    subscriptions=8,
    churned=8,
    staged_batches=8,
    rows_per_batch=50,
    row_batches=2,
    costly_batches=4,
    busy_batches=4,
    wrong_batches=32,
    sessions=2,
    undisturbed_s=2.0,
    quiet_s=40.0,
)
