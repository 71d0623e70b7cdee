"""What a verified block adds to each ledger table.

`clients` and `topics` are the operations that changed them, as the ledger ordered them: every row is proven, which a list
of what there is now could not be. Summed up by key they give the state at any height.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from parley.client.ledger import VerifiedBlock
from parley.consensus.committee import quorum
from parley.crypto import merkle
from parley.crypto.qc import voters
from parley.model.batches import CONTROL, PUBLISH, Batch, BatchHeader
from parley.model.errors import Refusal
from parley.model.genesis import Genesis
from parley.model.operations import (
    AlterClient,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    GrantRight,
    Operation,
    RegisterClient,
    RevokeClient,
    RevokeRight,
    decode_operation,
)
from parley.model.receipts import (
    BatchReceipt,
    Closed,
    Done,
    Duplicate,
    Match,
    Published,
    Refused,
    Staged,
)

__all__ = ["Row", "block_rows", "client_rows", "operation_rows", "receipt_rows", "topic_rows", "vote_rows"]

Row = tuple[Any, ...]


def _time(block: VerifiedBlock) -> int:
    return block.header.time * 1_000


# -- blocks and votes ------------------------------------------------------------------------------------------------


def block_rows(block: VerifiedBlock, genesis: Genesis) -> Iterator[Row]:
    header = block.header
    receipts = [leaf for leaf in block.leaves if isinstance(leaf, BatchReceipt)]
    yield (
        block.height,
        _time(block),
        block.id,
        header.parent,
        header.epoch,
        header.view,
        header.view - header.justify.view - 1,
        genesis.brokers[header.proposer].name,
        len(block.batches),
        sum(receipt.count for receipt in receipts if isinstance(receipt.outcome, Published)),
        sum(isinstance(receipt.outcome, Refused) for receipt in receipts),
        header.executed_height,
        header.state_root,
        header.history_root,
        header.batches_root,
        merkle.root(block.raw_leaves),
    )


def vote_rows(block: VerifiedBlock, genesis: Genesis) -> Iterator[Row]:
    """Who stands in the certificates that the block carries. A quorum is enough: who is missing may have been late."""
    header, size = block.header, len(genesis.brokers)
    voted = voters(header.justify.votes.bitmap, size) or ()
    if len(voted) >= quorum(size):  # the empty certificate of block 0 is nobody's vote
        below = (block.height - 1, header.parent)
        for index, broker in enumerate(genesis.brokers):
            yield (
                *(block.height, _time(block), "vote", header.justify.view, *below),
                *(broker.name, broker.organisation, index in voted, None),
            )
    if header.tc is not None:
        gave_up = voters(header.tc.timeouts.bitmap, size) or ()
        known = dict(zip(gave_up, header.tc.qc_views, strict=False))
        for index, broker in enumerate(genesis.brokers):
            yield (
                *(block.height, _time(block), "timeout", header.tc.view, None, None),
                *(broker.name, broker.organisation, index in known, known.get(index)),
            )


# -- receipts and operations -----------------------------------------------------------------------------------------


def receipt_rows(block: VerifiedBlock, _: Genesis) -> Iterator[Row]:
    """Every leaf of the block's receipts tree, with its bytes."""
    for position, (raw, leaf) in enumerate(zip(block.raw_leaves, block.leaves, strict=True)):
        place = (block.height, position, _time(block))
        match leaf:
            case BatchReceipt():
                yield (
                    *(*place, "batch", leaf.topic, leaf.partition, leaf.digest, leaf.publisher, leaf.client),
                    *(leaf.count, leaf.code.value, _detail(leaf), _first_offset(leaf), None, None, None, raw),
                )
            case Match():
                offsets = [offset for offset, _ in leaf.items]
                yield (
                    *(
                        *place,
                        "match",
                        leaf.topic,
                        leaf.partition,
                        None,
                        None,
                        None,
                        len(offsets),
                        None,
                        None,
                    ),
                    *(None, leaf.constraint, leaf.first_ps, offsets, raw),
                )
            case Closed():
                yield (
                    *(*place, "closed", leaf.topic, leaf.partition, None, None, None, 0, None, None),
                    *(None, leaf.constraint, leaf.final_ps, None, raw),
                )


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A receipt with what its batch said; None: the body is erased, and perhaps the header as well."""

    position: int
    receipt: BatchReceipt
    header: BatchHeader | None
    operation: Operation | None
    own: bool  # the batch is one of this block; else one of an earlier stage, numbered here

    @property
    def kind(self) -> str | None:
        if not self.own:
            return "numbered"
        if self.header is None:
            return None
        if self.header.kind != CONTROL:
            return "publish" if self.header.kind == PUBLISH else "stage"
        return None if self.operation is None else _KINDS[type(self.operation)]


def _ordered(block: VerifiedBlock) -> Iterator[_Ordered]:
    contents = dict(zip(block.batches, zip(block.opened, block.remains, strict=True), strict=True))
    for position, leaf in enumerate(block.leaves):
        if not isinstance(leaf, BatchReceipt):
            continue
        batch, remains = contents.pop(leaf.digest, (None, None))
        own = batch is not None or remains is not None or _is_own(leaf, position, block)
        header = batch.header if batch is not None else None if remains is None else remains.header
        yield _Ordered(position, leaf, header, None if batch is None else _operation(batch), own)


def _is_own(leaf: BatchReceipt, position: int, block: VerifiedBlock) -> bool:
    """The receipts of a block's own batches come first."""
    return position < len(block.batches) and leaf.digest in block.batches


def _operation(batch: Batch) -> Operation | None:
    if batch.header.kind != CONTROL:
        return None
    try:
        return decode_operation(batch.messages[0].payload)
    except Refusal:
        return None  # ordered and refused: the receipt says so


def operation_rows(block: VerifiedBlock, _: Genesis) -> Iterator[Row]:
    for one in _ordered(block):
        receipt, header = one.receipt, one.header
        yield (
            *(block.height, one.position, _time(block), one.kind, receipt.client, receipt.publisher),
            *(receipt.topic, receipt.partition, receipt.count, receipt.digest),
            *((None, None, None) if header is None else (header.session, header.sequence, header.not_after)),
            *(_outcome(receipt), receipt.code.value, _detail(receipt), _first_offset(receipt)),
            None if one.operation is None else _json(one.operation),
        )


def _detail(receipt: BatchReceipt) -> str | None:
    match receipt.outcome:
        case Refused():
            return receipt.outcome.detail
        case Duplicate():
            height, position = receipt.outcome.original
            return f"applied before, at height {height}, receipt {position}"
        case Staged():
            return f"to be committed up to height {receipt.outcome.until}"
        case _:
            return None


def _outcome(receipt: BatchReceipt) -> str:
    return type(receipt.outcome).__name__.lower()


def _first_offset(receipt: BatchReceipt) -> int | None:
    return receipt.outcome.first_offset if isinstance(receipt.outcome, Published) else None


def _json(operation: Operation) -> str:
    """The operation's fields by name; bytes as hexadecimal digits."""
    fields = {name: getattr(operation, name) for name in operation.__struct_fields__}
    return msgspec.json.encode(_plain(fields)).decode()


def _plain(value: object) -> object:
    match value:
        case bytes():
            return value.hex()
        case tuple():
            return [_plain(one) for one in value]
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case msgspec.Struct():
            return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        case _:
            return value


# -- what changed clients and topics ---------------------------------------------------------------------------------


def _changes(block: VerifiedBlock, genesis: Genesis) -> Iterator[tuple[Row, str, Operation]]:
    """Operations of administrators that took effect: their place and who gave them, the organisation, the operation."""
    administers = {key: one.name for one in genesis.organisations for key in one.admins}
    for one in _ordered(block):
        if one.operation is not None and isinstance(one.receipt.outcome, Done):
            place = (block.height, one.position, _time(block), one.receipt.client, one.receipt.publisher)
            yield place, administers.get(one.receipt.publisher, ""), one.operation


def client_rows(block: VerifiedBlock, genesis: Genesis) -> Iterator[Row]:
    for place, organisation, operation in _changes(block, genesis):
        key = values = removed = right = None
        match operation:
            case RegisterClient():
                key, values = operation.key, _texts(operation.attributes)
            case AlterClient():
                values, removed = _texts(operation.set), list(operation.remove)
            case GrantRight() | RevokeRight():
                right = operation.right
            case RevokeClient():
                pass
            case _:
                continue
        change = _KINDS[type(operation)]
        yield (*place, change, organisation, operation.name, key, values, removed, right)


def topic_rows(block: VerifiedBlock, genesis: Genesis) -> Iterator[Row]:
    for place, organisation, operation in _changes(block, genesis):
        partitions = publish = subscribe = retention = matching = payload = None
        match operation:
            case CreateTopic():
                policy = operation.policy
                partitions, retention = operation.partitions, policy.retention
                publish, subscribe = operation.publish, operation.subscribe
                matching, payload = policy.matching, policy.payload
            case AlterTopic():
                partitions, retention = operation.partitions, operation.retention
                publish, subscribe = operation.publish, operation.subscribe
            case DeleteTopic():
                pass
            case _:
                continue
        change = _KINDS[type(operation)]
        settings = (partitions, publish, subscribe, retention, matching, payload)
        yield (*place, change, organisation, operation.name, *settings)


def _texts(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Attributes of any type as texts: true and false as in rules."""
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in pairs]


def _word(kind: type) -> str:
    """`RegisterClient` as `register_client`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind.__name__)[1:]


_KINDS: Mapping[type, str] = {kind: _word(kind) for kind in Operation.__args__}
