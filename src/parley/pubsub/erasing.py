"""Which bodies a broker has to keep, and which it has to erase because their log starts behind them (P5, P21).

A log whose start moves is listed, and so is a batch that was erased and came again, or was staged and never will be
numbered. All wait `GRACE` blocks: readers who stand on a slightly older header, and brokers that are a little behind,
still need the bodies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from parley.crypto.encoding import u64
from parley.ledger.application import Erasure, KeyValue
from parley.ledger.bodies import GRACE
from parley.ledger.indices import (
    BODIES_TO_ERASE,
    LOGS_TO_ERASE,
    BatchPlace,
    LogToErase,
    body_to_erase_key,
    encode_place,
    log_to_erase_key,
    offset_key,
)
from parley.model.errors import Code
from parley.model.receipts import BatchReceipt, Published
from parley.model.records import PartitionRecord, decode_record, partition_key
from parley.pubsub.deadlines import Log
from parley.pubsub.indexing import NOT_FINAL, read_place, receipt_place
from parley.pubsub.records import staged_key
from parley.pubsub.state import ENTRIES, State

__all__ = ["GRACE", "bodies_to_erase", "erase", "is_kept", "is_over", "logs_to_erase"]

_Entries = Iterable[tuple[bytes, bytes]]


def logs_to_erase(height: int, moved: Mapping[Log, int], state: State, store: KeyValue) -> _Entries:
    """`moved`: where the logs started before this block. A log that is listed already is looked at again when it is done."""
    for (topic, partition), start in moved.items():
        key = log_to_erase_key(topic, partition)
        if store.get(key) is None:
            head = state.get(PartitionRecord, partition_key(topic, partition))
            assert head is not None, "every partition of a topic has a head"
            yield key, encode_place(LogToErase(start, head.log_start_offset, height))


def bodies_to_erase(
    height: int, receipts: Iterable[BatchReceipt], dropped: Iterable[bytes], store: KeyValue
) -> _Entries:
    """Whoever kept a batch can have it ordered again, and then every broker has stored its body once more.

    So a broker may also leave a listed body alone that waits for order: when it has a receipt, it is listed again.
    """
    again = (one.digest for one in receipts if not isinstance(one.outcome, Published) and is_over(one, store))
    for name in dict.fromkeys((*again, *dropped)):
        yield body_to_erase_key(name), u64(height)


def is_kept(receipt: BatchReceipt, store: KeyValue) -> bool:
    """Whether the receipt asks for the body of its batch. One that decides nothing does not, if another one does."""
    if receipt.code is Code.DUPLICATE or receipt.code in NOT_FINAL:
        place = receipt_place(store, receipt.digest)
        if place is not None and place.final:
            return False
    return not is_over(receipt, store)


def is_over(receipt: BatchReceipt, store: KeyValue) -> bool:
    """Whether the batch of the receipt was published, then or before, and all of it lies behind the start of its log.

    Or it was staged, and is neither published nor staged any more.
    """
    if not receipt.topic:
        return False
    if isinstance(receipt.outcome, Published):
        first: int | None = receipt.outcome.first_offset
    else:
        place = receipt_place(store, receipt.digest)
        if place is not None and place.staged:
            return store.get(ENTRIES + staged_key(receipt.digest)) is None
        first = None if place is None else place.first_offset
    return first is not None and first + receipt.count <= _start(store, receipt.topic, receipt.partition)


def erase(store: KeyValue, height: int, limit: int) -> Erasure:
    """Up to `limit` batches, and the lists without them; `height` is that of the state in the store."""
    batches: list[bytes] = []
    writes: list[tuple[bytes, bytes | None]] = []
    # More are looked at than may go: those that come again and again must not hide the others.
    for key, value in islice(store.scan(BODIES_TO_ERASE), 16 * limit):
        if int.from_bytes(value, "big") + GRACE <= height and len(batches) < limit:
            batches.append(key[len(BODIES_TO_ERASE) :])
            writes.append((key, None))
    for key, value in store.scan(LOGS_TO_ERASE):
        if len(batches) >= limit:
            break
        readable = read_place(LogToErase, value)
        if readable is not None and readable.height + GRACE > height:
            continue
        topic, partition = key[len(LOGS_TO_ERASE) : -5].decode(), int.from_bytes(key[-4:], "big")
        start = _start(store, topic, partition)
        listed = readable or LogToErase(0, start, 0)
        reached = listed.start
        end = min(listed.end, start)  # whatever a damaged list says, what the log still has stays
        for place in islice(_batches(store, topic, partition, listed.start, end), limit - len(batches)):
            batches.append(place.digest)
            reached += place.count
        left = _left(listed, reached, start, height)
        if left != listed:
            writes.append((key, None if left is None else encode_place(left)))
    return Erasure(tuple(batches), tuple(writes))


def _batches(store: KeyValue, topic: str, partition: int, offset: int, end: int) -> Iterator[BatchPlace]:
    """The listed batches as far as the index has them: a broker that had to get old blocks may still fill it in."""
    while offset < end:
        place = read_place(BatchPlace, store.get(offset_key(topic, partition, offset)))
        if place is None or offset + place.count > end:
            return
        yield place
        offset += place.count


def _left(listed: LogToErase, reached: int, log_start: int, height: int) -> LogToErase | None:
    if reached < listed.end:
        return LogToErase(reached, listed.end, listed.height)
    # The log has moved on since it was listed; what this adds waits in its turn.
    return LogToErase(reached, log_start, height) if reached < log_start else None


def _start(store: KeyValue, topic: str, partition: int) -> int:
    value = store.get(ENTRIES + partition_key(topic, partition))
    return 0 if value is None else decode_record(PartitionRecord, value).log_start_offset
