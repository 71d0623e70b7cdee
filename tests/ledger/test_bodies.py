"""Which receipts say that a batch was decided in another block, by what their codes mean and not by their names."""

from __future__ import annotations

import pytest
from tests.ledger.shard import GENESIS

from parley.applications import DATA_SHARD
from parley.consensus.committee import committees_of
from parley.consensus.types import Block
from parley.ledger.bodies import Judgement, judge
from parley.ledger.state_map import EMPTY_ROOT
from parley.ledger.steps import at_once
from parley.model.receipts import BatchReceipt, Done, Duplicate, Outcome, Rejected, encode_leaf
from parley.model.refusals import Busy, Expired, OutOfSequence, PermissionDenied, Refused, SequenceReused
from parley.modules.publishing.receipts import Published
from parley.modules.staging.receipts import Staged
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.subscriptions.receipts import Match
from parley.store.memory import MemoryStore

KEEPER = DATA_SHARD.mount(GENESIS).keeper
DIGEST = bytes(range(32))
MATCH = Match("wards", 0, bytes(32), (1, 0), 0, ((1, bytes(32)),))


def judged(*leaves: bytes) -> Judgement:
    block: Block = committees_of(GENESIS)[0].first_block(EMPTY_ROOT, GENESIS.start_time)
    return at_once(judge(block, leaves, KEEPER, MemoryStore(), highest=9))


def leaf(outcome: Outcome, topic: str) -> bytes:
    return encode_leaf(BatchReceipt(DIGEST, bytes(32), "hospital-a/alice", topic, (1, 0), 0, 1, outcome))


def rejected(refused: Refused) -> Outcome:
    return Rejected.of(refused, 7)


@pytest.mark.parametrize(
    ("outcome", "of_messages", "of_operations"),
    [
        (Duplicate((3, 0)), True, True),
        (rejected(Expired("late", not_after=1, height=2)), True, True),
        # A commit that comes too late is refused for good, in this block.
        (rejected(StageOver()), True, False),
        (rejected(NotStaged()), False, False),
        (rejected(OutOfSequence(sequence=3, expected=2)), False, False),
        (rejected(Busy("block_full")), False, False),
        (rejected(SequenceReused(sequence=1)), False, False),
        (rejected(PermissionDenied()), False, False),
        (Rejected("FromTheFuture", "", (), 0), False, False),
        (Published(5), False, False),
        (Staged(9), False, False),
        (Done(), False, False),
    ],
    ids=lambda value: (
        getattr(value, "code", type(value).__name__) if isinstance(value, Outcome) else str(value)
    ),
)
def test_a_batch_that_may_have_had_its_place_in_an_earlier_block_is_repeated(
    outcome: Outcome, of_messages: bool, of_operations: bool
) -> None:
    for topic, expected in (("wards", of_messages), ("", of_operations)):
        leaves = (b"no leaf at all", leaf(outcome, topic), encode_leaf(MATCH))
        assert judged(*leaves).repeated == (frozenset({DIGEST}) if expected else frozenset())


@pytest.mark.parametrize("outcome", [Done(), Duplicate((3, 0)), rejected(StageOver()), Published(5)])
def test_a_batch_with_a_receipt_that_decides_is_finished(outcome: Outcome) -> None:
    assert judged(leaf(outcome, "wards"), encode_leaf(MATCH), b"no leaf").unfinished == frozenset()


def test_a_staged_batch_may_have_another_receipt_later() -> None:
    assert judged(leaf(Staged(9), "wards")).unfinished == {DIGEST}
