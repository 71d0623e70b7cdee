"""The questions and answers of auditors and readers on the wire: bounded before anybody acts on them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.ledger import Ledger, note

from parley.consensus.types import MAX_BATCHES
from parley.model.advisories import MAX_ADVISORY
from parley.net import messages as net

QUESTIONS: list[net.Question] = [
    net.ReadBlocks(1, 1, net.MAX_ANSWER, bodies=True),
    net.ReadBlocks(2, 2**62 - 1, 1, bodies=False),
    net.ReadBodies(3, (bytes(32),) * MAX_BATCHES),
    net.ReadEvidence(4, net.MAX_TOLD),
    net.Advise(5, bytes(MAX_ADVISORY), bytes(64)),
]

OUT_OF_BOUNDS: dict[str, net.Question] = {
    "the genesis block": net.ReadBlocks(1, 0, 1, bodies=True),
    "a negative height": net.ReadBlocks(1, -1, 1, bodies=True),
    "a height beyond all": net.ReadBlocks(1, 2**62, 1, bodies=True),
    "no bytes": net.ReadBlocks(1, 1, 0, bodies=True),
    "more bytes than an answer has": net.ReadBlocks(1, 1, net.MAX_ANSWER + 1, bodies=True),
    "no digest": net.ReadBodies(1, ()),
    "more digests than a block has": net.ReadBodies(1, (bytes(32),) * (MAX_BATCHES + 1)),
    "a short digest": net.ReadBodies(1, (bytes(31),)),
    "more evidence than is kept": net.ReadEvidence(1, net.MAX_TOLD + 1),
    "an empty advisory": net.Advise(1, b"", bytes(64)),
    "a large advisory": net.Advise(1, bytes(MAX_ADVISORY + 1), bytes(64)),
    "no signature": net.Advise(1, b"x", b""),
}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: type(question).__name__)
def test_a_question_within_its_bounds_arrives_as_it_was_asked(question: net.Question) -> None:
    data = net.encode(question)
    assert len(data) <= net.MAX_QUESTION
    assert net.decode_question(data) == question


@pytest.mark.parametrize("question", OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS.keys())
def test_a_question_beyond_its_bounds_is_no_question(question: net.Question) -> None:
    with pytest.raises(net.WireError):
        net.decode_question(net.encode(question))


def answers() -> list[net.Answer]:
    ledger = Ledger()
    alice = ledger.client("alice")
    ledger.topic("notes")
    signed = ledger.publication(alice, "notes", note("one"))
    ledger.apply(signed)
    return [
        ledger.raw_blocks(1, bodies=True),
        ledger.raw_blocks(1, bodies=False),
        ledger.raw_blocks(ledger.height, bodies=True, erased={signed.digest}),
        ledger.raw_blocks(ledger.height + 1, bodies=True),
        ledger.raw_bodies([signed.digest, signed.digest], {signed.digest}),
        net.EvidenceList(1, (b"record",), more=True),
        net.Advised(1),
    ]


ANSWERS = answers()


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_arrives_as_it_was_given(answer: net.Answer) -> None:
    assert net.decode_answer(net.encode(answer)) == answer


def test_answers_have_bounds() -> None:
    blocks = ANSWERS[0]
    assert isinstance(blocks, net.Blocks)
    raw = blocks.blocks[0]
    too_much: list[Any] = [
        net.Blocks(1, blocks.anchor, (raw,) * (net.MAX_BLOCKS + 1), None),
        net.Blocks(1, blocks.anchor, (net.RawBlock(raw.block, (), (None,) * (MAX_BATCHES + 1)),), None),
        net.Bodies(1, blocks.anchor, ()),
        net.Bodies(1, blocks.anchor, (None,) * (MAX_BATCHES + 1)),
        net.EvidenceList(1, (b"",) * (net.MAX_TOLD + 1), more=False),
    ]
    for answer in too_much:
        with pytest.raises(net.WireError):
            net.decode_answer(net.encode(answer))


@given(st.sampled_from([*map(net.encode, [*QUESTIONS, *ANSWERS])]), st.data())
def test_what_is_damaged_on_the_way_is_another_message_or_none(data: bytes, chance: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(chance.draw(st.integers(1, 3))):
        damaged[chance.draw(st.integers(0, len(damaged) - 1))] ^= 1 << chance.draw(st.integers(0, 7))
    for decode in (net.decode_question, net.decode_answer):
        try:
            found = decode(bytes(damaged))
        except net.WireError:
            continue
        assert net.encode(found)
