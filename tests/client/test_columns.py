"""Columns believe what pages believe, and nothing else; `test_pages` puts every lie to both."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from tests.application.world import Actor, actor
from tests.client.columns import packed, rows_of
from tests.client.ledger import Ledger, believe, note

from parley.client.beliefs import Stale
from parley.client.columns import ColumnPage, check_packed
from parley.client.columns import _common as common
from parley.client.observing import _checked as check_block
from parley.client.verification import Question, check_fetched
from parley.ledger.proofs import ProofError
from parley.model.batches import Message, MessageHeader, encode
from parley.model.leaves import leaves_of, leaves_of_columns
from parley.modules.publishing.proof import check_publication, decode_publication, encode_publication
from parley.net.messages import (
    Fetched,
    PackedFetched,
    ShownHeader,
    WireError,
    decode_answer,
    decode_packed,
)
from parley.net.messages import encode as encode_answer

SECRET = 'role == "doctor"'
QUESTION = Question("notes", 0, 0, 0)


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    alice = made.client("alice")
    made.client("carol", role="nurse")
    made.topic("notes")
    made.publish(alice, "notes", *(note(f"number {at}") for at in range(40)))
    made.publish(alice, "notes", note("more"), note("for doctors", SECRET))
    return made


@pytest.fixture
def carol() -> Actor:
    return actor("carol")


def test_leaves_of_columns_are_the_leaves_of_their_messages() -> None:
    chance = random.Random(1)
    messages = [
        Message(
            chance.randbytes(16),
            encode(MessageHeader(chance.randbytes(chance.randrange(3)))),
            chance.choice(["", SECRET, "a == 1"]),
            chance.randbytes(chance.randrange(200)),
        )
        for _ in range(200)
    ]
    columns = zip(*((one.salt, one.header, one.rule, one.payload) for one in messages), strict=True)
    assert leaves_of_columns(*columns) == leaves_of(messages)


def test_whatever_byte_of_an_answer_is_changed_both_ways_of_reading_come_to_the_same(
    ledger: Ledger, carol: Actor
) -> None:
    data = encode_answer(ledger.fetched(carol, "notes"))
    chance = random.Random(2)
    refused = 0
    for at in range(0, len(data), 37):
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        single, columns = (
            outcome(ledger, carol, bytes(changed), False),
            outcome(ledger, carol, bytes(changed), True),
        )
        assert single == columns, f"byte {at}"
        refused += isinstance(single, str)
    assert refused > len(data) // 37 - 5  # nearly every byte is covered by a proof


def outcome(ledger: Ledger, who: Actor, data: bytes, columns: bool) -> object:
    """What is read, or that it is refused."""
    try:
        answer = decode_packed(data) if columns else decode_answer(data)
        if not isinstance(answer, PackedFetched | Fetched):
            return "refused"
        view, reader = believe(ledger, answer.anchor), ledger.reader(who)
        if isinstance(answer, PackedFetched):
            return [row[:3] for row in rows_of(check_packed(view, answer, reader, QUESTION))]
        page = check_fetched(view, answer, reader, QUESTION)
        return [(one.offset, one.empty, one.rule) for one in page.messages]
    except (ProofError, Stale, WireError):
        return "refused"


def test_every_row_has_a_proof_for_third_parties(ledger: Ledger, carol: Actor) -> None:
    page = read(ledger, carol)
    for batch in page.batches:
        for at, offset in enumerate(batch.offsets):
            proof = decode_publication(encode_publication(batch.proof(at)))
            check_publication(proof, ledger.trust)
            assert (proof.offset, proof.count) == (offset, 1)
            assert proof.message is not None
            assert proof.message.message.payload == batch.payloads[at]


def test_headers_that_were_read_once_are_remembered(ledger: Ledger, carol: Actor) -> None:
    answer = packed(ledger.fetched(carol, "notes"))
    known: dict[bytes, MessageHeader] = {}
    check_packed(believe(ledger, answer.anchor), answer, ledger.reader(carol), QUESTION, known)
    assert {data: encode(header) for data, header in known.items()} == {data: data for data in known}


def test_brokers_that_are_unequally_far_agree_on_what_they_have_in_common(
    ledger: Ledger, carol: Actor
) -> None:
    whole = read(ledger, carol)
    shorter = ColumnPage(whole.batches[:1], whole.head, whole.headers)
    agreed = common([whole, shorter], 2)
    assert agreed is not None
    assert agreed.batches == whole.batches[:1]


def test_a_forged_page_does_not_win_against_two_others(ledger: Ledger, carol: Actor) -> None:
    whole = read(ledger, carol)
    other = ColumnPage(whole.batches[1:], whole.head, whole.headers)
    assert common([other, whole], 2) is None
    agreed = common([other, whole, whole], 2)
    assert agreed is not None
    assert agreed.batches == whole.batches


def shown(ledger: Ledger, height: int) -> ShownHeader:
    proof = ledger.proof(height, [0])
    return ShownHeader(
        0, ledger.anchor(), (proof.header, proof.receipts_root, proof.receipts.size, proof.history)
    )


def test_a_block_is_named_by_its_place_in_the_certified_history(ledger: Ledger) -> None:
    answer = shown(ledger, 2)
    view = believe(ledger, answer.anchor)
    named = check_block(view, answer, 2, proven=True)
    assert named is not None
    assert (named.height, named.id) == (2, ledger.blocks[1][0].id)
    with pytest.raises(ProofError, match="another block than the one asked for"):
        check_block(view, answer, 3, proven=True)
    assert answer.block is not None
    header, root, receipts, place = answer.block
    for lie in (
        (replace(header, time=header.time + 1), root, receipts, place),
        (header, bytes(32), receipts, place),
        (header, root, receipts + 1, place),
        (header, root, receipts, replace(place, size=place.size + 1)),
        (header, root, receipts, replace(place, path=place.path[::-1])),
    ):
        with pytest.raises(ProofError):
            check_block(view, replace(answer, block=lie), 2, proven=True)


def test_a_certified_block_cannot_be_called_missing(ledger: Ledger) -> None:
    answer = replace(shown(ledger, 1), block=None)
    view = believe(ledger, answer.anchor)
    with pytest.raises(ProofError, match="says that there is none"):
        check_block(view, answer, 1, proven=True)
    assert check_block(view, answer, view.height + 1, proven=True) is None


def read(ledger: Ledger, who: Actor) -> ColumnPage:
    answer = packed(ledger.fetched(who, "notes"))
    return check_packed(believe(ledger, answer.anchor), answer, ledger.reader(who), QUESTION)
