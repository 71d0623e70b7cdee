"""The counting application: each author's batches in order, each once, and a root that depends on the state alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replica.driver import MemoryStore

from parley.consensus.types import Block, Instance, genesis_block
from parley.ledger.application import AdmittedBatch, Erasure
from parley.ledger.bodies import kept_batches
from parley.mempool.messages import MAX_BATCH_BYTES
from parley.mempool.pool import batch_digest
from parley.model.refusals import Oversized
from parley.replica.ports import Results
from parley.sim.counter import Counter, encode_batch, mounted

BLOCK: Block = genesis_block(Instance(bytes(32), 0, 0, 4, 1), bytes(32), 0)


class Ledger:
    """The application over a store that takes its writes."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.root = self._take(Counter().genesis())

    def apply(self, *bodies: bytes) -> Results:
        outcome = Counter().apply(BLOCK, [(batch_digest(body), body) for body in bodies], self.store)
        self.root = self._take(outcome)
        return outcome

    def codes(self, *bodies: bytes) -> dict[bytes, str]:
        names = {batch_digest(body): body for body in bodies}
        return {names[receipt.batch]: receipt.code for receipt in self.apply(*bodies).receipts}

    def _take(self, outcome: Results) -> bytes:
        self.store.write(outcome.writes)
        return outcome.state_root


def batch(author: int, sequence: int, payload: bytes = b"") -> bytes:
    return encode_batch(author, sequence, payload)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_within_a_block_a_session_applies_in_sequence_whatever_the_leader_chose_p3(
    order: Sequence[int],
) -> None:
    ledger = Ledger()
    outcome = ledger.apply(*(batch(1, sequence) for sequence in order))
    assert [receipt.code for receipt in outcome.receipts] == ["ok"] * 3
    assert [receipt.position for receipt in outcome.receipts] == [1, 2, 3]


def test_a_second_batch_of_a_sequence_is_a_duplicate_and_counts_nothing() -> None:
    ledger = Ledger()
    assert set(ledger.codes(batch(1, 0)).values()) == {"ok"}
    root = ledger.root
    assert set(ledger.codes(batch(1, 0), batch(1, 0, b"other")).values()) == {"duplicate"}
    assert ledger.root == root


def test_of_two_batches_with_one_sequence_in_a_block_the_first_named_counts() -> None:
    first, second = batch(1, 0, b"first"), batch(1, 0, b"second")
    assert Ledger().codes(first, second) == {first: "ok", second: "duplicate"}
    assert Ledger().codes(second, first) == {second: "ok", first: "duplicate"}


def test_a_gap_is_out_of_sequence_consumes_nothing_and_is_not_settled() -> None:
    ledger = Ledger()
    outcome = ledger.apply(batch(1, 1), batch(2, 0))
    assert outcome.settled == {batch_digest(batch(2, 0))}
    assert ledger.codes(batch(1, 0), batch(1, 1)) == {batch(1, 0): "ok", batch(1, 1): "ok"}


@pytest.mark.parametrize("size", [0, 1, 4, 11])
def test_a_malformed_batch_counts_nothing_and_is_settled(size: int) -> None:
    ledger = Ledger()
    root = ledger.root
    outcome = ledger.apply(bytes(size))
    assert [receipt.code for receipt in outcome.receipts] == ["malformed"]
    assert outcome.settled == {batch_digest(bytes(size))}
    assert outcome.writes == ()
    assert ledger.root == root


@pytest.mark.parametrize("size", [0, MAX_BATCH_BYTES + 1])
def test_a_batch_of_no_size_that_a_broker_stores_is_not_admitted(size: int) -> None:
    with pytest.raises(Oversized) as refused:
        Counter().admit(bytes(size))
    assert refused.value.fields == {"size": size, "limit": MAX_BATCH_BYTES}


def test_every_body_is_kept_and_nothing_is_indexed() -> None:
    ledger, (machine, keeper) = Ledger(), mounted()
    body = batch(0, 0)
    (leaf,) = ledger.apply(body).leaves
    admitted = machine.admit(body)
    assert admitted == AdmittedBatch(batch_digest(body), b"", body)
    assert keeper.is_body(body, admitted.digest)
    assert not any(keeper.is_body(other, admitted.digest) for other in (b"", body[:-1], batch(0, 1)))
    assert keeper.keeps(leaf, ledger.store)
    assert keeper.receipt(leaf) is None
    assert keeper.receipt_height(admitted.digest, ledger.store) is None
    indexing = keeper.indexing(1, ledger.store)
    assert (indexing.add([leaf]), [*indexing.rest()]) == ((), [])
    assert keeper.passing() == ()
    assert keeper.erase(ledger.store, 10**6, 100) == Erasure((), ())
    block = Block(BLOCK.header, (admitted.digest,))
    assert kept_batches(block, [leaf], keeper, ledger.store, highest=10**6) == block.batches
    with pytest.raises(ValueError, match="no known kind"):
        keeper.place_of(b"ireceipt/" + admitted.digest, b"")


def test_an_empty_block_changes_nothing() -> None:
    ledger = Ledger()
    root = ledger.root
    assert ledger.apply() == Results((), root, (), frozenset())


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12), st.data())
def test_the_root_depends_on_the_state_and_not_on_the_way_to_it(
    counts: list[tuple[int, int]], data: st.DataObject
) -> None:
    totals: dict[int, int] = {}
    for author, count in counts:
        totals[author] = totals.get(author, 0) + count
    bodies = [batch(author, sequence) for author, total in totals.items() for sequence in range(total)]
    at_once, one_by_one = Ledger(), Ledger()
    at_once.apply(*data.draw(st.permutations(bodies)))
    for body in bodies:
        one_by_one.apply(body, body[:5])
    assert at_once.root == one_by_one.root
    assert at_once.store.entries == one_by_one.store.entries
    assert (at_once.root == Ledger().root) == (not bodies)


def test_other_counts_give_other_roots() -> None:
    roots = set()
    for author in range(3):
        ledger = Ledger()
        for sequence in range(3):
            ledger.apply(batch(author, sequence))
            roots.add(ledger.root)
    assert len(roots) == 9
