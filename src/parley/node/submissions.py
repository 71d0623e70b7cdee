"""One connection's batches between submission and certified receipt, each of which gets exactly one answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from parley.consensus.errors import Reason
from parley.ledger.proofs import Anchor
from parley.model.batches import CONTROL, Batch
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.model.records import ClientRecord, client_key
from parley.net.messages import Submit
from parley.node.access import Asker
from parley.node.driver import Driver
from parley.node.feed import Feed, Ticket
from parley.node.view import Ledger

__all__ = ["RECEIPT_MS", "Submissions"]

RECEIPT_MS = 60_000  # after which a client is told that its batch has no receipt yet

# What a client is told of a batch that the replica does not take.
_CODES = {
    Reason.QUOTA: Code.BUSY,
    Reason.HALTED: Code.NOT_READY,
    Reason.MALFORMED: Code.MALFORMED,
    Reason.OVERSIZED: Code.OVERSIZED,
    Reason.BAD_SIGNATURE: Code.BAD_SIGNATURE,
    Reason.WRONG_CHAIN: Code.WRONG_CHAIN,
}


class Submissions:
    """`wake` is called when a receipt has become ready, or has to be waited for; `receipted` is told how many ms one took."""

    def __init__(
        self,
        asker: Asker,
        driver: Driver,
        feed: Feed,
        ledger: Ledger,
        *,
        open_batch: Callable[[bytes], tuple[bytes, Batch]],
        no_room: Callable[[], str],
        ticks: Callable[[], int],
        wake: Callable[[], None],
        receipted: Callable[[int], None],
    ) -> None:
        self._asker = asker
        self._driver = driver
        self._feed = feed
        self._ledger = ledger
        self._archive = ledger.archive
        self._open_batch = open_batch
        self._no_room = no_room
        self._ticks = ticks
        self._wake = wake
        self._receipted = receipted
        self._judged_by: Anchor | None = None  # the header by which the client was in good standing
        self._tickets: dict[int, tuple[Ticket, int]] = {}  # by question, oldest first; waited for until
        self._ready: list[tuple[int, Position]] = []

    def __len__(self) -> int:
        return len(self._tickets) + len(self._ready)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._tickets

    @property
    def waits(self) -> bool:
        return bool(self._tickets)

    def is_registered(self) -> bool:
        """Whether this broker has heard of the client. Where nothing is certified yet, nobody is turned away."""
        if self._asker.admin or self._feed.height == 0:
            return True
        return self._archive.holds(client_key(self._asker.key))

    def submit(self, question: Submit) -> None:
        """Order the batch unless that was done before; its receipt will be ready later. Raises `Refusal`."""
        self._require_standing()
        name, batch = self._open_batch(question.batch)
        if batch.header.publisher != self._asker.key:
            raise Refusal(
                Code.PERMISSION_DENIED, f"the batch is not signed by {self._asker.title}, who sends it"
            )
        known = self._archive.receipt(name)
        if known is not None and known.final:
            self._await(question.id, name, (known.height, known.position))
            return
        # Operations are small, and some of them make room.
        if batch.header.kind != CONTROL and (why := self._no_room()):
            raise Refusal(Code.BUSY, why)
        self._await(question.id, name)
        refused = self._driver.submit(question.batch)
        if refused is None:
            return
        if refused.reason is not Reason.REPLAYED:
            self._forget(question.id)
            raise Refusal(_CODES.get(refused.reason, Code.BUSY), refused.detail or refused.reason.value)
        if known is not None and not self._archive.waits(name):  # no other receipt will come
            self._forget(question.id)
            self._await(question.id, name, (known.height, known.position))

    def ready(self) -> list[tuple[int, Position]]:
        """The certified receipts that have not been taken yet, by question."""
        ready, self._ready = self._ready, []
        return ready

    def give_up(self) -> list[int]:
        """The questions that have waited too long; they are forgotten."""
        now = self._ticks()
        over = [id_ for id_, _ in takewhile(lambda waited: waited[1][1] <= now, self._tickets.items())]
        for id_ in over:
            self._forget(id_)
        return over

    def close(self) -> None:
        for id_ in list(self._tickets):
            self._forget(id_)

    def _require_standing(self) -> None:
        """What execution would refuse anyway is not stored first: every broker keeps what is ordered for ever."""
        asker, anchor = self._asker, self._feed.anchor
        if anchor is not None and anchor is self._judged_by:
            return
        if not self.is_registered():
            raise Refusal(
                Code.UNKNOWN_CLIENT,
                f"{asker.title} is not registered; an administrator of {asker.organisation} can register it",
            )
        try:
            client = self._ledger.view().get(ClientRecord, client_key(asker.key))
        except Refusal:  # nothing to judge by yet, or nothing more; the driver knows which
            return
        if client is not None and client.revoked:
            raise Refusal(Code.REVOKED, f"{asker.title} was revoked at height {client.changed}")
        self._judged_by = anchor

    def _await(self, id_: int, name: bytes, place: Position | None = None) -> None:
        """The receipt at `place`, or the next one that the batch gets, once it is certified."""
        if place is not None and place[0] <= self._feed.height:
            self._on_receipt(id_, place)
            return
        ticket = Ticket(name, lambda found: self._on_receipt(id_, found))
        self._tickets[id_] = (ticket, self._ticks() + RECEIPT_MS)
        self._feed.waiting.wait(ticket, place)
        self._wake()

    def _on_receipt(self, id_: int, place: Position) -> None:
        if (waited := self._tickets.pop(id_, None)) is not None:
            self._receipted(self._ticks() - waited[1] + RECEIPT_MS)
        self._ready.append((id_, place))
        self._wake()

    def _forget(self, id_: int) -> None:
        found = self._tickets.pop(id_, None)
        if found is not None:
            self._feed.waiting.forget(found[0])
