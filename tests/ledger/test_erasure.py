"""What stays of an erased body proves who signed it, shows nothing of it, and breaks no proof that was made."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import World, actor
from tests.ledger.shard import ALICE, GENESIS, told

from parley.applications import DATA_SHARD
from parley.crypto import merkle
from parley.ledger import history, layout
from parley.ledger.erasure import MAX_REMAINS, Remains, RemainsError, check_remains, remains_of
from parley.ledger.proofs import BlockProof, Trust
from parley.model import leaves as tree
from parley.model.batches import (
    FORMAT,
    MAX_MESSAGES,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    open_batch,
    sign_batch,
)
from parley.model.names import sorted_pairs
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.proof import (
    MessageProof,
    PublicationProof,
    check_publication,
    decode_publication,
    encode_publication,
)
from parley.modules.publishing.receipts import first_offset
from parley.replica.chain import Chain

CHAIN = GENESIS.chain
TRUST = Trust(GENESIS, DATA_SHARD.decode_leaf)


def batch(count: int = 1, topic: str = "wards/er") -> tuple[bytes, bytes]:
    header = BatchHeader(
        FORMAT, CHAIN, 0, PUBLISH, topic, (2**61, 2**31), 0, ALICE.key, b"session-" * 2, 2**61, count, 2**61
    )
    shown = encode(MessageHeader(b"the key", sorted_pairs({"diagnosis": "flu"}), (("free", b"header"),)))
    message = Message(b"salt" * 4, shown, 'role == "nurse"', b"the payload")
    return sign_batch(header, (message,) * count, ALICE.secret)


def test_it_proves_who_signed_the_batch_of_this_name() -> None:
    for name, body in (batch(), batch(3), batch(MAX_MESSAGES // 10)):
        remains = check_remains(remains_of(body), name, CHAIN)
        opened = open_batch(body, CHAIN, 0)[1]
        assert (remains.header, remains.signature) == (opened.header, opened.signature)


def test_nothing_that_the_batch_said_is_in_it() -> None:
    _, body = batch(2)
    data = remains_of(body)
    for told_ in (b"salt", b"the key", b"diagnosis", b"flu", b"free", b"header", b"nurse", b"payload"):
        assert told_ in body
        assert told_ not in data
    leaves = [message.leaf() for message in open_batch(body, CHAIN, 0)[1].messages]
    assert all(leaf not in data for leaf in leaves)


def test_the_largest_remains_fit_the_limit() -> None:
    name, body = batch(topic="ü" * 128)
    assert len(remains_of(body)) < MAX_REMAINS
    check_remains(remains_of(body), name, CHAIN)


def test_no_single_bit_can_be_changed() -> None:
    name, body = batch()
    data = bytearray(remains_of(body))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(RemainsError):
                check_remains(bytes(data), name, CHAIN)
            data[at] ^= 1 << bit
    check_remains(bytes(data), name, CHAIN)


def test_what_stayed_of_something_else_is_refused() -> None:
    name, body = batch()
    other, _ = batch(2)
    data = remains_of(body)
    with pytest.raises(RemainsError, match="another batch"):
        check_remains(data, other, CHAIN)
    with pytest.raises(RemainsError, match="another network"):
        check_remains(data, name, World().chain)
    unsigned = replace(msgspec.msgpack.decode(data, type=Remains), signature=bytes(64))
    with pytest.raises(RemainsError, match="not signed"):
        check_remains(encode(unsigned), name, CHAIN)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93", bytes(MAX_REMAINS + 1)])
def test_what_is_no_remains_is_refused(data: bytes) -> None:
    with pytest.raises(RemainsError):
        check_remains(data, bytes(32), CHAIN)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"a batch"])
def test_nothing_stays_of_what_is_no_batch(body: bytes) -> None:
    with pytest.raises(RemainsError, match="cannot be read"):
        remains_of(body)


def test_what_stays_of_a_damaged_body_does_not_pass_for_its_name() -> None:
    name, body = batch()
    damaged = body.replace(b"the payload", b"The payload")
    with pytest.raises(RemainsError):
        check_remains(remains_of(damaged), name, CHAIN)


def test_proofs_hold_and_are_made_after_the_body_is_erased() -> None:
    entries = dict(told().store.entries)
    anchor = told().anchor()
    size = anchor.header.executed_height
    chain = Chain(told().store)
    for height in range(1, size + 1):
        leaves = layout.decode_receipts(entries[layout.receipts(height)])
        receipt = DATA_SHARD.decode_leaf(leaves[0]) if leaves else None
        if not isinstance(receipt, BatchReceipt) or first_offset(receipt) is None:
            continue
        block = chain.block(height)
        assert block is not None
        body = entries.pop(layout.batch(receipt.digest))
        entries[layout.erased(receipt.digest)] = remains_of(body)
        opened = open_batch(body, CHAIN, 0)[1]
        hashes = tree.leaves_of(opened.messages)
        # A reader kept this one from before, with the message that it read.
        path = history.prove(lambda node: told().store.get(b"h/" + node), height - 1, size)
        before = BlockProof(
            block.header, merkle.root(leaves), path, leaves[:1], merkle.prove_many(leaves, [0])
        )
        saved = encode_publication(
            PublicationProof.of(
                (receipt, before, anchor),
                (opened.header, tree.root(hashes), opened.signature),
                MessageProof(opened.messages[1], tree.prove(hashes, 1)),
            )
        )
        check_publication(decode_publication(saved), TRUST)
        # A broker makes these now: of the receipt, and of the place and the publisher of what it has erased.
        path = history.prove(lambda node: entries.get(b"h/" + node), height - 1, size)
        after = BlockProof(
            block.header, merkle.root(leaves), path, leaves[:1], merkle.prove_many(leaves, [0])
        )
        assert TRUST.certified(anchor).leaves(after) == (receipt,)
        remains = check_remains(entries[layout.erased(receipt.digest)], receipt.digest, CHAIN)
        shown = PublicationProof.of(
            (receipt, after, anchor), (remains.header, remains.root, remains.signature), None
        )
        check_publication(decode_publication(encode_publication(shown)), TRUST)
        return
    raise AssertionError("nothing was published")


def test_only_the_named_publisher_can_have_signed_it() -> None:
    name, body = batch()
    remains = msgspec.msgpack.decode(remains_of(body), type=Remains)
    theirs = replace(remains, header=replace(remains.header, publisher=actor("mallory").key))
    with pytest.raises(RemainsError):
        check_remains(encode(theirs), name, CHAIN)
