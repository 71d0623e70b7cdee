"""Files with the help of a quorum that lies: they get as far as the checks that no quorum can pass for the publisher."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha512

from msgspec.msgpack import decode
from msgspec.msgpack import encode as encode_packed
from msgspec.structs import replace
from tests.application.world import actor
from tests.verifier.forgeries import GROUP_ORDER, Forged, as_json, b64, put
from tests.verifier.networks import Network
from tests.verifier.stories import ALICE, Story

from parley.applications import DATA_SHARD
from parley.client.proofs import OperationProof, encode_proof
from parley.crypto import merkle
from parley.crypto.ed25519 import SecretKey
from parley.crypto.encoding import enc
from parley.ledger import state_map
from parley.ledger.proofs import Anchor, BlockProof, history_leaf_of
from parley.model import leaves as leaf_tree
from parley.model.batches import CONTROL, Batch, BatchHeader, Message, sign_batch
from parley.model.receipts import BatchReceipt, encode_leaf, receipt_of
from parley.modules.publishing.proof import MAX_PROOF, MessageProof, PublicationProof, decode_publication
from parley.modules.subscriptions.receipts import Closed

# Fields of a receipt that say another thing than the batch.
OTHERS = (
    ("topic", "deme"),
    ("topic_id", (1, 7)),
    ("partition", 1),
    ("count", 2),
    ("publisher", bytes(32)),
)


class Liars:
    """A quorum of brokers that certifies whatever receipts it is told to."""

    def __init__(self, story: Story) -> None:
        self.story, self.network = story, story.network

    def shown(self, honest: BlockProof, leaves: Sequence[bytes]) -> tuple[BlockProof, Anchor]:
        """A block with just these receipts, all of them shown."""
        height = honest.header.height
        leaf = history_leaf_of(height, honest.header.id(), leaves)
        history = [*(b"%d" % at for at in range(1, height)), leaf]
        header = replace(
            self.network.anchors()[-1].header, executed_height=height, history_root=merkle.root(history)
        )
        every = merkle.prove_many(leaves, range(len(leaves)))
        path = merkle.prove(history, height - 1)
        return (
            BlockProof(honest.header, merkle.root(leaves), path, tuple(leaves), every),
            self.network.certify(header),
        )

    def told(self, honest: PublicationProof, *leaves: bytes) -> bytes:
        """An honest file, whose receipts are others."""
        proof, anchor = self.shown(honest.receipt, leaves)
        return encode_proof(replace(honest, receipt=proof, anchor=anchor))

    def outcome(self, honest: PublicationProof | OperationProof, outcome: object) -> bytes:
        """An honest file, in whose receipt anything stands as the outcome."""
        fields = [*decode(honest.receipt.leaves[0])[:-1], outcome]
        proof, anchor = self.shown(honest.receipt, [encode_packed(fields)])
        return encode_proof(replace(honest, receipt=proof, anchor=anchor))

    def outcomes(self, honest: PublicationProof | OperationProof) -> Forged:
        """Receipts whose outcome has other fields than the page lists, or values of other types."""
        for about, outcome in wrong_outcomes():
            name = f"outcome-{about.replace(' ', '-')}"
            yield name, f"an outcome: {about}", self.outcome(honest, outcome), "receipts"

    def receipt(self, honest: PublicationProof, **changes: object) -> bytes:
        receipt = _receipt(honest)
        return self.told(honest, encode_leaf(replace(receipt, **changes)))

    def signed(
        self,
        honest: PublicationProof,
        key: SecretKey = ALICE.secret,
        message: Message | None = None,
        **changes: object,
    ) -> bytes:
        """A batch that the publisher signed with other fields, and a receipt that names it."""
        assert honest.message is not None
        said = message or honest.message.message
        header: BatchHeader = replace(honest.batch, count=1, **changes)
        name, body = sign_batch(header, (said,), key)
        receipt = _receipt(honest)
        proof, anchor = self.shown(honest.receipt, [encode_leaf(replace(receipt, digest=name, count=1))])
        leaf = said.leaf()
        return encode_proof(
            replace(
                honest,
                batch=header,
                root=leaf_tree.root([leaf]),
                signature=decode(body, type=Batch).signature,
                message=MessageProof(said, leaf_tree.prove([leaf], 0)),
                receipt=proof,
                anchor=anchor,
            )
        )

    def forge(self, honest: PublicationProof) -> Forged:
        (leaf,) = honest.receipt.leaves
        assert honest.message is not None
        long = leaf.replace(b"\xa5batch", b"\xd9\x05batch")
        yield "leaf-form", "a receipt that is not canonical", self.told(honest, long), "receipts"
        yield "leaf-more", "a byte after the receipt", self.told(honest, leaf + b"\0"), "receipts"
        yield "leaf-kind", "a leaf that is no receipt", self.told(honest, self.match()), "receipt"
        closed = encode_leaf(Closed("wards/er", 0, bytes(32), (1, 0), 1))
        yield "leaf-closed", "a leaf of another kind", self.told(honest, closed), "receipt"
        yield "leaf-unknown", "a leaf of no known kind", self.told(honest, b"\x91\xa4leaf"), "receipts"
        yield "two-receipts", "two receipts shown", self.told(honest, leaf, leaf), "receipt"
        staged = self.told(honest, self.staged())
        yield "only-staged", "a staged batch that was not numbered", staged, "receipt"
        yield "receipt-digest", "a receipt of another batch", self.receipt(honest, digest=bytes(32)), "digest"
        for field, value in OTHERS:
            changed = self.receipt(honest, **{field: value})
            yield f"receipt-{field}", f"a receipt with another {field} than the batch", changed, "agreement"
        other = self.signed(honest, actor("mallory").secret)
        yield "signed-by-another", "a batch that another key signed", other, "signature"
        for what, about, made in self.small_order(honest):
            yield f"small-order-{what}", about, made, "signature"
        other = self.signed(honest, chain=bytes(32))
        yield "batch-chain-signed", "a batch that was signed for another chain", other, "signature"
        other = self.signed(honest, shard=1)
        yield "batch-shard-signed", "a batch that was signed for another ledger", other, "ledger"
        other = self.signed(honest, kind=CONTROL)
        yield "batch-control", "a batch that holds an operation", other, "kind"
        yield from self.spoken(honest)
        height_of_block = honest.receipt.header.height
        for name, about, last in (
            ("expired", "a batch that was over", height_of_block - 1),
            ("too-early", "a batch that is valid for too long", height_of_block + 100_001),
        ):
            yield name, about, self.signed(honest, not_after=last), "height"
        said = honest.message.message
        for name, about, header in (
            ("message-header-form", "a message header with a longer form", b"\xdc\x00\x03\xc0\x90\x90"),
            ("message-header-more", "a byte after the message header", b"\x93\xc0\x90\x90\x00"),
            ("message-header-short", "a message header of two fields", b"\x92\xc0\x90"),
            (
                "message-header-float",
                "a tag that is a float",
                b"\x93\xc0\x91\x92\xa1a\xca\x00\x00\x00\x00\x90",
            ),
            ("message-header-order", "tags in another order", b"\x93\xc0\x92\x92\xa1b\x01\x92\xa1a\x01\x90"),
            (
                "message-header-twice",
                "a tag that stands twice",
                b"\x93\xc0\x92\x92\xa1a\x01\x92\xa1a\x02\x90",
            ),
            ("message-header-name", "a tag without a proper name", b"\x93\xc0\x91\x92\xa11\x01\x90"),
        ):
            yield name, about, self.signed(honest, message=replace(said, header=header)), "message"

    def spoken(self, honest: PublicationProof) -> Forged:
        """Message headers beyond their limits."""
        assert honest.message is not None
        said = honest.message.message
        for name, about, fields in (
            ("key", "a message key of 4097 bytes", [bytes(4097), [], []]),
            ("key-text", "a message key that is text", ["key", [], []]),
            ("tags", "65 tags", [None, [[f"a{at:02}", at] for at in range(65)], []]),
            ("tag-name", "a tag's name of 65 characters", [None, [["a" * 65, 1]], []]),
            ("tag-text", "a tag's value of 257 characters", [None, [["a", "x" * 257]], []]),
            ("tag-number", "a tag's value of 2^63", [None, [["a", 2**63]], []]),
            ("tag-none", "a tag without a value", [None, [["a", None]], []]),
            ("tag-triple", "a tag with two values", [None, [["a", 1, 1]], []]),
            ("headers", "65 headers", [None, [], [["h", b""]] * 65]),
            ("header-name", "a header's name of 257 characters", [None, [], [["h" * 257, b""]]]),
            ("header-text", "a header's value that is text", [None, [], [["h", "x"]]]),
            ("header-value", "a header's value of 65537 bytes", [None, [], [["h", bytes(65537)]]]),
        ):
            changed = self.signed(honest, message=replace(said, header=encode_packed(fields)))
            yield f"beyond-{name}", about, changed, "message"

    def too_large(self, honest: PublicationProof) -> Forged:
        """A file of which nothing but its size is wrong."""
        assert honest.message is not None
        said = honest.message.message

        def made(payload: int) -> bytes:
            return self.signed(honest, message=replace(said, payload=bytes(payload)))

        threes = -(-(MAX_PROOF + 1 - len(made(0))) // 4)
        yield "too-large", "a file of more than 4 MiB, of zeros in its payload", made(3 * threes), "form"

    def small_order(self, honest: PublicationProof) -> Iterator[tuple[str, str, bytes]]:
        """Signatures that fulfil the equation, with a point of small order as the key or as the commitment."""
        one = (1).to_bytes(32, "little")  # the neutral element
        base = b"\x58" + b"\x66" * 31
        made = self.signed(honest, publisher=one)
        receipt = replace(_receipt(decode_publication(made)), publisher=one)
        file = self.told(decode_publication(made), encode_leaf(receipt))
        yield (
            "key",
            "a publisher whose key is the neutral element",
            put(file, ("signature",), b64(base + one)),
        )
        (leaf,) = honest.receipt.leaves
        message = enc(b"PSB1/sig/batch", honest.batch.chain, _receipt(honest).digest)
        k = int.from_bytes(sha512(one + ALICE.key + message).digest(), "little")
        secret = int.from_bytes(sha512(ALICE.secret.seed()).digest()[:32], "little")
        secret = secret & (1 << 254) - 8 | 1 << 254
        scalar = (k * secret % GROUP_ORDER).to_bytes(32, "little")
        file = self.told(honest, leaf)
        yield (
            "commitment",
            "a signature whose R is the neutral element",
            put(file, ("signature",), b64(one + scalar)),
        )

    def operated(
        self,
        honest: OperationProof,
        message: Message | None = None,
        said: Mapping[str, object] | None = None,
        signed: Mapping[str, object] | None = None,
    ) -> bytes:
        """An operation that its client signed otherwise, and a receipt that names it, with other fields."""
        message = message or honest.message
        batch: BatchHeader = replace(honest.batch, **(signed or {}))
        digest, body = sign_batch(batch, (message,), ALICE.secret)
        receipt = replace(_receipt(honest), digest=digest, **(said or {}))
        proof, anchor = self.shown(honest.receipt, [encode_leaf(receipt)])
        signature = decode(body, type=Batch).signature
        return encode_proof(
            replace(honest, batch=batch, message=message, signature=signature, receipt=proof, anchor=anchor)
        )

    def operations(self, honest: OperationProof) -> Forged:
        name, payload, height = honest.operation.encode(), honest.message.payload, honest.height
        form = payload.replace(bytes([0xA0 + len(name)]) + name, bytes([0xD9, len(name)]) + name)
        for what, about, changed in (
            ("form", "a longer form of the operation's name", form),
            ("more", "a byte after the operation", payload + b"\0"),
            ("text", "an operation that is no array", b"\xa1x"),
            ("unknown", "an operation that there is not", b"\x91\xa4stop"),
            ("deep", "an operation that is nested deeply", b"\x92\xacdelete_topic" + b"\x91" * 99 + b"\xc0"),
        ):
            made = self.operated(honest, replace(honest.message, payload=changed))
            yield f"operation-{what}", about, made, "operation"
        for field, other in (("topic", "wards/er"), ("topic_id", (3, 1)), ("partition", 1), ("count", 2)):
            made = self.operated(honest, said={field: other}, signed={field: other})
            yield f"control-{field}", f"an operation in a batch with another {field}", made, "receipt"
        for field, value in OTHERS:
            changed = self.operated(honest, said={field: value})
            yield f"receipt-{field}", f"a receipt with another {field} than the batch", changed, "agreement"
        for what, about, last in (
            ("expired", "an operation that was over", height - 1),
            ("too-early", "an operation that is valid for too long", height + 100_001),
        ):
            yield what, about, self.operated(honest, signed={"not_after": last}), "height"
        made = self.operated(honest, signed={"shard": 1})
        yield "operation-shard-signed", "an operation that was signed for another ledger", made, "ledger"

    def match(self) -> bytes:
        """A leaf of the network that is no receipt."""
        height = self.network.receipts(self.story.ruled)[-1][0]
        return next(leaf for leaf in self.network.leaves(height) if leaf[1:7] == b"\xa5match")

    def staged(self) -> bytes:
        """The receipt that a staged batch got before its stage was committed."""
        height, place, _ = self.network.receipts(self.story.staged[0])[0]
        return self.network.leaves(height)[place]


def wrong_outcomes() -> Iterator[tuple[str, object]]:
    """Outcomes that no receipt may have, by what is wrong with them."""
    none: list[object] = []
    yield "no array", "published"
    yield "nothing", none
    yield "no name", [1]
    yield "an unknown name", ["granted"]
    yield "done with a field", ["done", 1]
    yield "published without an offset", ["published"]
    yield "published with two offsets", ["published", 1, 1]
    yield "published below 0", ["published", -1]
    yield "published at 2^62", ["published", 2**62]
    yield "published at a boolean", ["published", True]
    yield "published at a text", ["published", "1"]
    yield "staged until nothing", ["staged", None]
    start: list[object] = [0, [1, 0], 1, 0]
    for about, fields in (
        ("31 bytes", [bytes(31), [start], 1]),
        ("a partition of 2^32", [bytes(32), [[2**32, *start[1:]]], 1]),
        ("a place of 2^32", [bytes(32), [[0, [1, 2**32], 1, 0]], 1]),
        ("three fields of a partition", [bytes(32), [start[:3]], 1]),
        ("no lease", [bytes(32), [start]]),
    ):
        yield f"subscribed with {about}", ["subscribed", *fields]
    yield "duplicate of a place of 2^32", ["duplicate", [1, 2**32]]
    yield "duplicate of a height alone", ["duplicate", [1]]
    for about, refused in (
        ("a code of 65 characters", ["c" * 65, "", none, 1]),
        ("a code of bytes", [b"Busy", "", none, 1]),
        ("a reason of 65 characters", ["Busy", "r" * 65, none, 1]),
        ("17 fields", ["Busy", "", [["a", 1]] * 17, 1]),
        ("a field's name of 65 characters", ["Busy", "", [["a" * 65, 1]], 1]),
        ("a field of 2^63", ["Busy", "", [["a", 2**63]], 1]),
        ("a field that is a boolean", ["Busy", "", [["a", True]], 1]),
        ("a field of 4097 characters", ["Busy", "", [["a", "x" * 4097]], 1]),
        ("a sequence below 0", ["Busy", "", none, -1]),
    ):
        yield f"refused with {about}", ["refused", *refused]


def _receipt(proof: PublicationProof | OperationProof) -> BatchReceipt:
    receipt = receipt_of(DATA_SHARD.decode_leaf(proof.receipt.leaves[0]))
    assert receipt is not None
    return receipt


def published_as_operation(honest: PublicationProof) -> bytes:
    """A publication in the form of an operation."""
    assert honest.message is not None
    return encode_proof(
        OperationProof(
            "revoke_client",
            honest.publisher,
            "Ok",
            honest.height,
            honest.time,
            honest.batch,
            honest.message.message,
            honest.signature,
            honest.receipt,
            honest.anchor,
        )
    )


def strange_entries(network: Network, data: bytes) -> Forged:
    """Entries of what is no table of the state, as absent from an empty state that a quorum certifies."""
    header = replace(network.anchors()[-1].header, state_root=state_map.EMPTY_ROOT)
    data = put(data, ("anchor",), as_json(network.certify(header)))
    for name, about, key in (
        ("unknown-table", "a table that there is not", b"tables/x\0"),
        ("index-table", "an index, which is no part of the state", b"receipt/" + bytes(32)),
        ("no-table", "a key without a table", b"topic"),
        ("key-cut", "a key without its end", b"topic/x"),
        ("key-more", "a byte after the key", b"topic/x\0x"),
        ("key-text", "a key that is no text", b"topic/\xff\0"),
    ):
        entry: list[object] = [base64.b64encode(key).decode(), None, [[], None]]
        yield name, about, put(data, ("entry",), entry), "table"
