"""Checks of a batch before order, which need no state. An opened batch is kept, so that applying costs no decoding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from struct import Struct

import msgspec

from parley.application.operations import Operation
from parley.crypto.ed25519 import SIGNATURE_SIZE
from parley.ledger.application import AdmittedBatch
from parley.model.batches import CONTROL, Batch, BatchHeader, open_batch, require_ledger
from parley.model.refusals import Malformed, Refused

MAX_KEPT = 4_096  # opened batches
MAX_KEPT_BYTES = 64 * 1024 * 1024
MAX_VOUCHED = 4_096  # bodies that were checked elsewhere and not opened yet
MAX_VOUCHED_BYTES = 16 * 1024 * 1024
_MESSAGE_COST = 256  # bytes that an opened message takes besides its own


class OpenedBatch(AdmittedBatch, frozen=True, kw_only=True):
    """A batch that passed every check that needs no state; control batches with their operation."""

    batch: Batch
    operation: Operation | None

    @property
    def size(self) -> int:
        """Bytes, as it was signed."""
        return len(self.body)

    @property
    def cost(self) -> int:
        return len(self.body) + _MESSAGE_COST * self.batch.header.count


class Admission:
    """Opens batches, and keeps those that wait for order within a limit."""

    def __init__(
        self,
        ledger: tuple[bytes, int],
        decode_operation: Callable[[bytes], Operation],
        kinds: Collection[int],
    ) -> None:
        """`ledger`: chain and shard; `kinds`: of the batches besides control batches that can be applied."""
        self._chain, self._shard = ledger
        self._decode_operation = decode_operation
        self._kinds = kinds
        self._kept: OrderedDict[bytes, OpenedBatch] = OrderedDict()
        self._cost = 0
        self._vouched: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()
        self._vouched_bytes = 0

    def admit(self, body: bytes) -> OpenedBatch:
        """Open a batch that is to be ordered. Raises `Refused`."""
        opened = self._open(body)
        self._keep(opened)
        return opened

    def is_body(self, body: bytes, digest: bytes) -> bool:
        """Whether `admit` would find this digest; the batch does not wait for order, so it takes no place here."""
        try:
            return self._open(body).digest == digest
        except Refused:
            return False

    def vouch(self, body: bytes, digest: bytes) -> None:
        """Note that this body has passed every check, under this digest: it is only decoded when it is opened next."""
        self._vouched_for(body[-SIGNATURE_SIZE:])
        self._vouched[body[-SIGNATURE_SIZE:]] = body, digest
        self._vouched_bytes += len(body)
        while len(self._vouched) > MAX_VOUCHED or self._vouched_bytes > MAX_VOUCHED_BYTES:
            self._vouched_for(next(iter(self._vouched)))

    def recall(self, digest: bytes, body: bytes) -> OpenedBatch:
        """An admitted batch: from memory, or decoded again without its checks, which were made when it was stored."""
        opened = self._kept.get(digest)
        if opened is None:
            opened = self._opened(digest, _batches.decode(body), body)
            self._keep(opened)
        return opened

    def forget(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            opened = self._kept.pop(digest, None)
            if opened is not None:
                self._cost -= opened.cost

    def _open(self, body: bytes) -> OpenedBatch:
        vouched = self._vouched_for(body[-SIGNATURE_SIZE:]) if self._vouched else None
        # A signature only finds the body quickly: what counts is that it is the same to its last byte.
        if vouched is not None and vouched[0] == body:
            digest, batch = vouched[1], _batches.decode(body)
            require_ledger(batch.header, self._shard)  # workers do not know it
        else:
            digest, batch = open_batch(body, self._chain, self._shard)
        return self._opened(digest, batch, body)

    def _opened(self, digest: bytes, batch: Batch, body: bytes) -> OpenedBatch:
        header = batch.header
        if header.kind != CONTROL and header.kind not in self._kinds:
            raise Malformed("kind", kind=header.kind)
        operation = self._decode_operation(batch.messages[0].payload) if header.kind == CONTROL else None
        return OpenedBatch(
            digest,
            header.publisher,
            body,
            _session(header),
            header.sequence,
            header.sequence + header.count,
            batch=batch,
            operation=operation,
        )

    def _vouched_for(self, signature: bytes) -> tuple[bytes, bytes] | None:
        """The vouched body that ends with this signature, and its digest; both are forgotten."""
        found = self._vouched.pop(signature, None)
        if found is not None:
            self._vouched_bytes -= len(found[0])
        return found

    def _keep(self, opened: OpenedBatch) -> None:
        self.forget([opened.digest])
        self._kept[opened.digest] = opened
        self._cost += opened.cost
        while len(self._kept) > MAX_KEPT or self._cost > MAX_KEPT_BYTES:
            self.forget([next(iter(self._kept))])


def _session(header: BatchHeader) -> bytes:
    """What a publisher's batches have in common that apply in sequence (P3). All parts but the last have a fixed size."""
    return (
        header.session + _FIXED.pack(header.kind, header.partition, *header.topic_id) + header.topic.encode()
    )


_FIXED = Struct(">BIQI")
_batches = msgspec.msgpack.Decoder(Batch)
