"""When a replica gives its state up for a certified snapshot: what it has is wrong, or blocks and batches do not get it
any further. A snapshot is worth no more than its certificate, which is checked here (P2).
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Instance
from parley.consensus.verify import Verifier
from parley.crypto.encoding import EncodingError
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.store.interface import KeyValue
from parley.sync.messages import SnapshotOffer, SnapshotRequest

ASK_AGAIN = 1_000  # ms between two questions to all
STILL_FAR = 5_000  # ms for which a certificate from far ahead counts


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a replica tries to catch up by blocks, and how often it may start from a snapshot."""

    views: int = 512  # that a certificate may be ahead before snapshots are asked for
    heights: int = 256  # that a snapshot must be ahead to be worth it
    stuck: int = 15_000  # ms in which somebody should have sent the batches of a committed block
    joins: int = 3  # snapshots in a row, after which it must be this machine that is wrong
    apart: int = 1_000  # heights between two snapshots that are not in a row


class Lag:
    """Watches how far this replica is behind, and asks everybody for a snapshot when blocks will not do."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._far: int | None = None  # when a certificate from far ahead was seen
        self._waiting: int | None = None  # the committed height that cannot be executed
        self._since = 0
        self._asked: int | None = None

    def saw(self, views_ahead: int, now: int) -> None:
        """A certified block is unknown here."""
        if views_ahead > self._patience.views:
            self._far = now

    def ask(self, now: int, executed: int, waiting: int | None) -> SnapshotRequest | None:
        """`waiting`: the first committed height that waits for its batches."""
        if waiting != self._waiting:
            self._waiting, self._since = waiting, now
        above = self.above(now, executed)
        if above is None or (self._asked is not None and now - self._asked < ASK_AGAIN):
            return None
        self._asked = now
        return SnapshotRequest(above)

    def above(self, now: int, executed: int) -> int | None:
        """The height above which a snapshot is wanted; None: blocks will do."""
        if self._waiting is not None and now - self._since >= self._patience.stuck:
            return self._waiting - 1
        if self._far is not None and now - self._far <= STILL_FAR:
            return executed + self._patience.heights - 1
        return None


def require_certified(offer: SnapshotOffer, instance: Instance, verifier: Verifier) -> None:
    """Refuse an offer unless a quorum stands behind its header, and its history is the header's."""
    header = offer.header
    if header.version != instance.version:
        raise Refused(Reason.WRONG_VERSION, f"version {header.version}, this is {instance.version}")
    if (header.chain, header.shard, header.epoch) != (instance.chain, instance.shard, instance.epoch):
        raise Refused(Reason.WRONG_CHAIN, "header of a snapshot")
    if (offer.qc.block, offer.qc.view) != (header.id(), header.view):
        raise Refused(Reason.BAD_CERTIFICATE, "the certificate of a snapshot is of another header")
    try:
        history = MountainRange.decode(offer.history)
    except EncodingError as error:
        raise Refused(Reason.BAD_ANSWER, f"the history of a snapshot: {error}") from None
    if header.executed_height == 0 or history.size != header.executed_height:
        raise Refused(Reason.BAD_ANSWER, "the history of a snapshot is of another height")
    if history.root() != header.history_root:
        raise Refused(Reason.BAD_ANSWER, "the history of a snapshot is another one")
    verifier.qc(offer.qc)


def too_often(store: KeyValue, patience: Patience, height: int) -> bool:
    """Whether one more snapshot would not help: what was built on the last ones went wrong, again and again."""
    joins = _joins(store)
    return joins.count >= patience.joins and height < joins.height + patience.apart


def joins_after(store: KeyValue, patience: Patience, height: int) -> bytes:
    """What to note about a snapshot of this height."""
    joins = _joins(store)
    in_a_row = joins.count > 0 and height < joins.height + patience.apart
    return layout.encode(layout.Joins(joins.count + 1 if in_a_row else 1, height))


def _joins(store: KeyValue) -> layout.Joins:
    # None so far, or damaged: nothing but the count is lost.
    return layout.readable(layout.decode_joins, store.get(layout.JOINS)) or layout.Joins(0, 0)
