"""What a verified block adds to each ledger table; what its batches and leaves say follows from the application.

The tables that modules declare, such as `clients` and `topics`, are the operations that changed something, as the ledger
ordered them: every row is proven, which a list of what there is now could not be. Summed up by key they give the state at
any height.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from parley.application.application import Application
from parley.application.operations import Operation
from parley.application.rows import ChangeTable
from parley.client.ledger import VerifiedBlock
from parley.consensus.committee import Committee, committees_of
from parley.consensus.types import Header
from parley.crypto import merkle
from parley.crypto.qc import voters
from parley.model.batches import CONTROL, Batch, BatchHeader
from parley.model.codec import by_name
from parley.model.genesis import Genesis
from parley.model.principals import Administrators
from parley.model.receipts import BatchReceipt, receipt_of
from parley.model.refusals import Refused
from parley.modules.publishing.receipts import first_offset

Row = tuple[Any, ...]


def _time(block: VerifiedBlock) -> int:
    return block.header.time * 1_000


# -- blocks and votes ------------------------------------------------------------------------------------------------


def block_rows(block: VerifiedBlock, genesis: Genesis, _: Application) -> Iterator[Row]:
    header = block.header
    receipts = [receipt for leaf in block.leaves if (receipt := receipt_of(leaf)) is not None]
    yield (
        block.height,
        _time(block),
        block.id,
        header.parent,
        header.epoch,
        header.view,
        header.view - header.justify.view - 1,
        _committee(header, genesis).names[header.proposer],
        len(block.batches),
        sum(receipt.count for receipt in receipts if first_offset(receipt) is not None),
        sum(receipt.rejected is not None for receipt in receipts),
        header.executed_height,
        header.state_root,
        header.history_root,
        header.batches_root,
        merkle.root(block.raw_leaves),
    )


def vote_rows(block: VerifiedBlock, genesis: Genesis, _: Application) -> Iterator[Row]:
    """Which brokers voted in the certificates that the block carries. A quorum is enough: the others may have been late."""
    header, committee = block.header, _committee(block.header, genesis)
    voted = voters(header.justify.votes.bitmap, committee.size) or ()
    if len(voted) >= committee.quorum:  # the certificate of block 0 is empty
        below = (block.height - 1, header.parent)
        for index, broker in enumerate(committee.members):
            yield (
                *(block.height, _time(block), "vote", header.justify.view, *below),
                *(broker.name, broker.organisation, index in voted, None),
            )
    if header.tc is not None:
        gave_up = voters(header.tc.timeouts.bitmap, committee.size) or ()
        known = dict(zip(gave_up, header.tc.qc_views, strict=False))
        for index, broker in enumerate(committee.members):
            yield (
                *(block.height, _time(block), "timeout", header.tc.view, None, None),
                *(broker.name, broker.organisation, index in known, known.get(index)),
            )


def _committee(header: Header, genesis: Genesis) -> Committee:
    return committees_of(genesis)[header.shard]


# -- receipts and operations -----------------------------------------------------------------------------------------


def receipt_rows(
    columns: Sequence[str], block: VerifiedBlock, _genesis: Genesis, _application: Application
) -> Iterator[Row]:
    """Every leaf of the block's receipts tree, with its bytes. `columns` are those that a leaf itself fills."""
    for position, (raw, leaf) in enumerate(zip(block.raw_leaves, block.leaves, strict=True)):
        yield (block.height, position, _time(block), leaf.kind, *map(leaf.row().get, columns), raw)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A receipt with what its batch said; None: the body is erased, and perhaps the header as well."""

    position: int
    receipt: BatchReceipt
    header: BatchHeader | None
    operation: Operation | None
    own: bool  # the batch is one of this block; else one of an earlier block, finished here

    def kind(self, application: Application) -> str | None:
        if not self.own:
            return "numbered"
        if self.header is None:
            return None
        if self.header.kind != CONTROL:
            known = application.batch_kinds.get(self.header.kind)
            return None if known is None else known.name
        return None if self.operation is None else self.operation.name_of()


def _ordered(block: VerifiedBlock, application: Application) -> Iterator[_Ordered]:
    contents = dict(zip(block.batches, zip(block.opened, block.remains, strict=True), strict=True))
    for position, leaf in enumerate(block.leaves):
        if (receipt := receipt_of(leaf)) is None:
            continue
        batch, remains = contents.pop(receipt.digest, (None, None))
        own = batch is not None or remains is not None or _is_own(receipt, position, block)
        header = batch.header if batch is not None else None if remains is None else remains.header
        operation = None if batch is None else _operation(batch, application)
        yield _Ordered(position, receipt, header, operation, own)


def _is_own(receipt: BatchReceipt, position: int, block: VerifiedBlock) -> bool:
    """The receipts of a block's own batches come first."""
    return position < len(block.batches) and receipt.digest in block.batches


def _operation(batch: Batch, application: Application) -> Operation | None:
    if batch.header.kind != CONTROL:
        return None
    try:
        return application.decode_operation(batch.messages[0].payload)
    except Refused:
        return None  # ordered and refused: the receipt says so


def operation_rows(block: VerifiedBlock, _: Genesis, application: Application) -> Iterator[Row]:
    for one in _ordered(block, application):
        receipt, header = one.receipt, one.header
        yield (
            *(block.height, one.position, _time(block), one.kind(application)),
            *(receipt.client, receipt.publisher),
            *(receipt.topic, receipt.partition, receipt.count, receipt.digest),
            *((None, None, None) if header is None else (header.session, header.sequence, header.not_after)),
            *(receipt.outcome_name, receipt.code, receipt.outcome.detail, receipt.outcome.place),
            None if one.operation is None else msgspec.json.encode(by_name(one.operation)).decode(),
        )


# -- what modules declare --------------------------------------------------------------------------------------------


def change_rows(
    table: ChangeTable, block: VerifiedBlock, genesis: Genesis, application: Application
) -> Iterator[Row]:
    """Operations that took effect and changed what the table is about, with the client or administrator that asked for them.

    The organisation is the one that an administrator acts for, or else the client's own.
    """
    administrators = Administrators(genesis)
    for one in _ordered(block, application):
        operation, receipt = one.operation, one.receipt
        if operation is None or not receipt.is_done or (values := table.row(operation)) is None:
            continue
        administered = administrators.organisation_of(receipt.publisher)
        organisation = administered or receipt.client.partition("/")[0]
        # No client can have a name with blanks in it.
        by = receipt.client or (f"administrator of {administered}" if administered else "")
        yield (
            *(block.height, one.position, _time(block), by, receipt.publisher),
            *(operation.name_of(), organisation),
            *map(values.get, table.columns),
        )
