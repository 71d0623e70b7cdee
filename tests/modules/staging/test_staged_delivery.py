"""Certified readers and subscribers get what a stage published, once and in order, without knowing of stages."""

from __future__ import annotations

import pytest
from tests.application.world import mount
from tests.client.ledger import Ledger, believe, note, place_of

from parley.applications import data_shard
from parley.client.messages import Message
from parley.client.verification import Question, check_fetched
from parley.modules.publishing.proof import check_publication
from parley.modules.staging.tables import LEAST
from parley.net.messages import MAX_ANSWER, encode

WHERE = 'ward == "er"'


@pytest.fixture
def ledger() -> Ledger:
    """A block numbers two small batches."""
    ledger = Ledger()
    ledger.machine, ledger.keeper = mount(ledger.genesis, data_shard(numbered_bytes=2 * LEAST))
    ledger.topic("notes")
    return ledger


def test_a_stage_over_several_blocks_is_delivered_once_in_order_and_proved(ledger: Ledger) -> None:
    alice, bob, carol = (ledger.client(name) for name in ("alice", "bob", "carol"))
    starts = ledger.subscribe(carol, "notes", WHERE)
    batches = [
        ledger.staged(
            alice,
            "notes",
            *[note(f"{number}-{i}", ward="er" if i % 2 else "icu") for i in range(10)],
        )
        for number in range(9)
    ]
    ledger.apply(*batches)
    ledger.apply(ledger.commit(alice, "notes", 0, *batches))
    for number in range(6):
        ledger.apply(ledger.publication(bob, "notes", note(f"bob-{number}", ward="er")))
    published = {f"{number}-{i}" for number in range(9) for i in range(10)} | {f"bob-{i}" for i in range(6)}

    answer = ledger.fetched(carol, "notes")
    belief = believe(ledger, answer.anchor)
    page = check_fetched(belief, answer, ledger.reader(carol), Question("notes", 0, 0, 0))
    assert [message.offset for message in page.messages] == list(range(96))
    texts = [message.text() for message in page.messages]
    assert sorted(texts) == sorted(published)
    assert [text for text in texts if not text.startswith("bob")] == [
        f"{number}-{i}" for number in range(9) for i in range(10)
    ]
    assert {message.publisher for message in page.messages} == {"hospital-a/alice", "hospital-a/bob"}
    for message in page.messages[::17]:
        check_publication(message.proof(), ledger.trust)

    delivery = ledger.delivery(carol, "notes", WHERE, place_of(starts[0]))
    assert delivery is not None
    order = ledger.follow(carol, "notes", WHERE, starts)
    got: list[Message] = []
    for part in order.delivered(believe(ledger, delivery.anchor), delivery):
        got += part
    assert [message.ps for message in got] == list(range(len(got)))
    wanted = [message.offset for message in page.messages if dict(message.tags)["ward"] == "er"]
    assert [message.offset for message in got] == wanted
    assert max(len(encode(block)) for block in delivery.blocks) < MAX_ANSWER


def test_the_largest_block_that_numbers_something_is_shown_in_one_answer(ledger: Ledger) -> None:
    """As many bytes as a block may hold, and one staged batch of full size besides."""
    alice, carol = ledger.client("alice"), ledger.client("carol")
    starts = ledger.subscribe(carol, "notes", "")
    batch = ledger.staged(alice, "notes", *[note(f"staged {i}" + "." * 100_000) for i in range(10)])
    ledger.apply(batch)
    room = ledger.genesis.limits.block_bytes
    own = [
        ledger.publication(alice, "notes", *[note(f"{number} {i}" + "." * 100_000) for i in range(10)])
        for number in range(room // 1_000_000)
    ]
    ledger.apply(*own, ledger.commit(alice, "notes", 0, batch))
    delivery = ledger.delivery(carol, "notes", "", place_of(starts[0]))
    assert delivery is not None
    (block,) = delivery.blocks
    assert len(block.contents) == 90
    assert len(encode(delivery)) < MAX_ANSWER
