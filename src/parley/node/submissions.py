"""One connection's batches between submission and certified receipt, each of which gets exactly one answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from parley.application.admission import OpenedBatch
from parley.application.keeping import ReceiptPlace
from parley.application.operations import Operation
from parley.application.work import OPERATION
from parley.ledger.proofs import Anchor
from parley.mempool.pool import Intake
from parley.model.batches import CONTROL
from parley.model.names import Position
from parley.model.receipts import receipt_of
from parley.model.refusals import Busy, Expired, NotReady, PermissionDenied, Refused, UnknownClient
from parley.modules.registry.tables import CLIENTS
from parley.net.messages import Submit
from parley.node.access import Caller
from parley.node.driver import Driver
from parley.node.feed import Feed, Ticket
from parley.node.view import Ledger

RECEIPT_MS = 60_000  # after which a client is answered that its batch has no receipt yet


class Submissions:
    """The batches of one connection that have no answer yet.

    `wake` is called when a receipt has become ready, or has to be waited for; `receipted` gets how many ms one took,
    `charge` what an operation will touch at every broker, and `refuse` why a question gets no receipt.
    """

    def __init__(
        self,
        caller: Caller,
        driver: Driver,
        feed: Feed,
        ledger: Ledger,
        *,
        admit: Callable[[bytes], OpenedBatch],
        no_room: Callable[[], Busy | None],
        ticks: Callable[[], int],
        wake: Callable[[], None],
        receipted: Callable[[int], None],
        charge: Callable[[int], None],
        refuse: Callable[[int, Refused], None],
    ) -> None:
        self._caller = caller
        self._driver = driver
        self._feed = feed
        self._ledger = ledger
        self._archive = ledger.archive
        self._admit = admit
        self._no_room = no_room
        self._ticks = ticks
        self._wake = wake
        self._receipted = receipted
        self._charge = charge
        self._refuse = refuse
        self._judged_by: Anchor | None = None  # the certified header by which the client was last found live
        self._tickets: dict[int, tuple[Ticket, int]] = {}  # by question, oldest first; waited for until
        self._unsure: set[int] = set()  # questions that came while older receipts were missing here
        self._ready: list[tuple[int, Position]] = []

    def __len__(self) -> int:
        return len(self._tickets) + len(self._ready)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._tickets

    @property
    def waits(self) -> bool:
        return bool(self._tickets)

    def is_registered(self) -> bool:
        """Whether this broker knows the client. Where nothing is certified yet, all are taken for known."""
        if self._caller.administers is not None or self._feed.height == 0:
            return True
        return self._archive.holds(CLIENTS.key(self._caller.key))

    def submit(self, question: Submit) -> None:
        """Order the batch unless that was done before; its receipt will be ready later. Raises `Refused`."""
        self._require_live()
        batch = self._admit(question.batch)
        if batch.author != self._caller.key:
            raise PermissionDenied("sender", client=self._caller.title)
        known = self._archive.receipt(batch.digest)
        if known is not None and known.final:
            self._await(question.id, batch.digest, known)
            return
        # Operations are small, and some of them make room.
        if batch.batch.header.kind != CONTROL and (why := self._no_room()) is not None:
            raise why
        if batch.operation is not None:
            self._charge(self._cost(batch.operation))
        executed = self._feed.executed
        match self._driver.submit(batch):
            case Intake.TAKEN if self._feed.executed == executed:
                self._await(question.id, batch.digest)
            case Intake.TAKEN | Intake.KNOWN:
                self._await(question.id, batch.digest, self._placed(batch.digest, known))
            case Intake.FULL:
                raise Busy("full")
            case Intake.AUTHOR_FULL:
                raise Busy("author_full")
            case Intake.HALTED:
                raise NotReady("halted")

    def _cost(self, operation: Operation) -> int:
        """What the operation will touch, as far as this broker knows the state."""
        try:
            view = self._ledger.view()
            return self._archive.application.cost_of(view, self._caller.principal(view), operation)
        except Refused:  # there is nothing to judge by yet
            return OPERATION

    def _placed(self, digest: bytes, known: ReceiptPlace | None) -> ReceiptPlace | None:
        """The receipt that the batch has got by now; None: another one than the known one is to come."""
        found = self._archive.receipt(digest)
        if found != known:  # a network of one broker executes a batch while it takes it in
            return found
        return None if self._archive.waits(digest) else known

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

    def _require_live(self) -> None:
        """Raises `UnknownClient` or `Revoked`: what execution would refuse is not stored by every broker first."""
        caller, anchor = self._caller, self._feed.anchor
        if anchor is not None and anchor is self._judged_by:
            return
        if not self.is_registered():
            raise UnknownClient("client", client=caller.title, organisation=caller.organisation)
        try:
            principal = caller.principal(self._ledger.view())
        except Refused:  # nothing to judge by yet, or nothing more; the driver knows which
            return
        if principal.client is not None:
            principal.require_client()
        self._judged_by = anchor

    def _await(self, id_: int, digest: bytes, known: ReceiptPlace | None = None) -> None:
        """The receipt at the known place, or the next one that the batch gets, once it is certified."""
        place = None if known is None else (known.height, known.position)
        if not self._archive.is_whole():
            self._unsure.add(id_)
        if place is not None and place[0] <= self._feed.height:
            self._on_receipt(id_, place)
            return
        ticket = Ticket(digest, lambda found: self._on_receipt(id_, found))
        self._tickets[id_] = (ticket, self._ticks() + RECEIPT_MS)
        self._feed.waiting.wait(ticket, place)
        self._wake()

    def _on_receipt(self, id_: int, place: Position) -> None:
        if (waited := self._tickets.pop(id_, None)) is not None:
            self._receipted(self._ticks() - waited[1] + RECEIPT_MS)
        is_unsure = id_ in self._unsure or not self._archive.is_whole()
        self._unsure.discard(id_)
        # It may have been applied before, by a receipt that is missing here.
        if is_unsure and self._has_expired(place):
            self._refuse(id_, NotReady("filling_in"))
            return
        self._ready.append((id_, place))
        self._wake()

    def _has_expired(self, place: Position) -> bool:
        """Whether the receipt at this place says that the batch has expired."""
        height, position = place
        receipt = receipt_of(self._archive.block(height).leaf(position))
        rejected = None if receipt is None else receipt.rejected
        return rejected is not None and rejected.code == Expired.code

    def _forget(self, id_: int) -> None:
        self._unsure.discard(id_)
        if (found := self._tickets.pop(id_, None)) is not None:
            self._feed.waiting.forget(found[0])
