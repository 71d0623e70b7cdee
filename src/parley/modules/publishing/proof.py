"""The proof file of a publication: what a third party checks with the genesis file alone (P7).

It is JSON in one canonical form, and every byte of it is bound: by a hash, by a signature, or by repeating what those
cover. A file that was changed anywhere proves nothing, unless it was made into another whole one, such as that of a
batch without its message. docs/proof-format.md describes every byte, for other verifiers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from parley.ledger.proofs import Anchor, BlockProof, ProofError, Trust
from parley.model import leaves
from parley.model.batches import (
    PUBLISH,
    STAGED,
    BatchHeader,
    Message,
    decode_message_header,
    digest_of,
    is_signed,
    is_timely,
)
from parley.model.codec import DECODE_ERRORS
from parley.model.names import U32, U64, Hash, Signature
from parley.model.receipts import BatchReceipt
from parley.model.refusals import Refused
from parley.modules.publishing.receipts import first_offset, published

FORMAT = "parley publication proof 3"
MAX_PROOF = 4 * 1024 * 1024  # bytes
DISAGREES = "the fields at the beginning of the file do not agree with what the rest of it proves"


class MessageProof(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the batch, with the path to the batch's root."""

    message: Message
    path: leaves.LeafProof


class PublicationProof(Struct, frozen=True, forbid_unknown_fields=True):
    """That something was published, where and by whom. The first fields say in plain words what the rest proves."""

    format: Annotated[str, Meta(max_length=64)]
    topic: str
    partition: U32
    offset: U64
    count: U32
    publisher: str
    height: U64
    time: U64
    batch: BatchHeader
    root: Hash
    signature: Signature
    message: MessageProof | None
    receipt: BlockProof
    anchor: Anchor
    epochs: tuple[bytes, ...]  # certificates of the governance epochs from genesis on; none exist yet (P26)

    @classmethod
    def of(
        cls,
        receipt: tuple[BatchReceipt, BlockProof, Anchor],
        batch: tuple[BatchHeader, bytes, bytes],
        message: MessageProof | None,
    ) -> PublicationProof:
        """From a checked receipt and (header, root, signature) of the batch; with a message, the proof is of it alone."""
        leaf, proof, anchor = receipt
        header, root, signature = batch
        offset, count = first_offset(leaf), leaf.count
        assert offset is not None, "only what was published has a place to prove"
        if message is not None:
            offset, count = offset + message.path.index, 1
        return cls(
            FORMAT,
            leaf.topic,
            leaf.partition,
            offset,
            count,
            leaf.client,
            proof.header.height,
            proof.header.time,
            header,
            root,
            signature,
            message,
            proof,
            anchor,
            (),
        )


def encode_publication(proof: PublicationProof) -> bytes:
    return msgspec.json.encode(proof) + b"\n"


def decode_publication(data: bytes) -> PublicationProof:
    """A proof file, not checked yet. Raises `ProofError` for anything but the one canonical form."""
    if len(data) > MAX_PROOF:
        raise ProofError(f"the file has {len(data)} bytes; {MAX_PROOF} are allowed")
    try:
        proof = _proofs.decode(data)
    except DECODE_ERRORS as error:
        raise ProofError(f"this is not a proof file: {error}") from None
    if proof.format != FORMAT:
        raise ProofError(f"the format is {proof.format!r}, not {FORMAT!r}")
    if encode_publication(proof) != data:
        raise ProofError("the file is not in its canonical form: it was changed")
    return proof


def check_publication(proof: PublicationProof, trust: Trust) -> None:
    """Raises `ProofError` unless the publication stands where the file says, signed by its publisher."""
    if proof.epochs:
        raise ProofError("the file names governance epochs, which this network does not have")
    certified = trust.voted(proof.anchor)
    shown = certified.leaves(proof.receipt)
    found = published(shown[0])
    if len(shown) != 1 or found is None:
        raise ProofError("the receipt is not that of one published batch")
    leaf, _ = found
    if leaf.digest != digest_of(proof.batch, proof.root):
        raise ProofError("the batch is not the one that the receipt names")
    if proof.batch.chain != trust.genesis.chain or not is_signed(proof.batch, leaf.digest, proof.signature):
        raise ProofError("the batch is not signed by its publisher")
    if proof.batch.shard != proof.receipt.header.shard:
        raise ProofError("the batch was made for another ledger than the one whose receipt is shown")
    if proof.batch.kind not in (PUBLISH, STAGED):
        raise ProofError("the batch holds an operation, and no messages")
    if not leaf.fits(proof.batch):
        raise ProofError(
            "the receipt says another publisher, topic, topic id, partition or count than the batch"
        )
    # A staged batch is numbered when its stage is committed, which may take beyond the last height of the batch.
    if proof.batch.kind == PUBLISH and not is_timely(proof.batch, proof.receipt.header.height):
        raise ProofError(f"the batch may not be applied at height {proof.receipt.header.height}")
    if proof.message is not None:
        _check_message(proof)
    if proof != PublicationProof.of(
        (leaf, proof.receipt, proof.anchor), (proof.batch, proof.root, proof.signature), proof.message
    ):
        raise ProofError(DISAGREES)


def _check_message(proof: PublicationProof) -> None:
    message = proof.message
    assert message is not None
    if not leaves.verify(proof.root, message.message.leaf(), proof.batch.count, message.path):
        raise ProofError("the message is not in the batch")
    try:
        decode_message_header(message.message.header)
    except Refused as refused:
        raise ProofError(f"the message's header cannot be read: {refused.detail}") from None


_proofs = msgspec.json.Decoder(PublicationProof)
