"""Proof files of operations and of entries of the state: what a third party checks with the genesis file alone (P7).

As with `parley.modules.publishing.proof`, a file is JSON in one canonical form and every byte of it is bound: by a hash,
by a signature, or by repeating what those cover. Which operations and tables there are is known by the application.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from parley.application.application import Application
from parley.application.operations import Operation
from parley.application.tables import K, R, Table
from parley.crypto import merkle
from parley.ledger.proofs import Anchor, BlockProof, ProofError, StateEntry, Trust
from parley.model import leaves
from parley.model.batches import BatchHeader, Message, digest_of, is_control, is_signed, is_timely
from parley.model.codec import DECODE_ERRORS
from parley.model.names import U64, Position, Signature
from parley.model.receipts import BatchReceipt, receipt_of
from parley.model.refusals import Refused
from parley.modules.publishing.proof import DISAGREES, MAX_PROOF, PublicationProof, decode_publication

KeyPart = int | str


class OperationProof(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="parley operation proof 2"
):
    """What one ordered operation did. The first fields say in plain words what the rest proves.

    `code` is "Ok" if it took effect. `client` is "organisation/name" as the registry had it.
    """

    operation: str
    client: str
    code: str
    height: U64
    time: U64
    batch: BatchHeader
    message: Message  # holds the operation
    signature: Signature
    receipt: BlockProof
    anchor: Anchor

    @classmethod
    def of(
        cls,
        receipt: tuple[BatchReceipt, BlockProof, Anchor],
        batch: tuple[BatchHeader, Message, bytes],
        operation: Operation,
    ) -> OperationProof:
        """From a receipt with its proof, and (header, message, signature) of the operation's batch."""
        leaf, proof, anchor = receipt
        header, message, signature = batch
        return cls(
            operation.name_of(),
            leaf.client,
            leaf.code,
            proof.header.height,
            proof.header.time,
            header,
            message,
            signature,
            proof,
            anchor,
        )

    def check(self, trust: Trust, application: Application) -> tuple[Operation, BatchReceipt]:
        """The operation and its receipt. Raises `ProofError` unless both are what the file says."""
        shown = trust.voted(self.anchor).leaves(self.receipt)
        receipt = receipt_of(shown[0])
        # What a publication says may read like an operation, and is none.
        if len(shown) != 1 or receipt is None or not is_control(self.batch):
            raise ProofError("the receipt is not that of one operation")
        if receipt.digest != digest_of(self.batch, leaves.root([self.message.leaf()])):
            raise ProofError("the operation is not the one that the receipt names")
        if self.batch.chain != trust.genesis.chain or not is_signed(
            self.batch, receipt.digest, self.signature
        ):
            raise ProofError("the operation is not signed by the key that it names")
        if self.batch.shard != self.receipt.header.shard:
            raise ProofError("the operation was made for another ledger than the one whose receipt is shown")
        if not receipt.fits(self.batch):
            raise ProofError(
                "the receipt says another key, topic, partition or count than the operation's batch"
            )
        if receipt.is_done and not is_timely(self.batch, self.receipt.header.height):
            raise ProofError(f"the operation may not be applied at height {self.receipt.header.height}")
        try:
            operation = application.decode_operation(self.message.payload)
        except Refused as refused:
            raise ProofError(f"the operation cannot be read: {refused.detail}") from None
        batch = (self.batch, self.message, self.signature)
        if self != OperationProof.of((receipt, self.receipt, self.anchor), batch, operation):
            raise ProofError(DISAGREES)
        return operation, receipt


class EntryProof(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag="parley entry proof 1"
):
    """One entry of the state as of a height, or that there was none. The first fields say in plain words which one.

    Bytes in `key` are hexadecimal digits, positions their two numbers.
    """

    table: str
    key: tuple[KeyPart, ...]
    found: bool
    height: U64
    time: U64
    entry: StateEntry
    anchor: Anchor

    @classmethod
    def of(cls, table: Table[R, *K], entry: StateEntry, anchor: Anchor) -> EntryProof:
        """From an entry of this table and the certified header that its proof leads to."""
        key: tuple[Any, ...] = table.unpack(entry.key)
        shown = tuple(one for part in key for one in _shown(part))
        header = anchor.header
        found = entry.value is not None
        return cls(table.name, shown, found, header.executed_height, header.time, entry, anchor)

    def check(self, trust: Trust, application: Application) -> object:
        """The record, None if there is certainly none. Raises `ProofError` unless it is what the file says."""
        value = trust.voted(self.anchor).value(self.entry, self.entry.key)
        table = application.table_of(self.entry.key)
        if table is None:
            raise ProofError("the entry is of a table that this network does not have")
        if table.index:  # whatever it holds, the state has no such entry
            raise ProofError(f"table {table.name} is no part of the certified state")
        try:
            shown = EntryProof.of(table, self.entry, self.anchor)
            record: object = None if value is None else table.decode(value)
        except (*DECODE_ERRORS, ValueError) as error:
            raise ProofError(f"the entry cannot be read: {error}") from None
        if value is not None and not table.is_sound(self.entry.key, value):
            raise ProofError("the entry cannot be read: it is not as long as a count is")
        if self != shown:
            raise ProofError(DISAGREES)
        return record

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the proof to a new file that only its owner can read."""
        save_proof(self, path)


def _shown(part: int | str | bytes | Position) -> tuple[KeyPart, ...]:
    match part:
        case bytes():
            return (part.hex(),)
        case tuple():
            return part
        case _:
            return (part,)


def narrowed(proof: BlockProof, at: int) -> BlockProof:
    """The proof of one of its leaves alone; the others become nodes of the path, and nothing of them is shown."""
    multi = proof.receipts
    target = position = multi.indices[at]
    level = dict(zip(multi.indices, map(merkle.leaf_hash, proof.leaves), strict=True))
    siblings, path = iter(multi.siblings), list[bytes]()
    last = multi.size - 1
    while last:
        parents: dict[int, bytes] = {}
        for place, node in level.items():
            if place >> 1 in parents:  # made together with its left sibling
                continue
            if place == last and not place & 1:  # the last of an odd level moves up as it is
                parents[place >> 1] = node
                continue
            other = level[place ^ 1] if place ^ 1 in level else next(siblings)
            if place >> 1 == position >> 1:
                path.append(other if place == position else node)
            pair = (other, node) if place & 1 else (node, other)
            parents[place >> 1] = merkle.node_hash(*pair)
        level, position, last = parents, position >> 1, last >> 1
    receipts = merkle.MultiProof(multi.size, (target,), tuple(path))
    return replace(proof, leaves=(proof.leaves[at],), receipts=receipts)


Proof: TypeAlias = PublicationProof | OperationProof | EntryProof


def encode_proof(proof: Proof) -> bytes:
    return msgspec.json.encode(proof) + b"\n"


def kind_of(data: bytes) -> str:
    """The kind of proof that a file says it is: operation, entry, or else publication."""
    said = next((kind for tag, kind in _KINDS.items() if data.startswith(b'{"format":"%s"' % tag)), None)
    return said or "publication"


def decode_proof(data: bytes) -> Proof:
    """A proof file of any kind, not checked yet. Raises `ProofError` for anything but the one canonical form."""
    kind = kind_of(data)
    if kind == "publication" or len(data) > MAX_PROOF:
        return decode_publication(data)
    try:
        proof = _proofs.decode(data)
    except DECODE_ERRORS as error:
        raise ProofError(f"this is not a proof of an {kind}: {error}") from None
    if encode_proof(proof) != data:
        raise ProofError("the file is not in its canonical form: it was changed")
    return proof


def save_proof(proof: Proof, path: str | os.PathLike[str]) -> None:
    """Write the proof to a new file that only its owner can read, because it may hold a message."""
    descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(encode_proof(proof))


_KINDS = {b"parley operation proof 2": "operation", b"parley entry proof 1": "entry"}
_proofs: msgspec.json.Decoder[OperationProof | EntryProof] = msgspec.json.Decoder(OperationProof | EntryProof)
