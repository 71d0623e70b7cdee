"""What a broker can tell of a batch before order; what was opened once is kept, so that applying costs no decoding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from parley.crypto.ed25519 import SIGNATURE_SIZE
from parley.model.batches import CONTROL, Batch, open_batch
from parley.model.errors import Refusal, malformed
from parley.model.expressions import ExpressionError, parse_constraint, parse_rule
from parley.model.operations import (
    AlterTopic,
    CreateTopic,
    Operation,
    Subscribe,
    Unsubscribe,
    decode_operation,
)

__all__ = ["Admission", "Opened"]

MAX_KEPT = 4_096  # opened batches
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_VOUCHED = 4_096  # bodies that were checked elsewhere and not opened yet
MAX_VOUCHED_BYTES = 16 * 1024 * 1024
_MESSAGE_COST = 256  # bytes that an opened message takes besides its own


class Opened(Struct, frozen=True):
    """A batch that passed every check that needs no state; control batches with their operation."""

    digest: bytes
    batch: Batch
    operation: Operation | None
    size: int  # bytes, as it was signed
    cost: int


class Admission:
    """Opens batches, and keeps those that wait for order within a limit."""

    def __init__(self, chain: bytes) -> None:
        self._chain = chain
        self._kept: OrderedDict[bytes, Opened] = OrderedDict()
        self._cost = 0
        self._newest: tuple[bytes, Opened] | None = None
        self._vouched: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()
        self._vouched_bytes = 0

    def open(self, body: bytes) -> Opened:
        """Raises `Refusal`."""
        # A node looks at a client's batch before the replica does: one signature check is enough.
        if self._newest is not None and self._newest[0] == body:
            self._keep(self._newest[1])
            return self._newest[1]
        opened = self._opened(body)
        self._newest = body, opened
        self._keep(opened)
        return opened

    def is_body(self, body: bytes, name: bytes) -> bool:
        """Whether `open` would name this body so; it does not wait for order, so it takes no place here."""
        try:
            return self._opened(body).digest == name
        except Refusal:
            return False

    def vouch(self, body: bytes, name: bytes) -> None:
        """This body has passed every check that needs no state, under this digest: opening it once is only decoding it."""
        self._vouched_for(body[-SIGNATURE_SIZE:])
        self._vouched[body[-SIGNATURE_SIZE:]] = body, name
        self._vouched_bytes += len(body)
        while len(self._vouched) > MAX_VOUCHED or self._vouched_bytes > MAX_VOUCHED_BYTES:
            self._vouched_for(next(iter(self._vouched)))

    def recall(self, name: bytes, body: bytes) -> Opened:
        """An admitted batch, from memory if it is still there."""
        return self._kept.get(name) or self.open(body)

    def forget(self, names: Iterable[bytes]) -> None:
        for name in names:
            opened = self._kept.pop(name, None)
            if opened is not None:
                self._cost -= opened.cost

    def _opened(self, body: bytes) -> Opened:
        vouched = self._vouched_for(body[-SIGNATURE_SIZE:]) if self._vouched else None
        # A signature only finds the body quickly: what counts is that it is the same to its last byte.
        if vouched is not None and vouched[0] == body:
            name, batch = vouched[1], _batches.decode(body)
        else:
            name, batch = open_batch(body, self._chain)
        operation = None
        if batch.header.kind == CONTROL:
            operation = decode_operation(batch.messages[0].payload)
            _require_readable(operation)
        return Opened(name, batch, operation, len(body), len(body) + _MESSAGE_COST * batch.header.count)

    def _vouched_for(self, signature: bytes) -> tuple[bytes, bytes] | None:
        """The body that ends with it, and its digest; they are forgotten with this."""
        found = self._vouched.pop(signature, None)
        if found is not None:
            self._vouched_bytes -= len(found[0])
        return found

    def _keep(self, opened: Opened) -> None:
        self.forget([opened.digest])
        self._kept[opened.digest] = opened
        self._cost += opened.cost
        while len(self._kept) > MAX_KEPT or self._cost > MAX_KEPT_BYTES:
            self.forget([next(iter(self._kept))])


def _require_readable(operation: Operation) -> None:
    """Rules and constraints are parsed before order, where whoever wrote them is told the place of the fault (P24)."""
    try:
        match operation:
            case CreateTopic() | AlterTopic():
                parse_rule(operation.publish or "")
                parse_rule(operation.subscribe or "")
            case Subscribe() | Unsubscribe():
                parse_constraint(operation.constraint)
            case _:
                pass
    except ExpressionError as error:
        raise malformed(str(error)) from None


_batches = msgspec.msgpack.Decoder(Batch)
