"""Every checker speaks when its property is broken and is silent when it holds: none of them is void."""

import dataclasses
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from parley.consensus.types import (
    Block,
    Instance,
    Proposal,
    Timeout,
    Vote,
    genesis_block,
    genesis_qc,
)
from parley.mempool.pool import batch_digest
from parley.replica import wire
from parley.replica.ports import Receipt
from parley.sim import checkers
from parley.sim.checkers import Checker, Checkers
from parley.sim.counter import Counter, encode_batch
from parley.sim.observations import (
    Applied,
    Crashed,
    Ended,
    Failed,
    Healed,
    Observation,
    Opened,
    Persisted,
    Recovered,
    Sent,
    Served,
    Started,
    Status,
    Submitted,
    Wiped,
)
from parley.sim.results import EqualResults
from parley.store.memory import MemoryStore

INSTANCE = Instance(bytes(32), 0, 0, 4, 1)
GENESIS = genesis_block(INSTANCE, Counter().genesis().state_root, 0)
QC = genesis_qc(INSTANCE, GENESIS)
DATA = encode_batch(1, 0, b"payload")
BATCH = batch_digest(DATA)


def block(height: int, time: int = 0, batches: tuple[bytes, ...] = ()) -> Block:
    return Block(replace(GENESIS.header, height=height, time=time), batches)


def applied(replica: int, height: int, time: int = 0, *codes: str) -> Applied:
    receipts = tuple(Receipt(BATCH, code, position) for position, code in enumerate(codes))
    return Applied(replica, block(height, time, (BATCH,) * len(codes)), receipts)


def verdicts(checker: Checker, history: Iterable[Observation]) -> list[str]:
    said = [checker.see(event) for event in history]
    return [evidence for evidence in said if evidence is not None]


def test_agreement_holds_while_blocks_are_the_same() -> None:
    history: list[Observation] = [applied(0, 1), applied(1, 1), applied(0, 2), applied(0, 1)]
    assert verdicts(checkers.Agreement(), history) == []


def test_agreement_speaks_on_two_blocks_at_a_height() -> None:
    (evidence,) = verdicts(checkers.Agreement(), [applied(0, 1), applied(1, 1, time=9)])
    assert "height 1" in evidence
    assert "replica 0" in evidence
    assert "replica 1" in evidence


def test_agreement_speaks_when_a_replica_changes_its_mind() -> None:
    assert len(verdicts(checkers.Agreement(), [applied(0, 1), applied(0, 1, time=9)])) == 1


def test_total_order_holds_over_a_restart_that_repeats_lost_work() -> None:
    history: list[Observation] = [
        Started(0, 0),
        applied(0, 1),
        applied(0, 2),
        Started(0, 1),
        applied(0, 2),
        applied(0, 3),
    ]
    assert verdicts(checkers.TotalOrder(), history) == []


@pytest.mark.parametrize("heights", [(1, 3), (1, 1), (2, 1), (2,)])
def test_total_order_speaks_on_a_gap_or_a_step_back(heights: tuple[int, ...]) -> None:
    history: list[Observation] = [Started(0, 0), *(applied(0, height) for height in heights)]
    assert verdicts(checkers.TotalOrder(), history)


def test_no_creation_holds_for_submitted_batches() -> None:
    assert verdicts(checkers.NoCreation(), [Submitted(BATCH, DATA), applied(0, 1, 0, "ok")]) == []


def test_no_creation_speaks_on_a_batch_from_nowhere() -> None:
    (evidence,) = verdicts(checkers.NoCreation(), [applied(0, 1, 0, "ok"), Submitted(BATCH, DATA)])
    assert "no client submitted" in evidence


def test_no_creation_speaks_on_a_receipt_for_a_batch_of_another_block() -> None:
    stray = Applied(0, block(1), (Receipt(BATCH, "ok", 0),))
    (evidence,) = verdicts(checkers.NoCreation(), [Submitted(BATCH, DATA), stray])
    assert "not in the block" in evidence


def test_no_duplication_holds_when_the_second_time_is_a_duplicate() -> None:
    history: list[Observation] = [
        applied(0, 1, 0, "ok"),
        applied(1, 1, 0, "ok"),
        applied(0, 2, 0, "duplicate"),
    ]
    assert verdicts(checkers.NoDuplication(), history) == []


def test_what_counts_as_taking_effect_is_the_applications_word() -> None:
    history: list[Observation] = [applied(0, 1, 0, "Ok"), applied(0, 2, 0, "Ok")]
    assert len(verdicts(checkers.NoDuplication("Ok"), history)) == 1
    assert verdicts(checkers.NoDuplication(), history) == []


@pytest.mark.parametrize(
    "history",
    [[applied(0, 1, 0, "ok"), applied(0, 2, 0, "ok")], [applied(0, 1, 0, "ok", "ok")]],
    ids=["in two blocks", "in one block"],
)
def test_no_duplication_speaks_when_a_batch_takes_effect_twice(history: list[Observation]) -> None:
    assert len(verdicts(checkers.NoDuplication(), history)) == 1


# -- one signature per view -----------------------------------------------------------------------------------


def vote(view: int, name: bytes, signer: int = 0) -> Vote:
    return Vote(0, view, name * 32, signer, b"s")


def timeout(view: int, inner: Vote | None, signature: bytes = b"s") -> Timeout:
    return Timeout(0, view, QC, None, inner, 0, signature)


def proposal(view: int, time: int) -> Proposal:
    return Proposal(replace(GENESIS.header, view=view, time=time), (), b"s")


def sent(*messages: wire.WireMessage) -> list[Observation]:
    return [Sent(0, wire.encode(message)) for message in messages]


def test_sending_the_same_again_is_allowed() -> None:
    first = sent(vote(5, b"a"), proposal(5, 1), timeout(5, vote(5, b"a")))
    history: list[Observation] = [
        *first,
        Crashed(0, None),
        *first,
        *sent(vote(6, b"b"), vote(5, b"z", signer=1)),
    ]
    assert verdicts(checkers.OneSignaturePerView(), history) == []


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("vote", vote(5, b"a"), vote(5, b"b")),
        ("vote", vote(5, b"a"), timeout(5, vote(5, b"b"))),
        ("timeout", timeout(5, None), timeout(5, vote(5, b"a"))),
        ("timeout", timeout(5, None), timeout(5, None, b"t")),
        ("proposal", proposal(5, 1), proposal(5, 2)),
    ],
)
def test_two_different_signatures_for_a_view_are_seen(
    kind: str, first: wire.WireMessage, second: wire.WireMessage
) -> None:
    (evidence,) = verdicts(checkers.OneSignaturePerView(), [*sent(first), Crashed(0, None), *sent(second)])
    assert evidence == f"replica 0 sent two different {kind}s for view 5"


# -- the record -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [b"finished", b"torn"])
def test_the_record_survives_as_finished_or_as_being_written(found: bytes) -> None:
    history: list[Observation] = [
        Persisted(0, b"old"),
        Persisted(0, b"finished"),
        Crashed(0, b"torn"),
        Recovered(0, found),
    ]
    assert verdicts(checkers.RecordSurvives(), history) == []


@pytest.mark.parametrize("found", [b"old", None, b"torn"])
def test_a_lost_record_is_seen(found: bytes | None) -> None:
    history: list[Observation] = [
        Persisted(0, b"old"),
        Persisted(0, b"finished"),
        Crashed(0, None),
        Recovered(0, found, "gone"),
    ]
    assert len(verdicts(checkers.RecordSurvives(), history)) == 1


def test_once_a_torn_record_was_used_the_one_before_is_not_enough() -> None:
    history: list[Observation] = [
        Persisted(0, b"finished"),
        Crashed(0, b"torn"),
        Recovered(0, b"torn"),
        Crashed(0, None),
        Recovered(0, b"finished"),
    ]
    assert len(verdicts(checkers.RecordSurvives(), history)) == 1


def test_a_wiped_disk_has_another_record_and_the_next_one_is_kept() -> None:
    history: list[Observation] = [
        Persisted(0, b"lost"),
        Crashed(0, None),
        Wiped(0),
        Recovered(0, b"abstaining"),
        Crashed(0, None),
        Recovered(0, b"lost"),
    ]
    assert len(verdicts(checkers.RecordSurvives(), history)) == 1


def test_a_wiped_replica_may_not_contradict_its_life_before() -> None:
    history: list[Observation] = [*sent(vote(5, b"a")), Wiped(0), *sent(vote(5, b"b"))]
    assert len(verdicts(checkers.OneSignaturePerView(), history)) == 1


def test_a_replica_that_stops_is_seen() -> None:
    (evidence,) = verdicts(checkers.StaysUp(), [Started(0, 0), Failed(3, "KeyError")])
    assert evidence == "replica 3 stopped: KeyError"


# -- results --------------------------------------------------------------------------------------------------


def executed(state_root: bytes, code: str = "ok") -> list[Observation]:
    """A batch at height 1, and at height 2 a header that names the state after it."""
    first = Block(replace(GENESIS.header, height=1), (BATCH,))
    second = Block(replace(GENESIS.header, height=2, executed_height=1, state_root=state_root), ())
    receipt = Receipt(BATCH, code, _receipts(first)[0].position)
    return [Submitted(BATCH, DATA), Applied(0, first, (receipt,)), Applied(0, second, ())]


def _receipts(first: Block) -> tuple[Receipt, ...]:
    return Counter().apply(first, [(BATCH, DATA)], _nothing()).receipts


def _nothing() -> MemoryStore:
    return MemoryStore((key, value) for key, value in Counter().genesis().writes if value is not None)


def true_root() -> bytes:
    return Counter().apply(Block(GENESIS.header, (BATCH,)), [(BATCH, DATA)], _nothing()).state_root


def test_equal_results_hold_when_the_chain_gives_them() -> None:
    assert verdicts(EqualResults(Counter()), executed(true_root())) == []


def test_a_false_state_root_is_seen() -> None:
    (evidence,) = verdicts(EqualResults(Counter()), executed(bytes(32)))
    assert "state root" in evidence


def test_a_false_receipt_is_seen() -> None:
    (evidence,) = verdicts(EqualResults(Counter()), executed(true_root(), code="duplicate"))
    assert "other receipts" in evidence


def test_a_replica_with_a_damaged_disk_may_err_for_itself_but_certifies_nothing_false() -> None:
    history = [replace_suspect(event) for event in executed(true_root(), code="duplicate")]
    assert verdicts(EqualResults(Counter()), history) == []
    history = [replace_suspect(event) for event in executed(bytes(32))]
    assert len(verdicts(EqualResults(Counter()), history)) == 1


def replace_suspect(event: Observation) -> Observation:
    return dataclasses.replace(event, suspect=True) if isinstance(event, Applied) else event


# -- liveness -------------------------------------------------------------------------------------------------


def statuses(*committed: int, view: int = 10, up: bool = True) -> tuple[Status, ...]:
    return tuple(Status(replica, up, view, height) for replica, height in enumerate(committed))


HEALED = Healed(1000, statuses(5, 7, 6))


def test_liveness_holds_when_all_moved_on() -> None:
    assert verdicts(checkers.Liveness(30), [HEALED, Ended(2000, statuses(10, 10, 11), (), 9)]) == []


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(2000, statuses(10, 10, 10), (BATCH,), 9), "1 batches wait"),
        (Ended(2000, statuses(10, 9, 10), (), 0), "replica 1 is up, in view 10, at height 9 instead of 10"),
        (Ended(2000, statuses(10, 10, 10), (), 11), "instead of 11"),
        (Ended(2000, statuses(10, 10, 10, up=False), (), 0), "replica 0 is down"),
        (Ended(2000, statuses(10, 10, 10, view=41), (), 0), "31 views"),
    ],
)
def test_liveness_speaks_when_something_stays_behind(ended: Ended, words: str) -> None:
    (evidence,) = verdicts(checkers.Liveness(30), [HEALED, ended])
    assert words in evidence


def test_a_disk_that_does_not_become_whole_is_seen() -> None:
    history: list[Observation] = [
        HEALED,
        Ended(2000, statuses(10, 10, 10), (), 0),
        Opened(1, MemoryStore(), whole=False),
    ]
    (evidence,) = verdicts(checkers.Liveness(30), history)
    assert "replica 1 still lacks records" in evidence


def test_nothing_is_demanded_of_a_run_that_did_not_heal() -> None:
    assert verdicts(checkers.Liveness(30), [Ended(2000, statuses(0), (BATCH,), 0)]) == []


@pytest.mark.parametrize(
    ("views", "milliseconds", "speaks"), [(8, 4_000, False), (9, 100, True), (1, 4_001, True)]
)
def test_a_bystander_that_waits_for_long_is_seen(views: int, milliseconds: int, speaks: bool) -> None:
    checker = checkers.Unhindered(depth=2, liars=1, view_timeout=500)
    said = verdicts(checker, [Served("publication", 1, views, milliseconds)])
    assert [words.split(" took ")[0] for words in said] == ["the publication of a bystander"] * speaks
    assert verdicts(checker, [Served("staged row", 2, views, milliseconds)]) == []


@pytest.mark.parametrize(("event", "speaks"), [("slow", True), ("in time", False), ("suspect", False)])
def test_a_block_that_takes_long_is_seen(event: str, speaks: bool) -> None:
    took = 250_000 if event == "in time" else 250_001
    slow = dataclasses.replace(applied(2, 7), execution_us=took, suspect=event == "suspect")
    said = verdicts(checkers.BoundedExecution(250), [slow])
    assert said == ["replica 2 executed block 7 for 250 ms, longer than 250 ms"] * speaks


def test_violations_carry_name_and_time_and_are_bounded() -> None:
    all_of_them = Checkers([checkers.Agreement(), checkers.StaysUp()])
    for time in range(1000):
        all_of_them.see(time, Failed(0, "again"))
    assert all_of_them.violations[0].checker == "stays up"
    assert all_of_them.violations[7].time == 7
    assert len(all_of_them.violations) == checkers.MAX_VIOLATIONS
