"""Whose batches fill the blocks: nobody's for ever, nobody's before those of others who wait, and nobody's twice in a hurry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mempool.pools import ME, ROOMY, SIZE, Disk

from parley.consensus.types import MAX_BATCHES
from parley.ledger.application import AdmittedBatch, Receipt, Results
from parley.mempool.pool import Intake, Limits, Pool, StoreBatch, batch_digest
from parley.mempool.turns import FEWEST, FIRST_HOLD, LONGEST_PAUSE, MAX_EARLY, MAX_IN_VAIN, Turns
from parley.model.refusals import OK, Busy, OutOfSequence

MALLORY, ALICE, BOB = b"m", b"a", b"b"
FAR = 1_000  # heights, by which everything that repeats itself has stopped


def of(author: bytes, number: int) -> bytes:
    return author + number.to_bytes(4, "big")


def admit(data: bytes) -> AdmittedBatch:
    return AdmittedBatch(batch_digest(data), data[:1], data)


class Chain:
    """Blocks that one pool fills and executes, two of them on their way at a time. What becomes of a batch, a test says."""

    def __init__(self, limits: Limits = ROOMY) -> None:
        self.pool = Pool(ME, SIZE, limits, Disk().written.get, admit)
        self.height = 0
        self.blocks: list[list[bytes]] = []  # the bodies in each
        self.gone: set[bytes] = set()
        self._bodies: dict[bytes, bytes] = {}
        self._way: list[tuple[bytes, ...]] = []

    def announce(self, entry: int, *bodies: bytes) -> None:
        for data in bodies:
            self._bodies[batch_digest(data)] = data
            assert self.pool.receive(entry, data, self.height)

    def hand_in(self, data: bytes) -> Intake:
        """As a client of this broker does."""
        self._bodies[batch_digest(data)] = data
        intake, _ = self.pool.submit(admit(data), self.height)
        return intake

    def grow(self, heights: int, code: Callable[[Sequence[bytes]], Sequence[str]]) -> None:
        """`code` gives the codes of the receipts of a block's bodies."""
        for _ in range(heights):
            self._way.append(self.pool.payload(frozenset().union(*self._way)))
            if len(self._way) < 3:
                continue
            names = self._way.pop(0)
            bodies = [self._bodies[name] for name in names]
            codes = code(bodies)
            receipts = tuple(Receipt(name, one, 0) for name, one in zip(names, codes, strict=True))
            done = frozenset(name for name, one in zip(names, codes, strict=True) if one == OK)
            results = Results((), b"", receipts, done)
            self.height += 1
            self.blocks.append(bodies)
            self.gone |= set(self.pool.settle(names, results.settled, self.height, results.put_off))

    @property
    def ordered(self) -> Counter[bytes]:
        return Counter(data for bodies in self.blocks for data in bodies)


def always(code: str) -> Callable[[Sequence[bytes]], Sequence[str]]:
    return lambda bodies: [code] * len(bodies)


def in_sequence(*expected: int, room: int = MAX_BATCHES) -> Callable[[Sequence[bytes]], Sequence[str]]:
    """Each author's batches by their numbers, as many in a block as there is room for; once one is put off, so are those
    after it. Mallory's come too early.
    """
    following = dict.fromkeys((ALICE, BOB), expected[0] if expected else 0)

    def apply(bodies: Sequence[bytes]) -> list[str]:
        codes = dict.fromkeys(bodies, OutOfSequence.code)
        left, put_off = room, set[bytes]()
        for data in sorted(bodies, key=lambda data: data[1:]):
            author, number = data[:1], int.from_bytes(data[1:], "big")
            if author in put_off:
                codes[data] = Busy.code
            elif following.get(author) != number:
                continue
            elif left:
                left -= 1
                following[author] += 1
                codes[data] = OK
            else:
                put_off.add(author)
                codes[data] = Busy.code
        return list(codes.values())

    return apply


# -- repeating, and its end ------------------------------------------------------------------------------------------


def test_batches_of_wrong_sequences_are_ordered_a_few_times_and_no_more_after_their_sender_has_left() -> None:
    chain = Chain()
    bodies = [of(MALLORY, 1_000 + number) for number in range(100)]
    chain.announce(1, *bodies)
    chain.grow(200, always(OutOfSequence.code))
    assert set(chain.ordered.values()) == {MAX_EARLY}
    assert chain.gone == set(map(batch_digest, bodies))
    assert len(chain.pool) == 0
    assert not any(chain.blocks[-50:])


def test_holds_grow_each_time() -> None:
    chain = Chain()
    chain.announce(1, of(MALLORY, 9))
    chain.grow(200, always(OutOfSequence.code))
    at = [height for height, bodies in enumerate(chain.blocks) if bodies]
    waits = [after - before for before, after in pairwise(at)]
    assert all(wait >= FIRST_HOLD << number for number, wait in enumerate(waits))


def test_batches_that_never_find_room_are_ordered_a_few_times_and_no_more_after_their_sender_has_left() -> (
    None
):
    chain = Chain()
    bodies = [of(MALLORY, number) for number in range(1_000)]
    chain.announce(1, *bodies)
    chain.grow(FAR, always(Busy.code))
    assert chain.gone == set(map(batch_digest, bodies))
    # All once; from then on only as many as show whether there is room.
    assert chain.ordered.total() <= len(bodies) + FEWEST * MAX_IN_VAIN
    used = [height for height, filled in enumerate(chain.blocks) if filled]
    assert used[-1] <= (LONGEST_PAUSE + 3) * MAX_IN_VAIN


def test_what_is_given_up_may_be_handed_in_again_and_leaves_the_disk_like_what_has_expired() -> None:
    chain = Chain()
    early = of(ALICE, 5)
    chain.announce(1, early)
    chain.grow(200, always(OutOfSequence.code))
    assert chain.gone == {batch_digest(early)}  # the replica deletes the marks of these
    assert chain.pool.body(batch_digest(early)) is None
    intake, effects = chain.pool.submit(admit(early), chain.height)
    assert intake is Intake.TAKEN
    assert isinstance(effects[0], StoreBatch)
    chain.gone.clear()
    chain.grow(10, in_sequence(5))
    assert chain.gone == {batch_digest(early)}


@pytest.mark.parametrize("code", [OutOfSequence.code, Busy.code])
def test_a_batch_whose_client_keeps_asking_is_not_given_up(code: str) -> None:
    chain = Chain()
    waits = of(ALICE, 5)
    chain.hand_in(waits)
    for _ in range(2 * MAX_IN_VAIN):
        chain.grow(20, always(code))
        assert chain.hand_in(waits) is Intake.KNOWN
        assert chain.pool.payload(()) == (batch_digest(waits),)
    assert not chain.gone


# -- gaps ----------------------------------------------------------------------------------------------------------------


def test_when_a_gap_is_filled_through_another_broker_what_waited_behind_it_is_ordered_at_once() -> None:
    chain, apply = Chain(), in_sequence(0)
    chain.announce(1, *(of(ALICE, number) for number in range(1, 16)))
    chain.grow(24, apply)
    chain.announce(2, of(ALICE, 0))
    chain.grow(8, apply)
    assert len(chain.gone) == 16
    assert len(chain.pool) == 0


def test_an_author_that_goes_on_does_not_have_its_early_batches_ordered_with_every_one_of_the_others() -> (
    None
):
    chain, apply = Chain(), in_sequence(0)
    early = [of(ALICE, number) for number in range(5_000, 5_100)]
    chain.announce(1, *early)
    for number in range(300):
        chain.announce(1, of(ALICE, number))
        chain.grow(1, apply)
    assert set(map(batch_digest, early)) <= chain.gone
    assert max(chain.ordered[data] for data in early) <= 2 * MAX_EARLY
    assert sum(chain.ordered[of(ALICE, number)] for number in range(290)) == 290


# -- no room ---------------------------------------------------------------------------------------------------------------


def test_a_batch_that_found_no_room_does_not_fall_behind_fresh_ones() -> None:
    """Blocks hold two batches and have room for the first of them; forty other authors wait."""
    chain = Chain(Limits(block_bytes=10))
    chain.announce(1, of(BOB, 0), of(ALICE, 0), *(of(bytes([120 + number]), 0) for number in range(40)))
    chain.grow(30, lambda bodies: [OK, Busy.code][: len(bodies)])
    tried = [height for height, filled in enumerate(chain.blocks) if of(ALICE, 0) in filled]
    assert batch_digest(of(ALICE, 0)) in chain.gone
    assert len(tried) == 2
    assert tried[1] <= 5


def test_the_oldest_batch_that_found_no_room_goes_before_its_authors_younger_ones() -> None:
    chain = Chain()
    chain.announce(1, of(ALICE, 0), of(ALICE, 1))
    chain.grow(3, always(Busy.code))
    chain.announce(1, *(of(ALICE, number) for number in range(2, 9)))
    chain.grow(6, always(Busy.code))
    assert [filled for filled in chain.blocks if filled][1] == [of(ALICE, 0), of(ALICE, 1)]


def test_a_backlog_with_room_for_one_batch_a_block_is_not_ordered_whole_with_every_block() -> None:
    chain, apply = Chain(), in_sequence(0, room=1)
    bodies = [of(ALICE, number) for number in range(200)]
    chain.announce(1, *bodies)
    chain.grow(900, apply)
    assert chain.gone == set(map(batch_digest, bodies))
    assert chain.ordered.total() <= 4 * len(bodies)


@pytest.mark.parametrize("asking", [False, True])
def test_an_author_without_room_for_one_session_goes_on_with_the_others(asking: bool) -> None:
    chain = Chain()
    chain.announce(1, *(of(ALICE, number) for number in range(1_000, 1_100)))

    def apply(bodies: Sequence[bytes]) -> list[str]:
        return [Busy.code if data >= of(ALICE, 1_000) else OK for data in bodies]

    for number in range(100):
        chain.announce(1, of(ALICE, number))
        chain.grow(2, apply)
        if asking:
            assert chain.hand_in(of(ALICE, 1_000)) is Intake.KNOWN
        assert len(chain.gone) >= number - 10
    chain.grow(10, apply)
    assert {batch_digest(of(ALICE, number)) for number in range(100)} <= chain.gone


# -- turns -----------------------------------------------------------------------------------------------------------------


def test_a_flood_of_one_author_does_not_make_another_of_the_same_broker_wait_for_a_block() -> None:
    chain = Chain(Limits(block_bytes=100))
    chain.announce(1, *(of(MALLORY, number) for number in range(1_024)))
    chain.announce(1, of(ALICE, 0))
    assert batch_digest(of(ALICE, 0)) in chain.pool.payload(())[:2]


def test_authors_take_turns_from_block_to_block() -> None:
    """Twenty authors, and room for two batches in a block."""
    chain = Chain(Limits(block_bytes=10))
    authors = [bytes([number]) for number in range(20)]
    for author in authors:
        chain.announce(1, *(of(author, number) for number in range(8)))
    chain.grow(42, always(OK))
    served = Counter(data[:1] for filled in chain.blocks for data in filled)
    assert set(served) == set(authors)
    assert max(served.values()) - min(served.values()) <= 3


def test_the_batches_of_one_author_keep_their_order() -> None:
    chain = Chain()
    for number in range(50):
        chain.announce(1, of(ALICE, number))
        chain.announce(1, of(BOB, number))
    names = chain.pool.payload(())
    for author in (ALICE, BOB):
        mine = [batch_digest(of(author, number)) for number in range(50)]
        assert [name for name in names if name in mine] == mine


class Counted(frozenset[bytes]):
    """An empty set that counts how often it is looked into."""

    looked = 0

    def __contains__(self, _: object) -> bool:
        self.looked += 1
        return False


def test_a_proposal_looks_at_what_it_takes_and_not_at_all_that_waits() -> None:
    chain = Chain(Limits(block_bytes=500))
    for entry in (1, 2, 3):
        for author in range(200):
            chain.announce(entry, *(of(bytes([author]), 100 * entry + number) for number in range(20)))
    counted = Counted()
    assert len(chain.pool.payload(counted)) == 100
    assert counted.looked <= 101


# -- every history ---------------------------------------------------------------------------------------------------------

names = st.integers(0, 14).map(lambda number: bytes([number]))
moves = st.one_of(
    st.tuples(st.just("add"), names, st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("hasten"), names),
    st.tuples(
        st.just("executed"),
        st.lists(names, max_size=6),
        st.lists(names, max_size=3),
        st.lists(names, max_size=4),
        st.integers(1, 5),
    ),
)


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.lists(moves, max_size=60))
def test_after_every_history_what_waits_is_offered_in_time_or_given_up(
    history: list[tuple[object, ...]],
) -> None:
    turns, waiting, height = Turns(2), dict[bytes, tuple[int, bytes]](), 0
    for move in history:
        match move:
            case ("add", bytes(name), int(entry), int(author)) if name not in waiting:
                waiting[name] = entry, bytes([author])
                turns.add(name, entry, bytes([author]))
            case ("remove", bytes(name)) if name in waiting:
                del waiting[name]
                turns.remove(name)
            case ("hasten", bytes(name)):
                turns.hasten(name)
                assert name not in waiting or name in set(turns.offer(())) or _is_behind(turns, name)
            case ("executed", list(ordered), list(settled), list(put_off), int(more)):
                height += more
                for name in turns.executed(ordered, settled, put_off, height):
                    del waiting[name]
            case _:
                pass
        _check(turns, waiting, height)
    for _ in range(2 * MAX_IN_VAIN * LONGEST_PAUSE):
        height += 1
        chosen = list(turns.offer(()))
        for name in turns.executed(chosen, (), chosen, height):
            del waiting[name]
    assert not waiting


def _is_behind(turns: Turns, name: bytes) -> bool:
    """Behind older ones of its author that were put off."""
    queue = turns._queue_of[name]
    return queue.keeps_order or name in list(queue.put_off)[queue.window :]


def _check(turns: Turns, waiting: dict[bytes, tuple[int, bytes]], height: int) -> None:
    assert {name: (queue.entry, queue.author) for name, queue in turns._queue_of.items()} == waiting
    assert {key: queue.size for key, queue in turns._queues.items()} == Counter(waiting.values())
    offered = list(turns.offer(()))
    assert len(offered) == len(set(offered))
    for name, queue in turns._queue_of.items():
        held = name not in queue.fresh and name not in queue.put_off
        assert not (name in queue.fresh and name in queue.put_off)
        assert held <= (name in turns._holds)
        assert not held or turns._holds[name].until > height
        assert not held or name not in offered
        assert (turns._ready[queue.entry].get(queue.author) is queue) == queue.is_ready(height)
    held_names = {name for held in turns._held.values() for name in held}
    assert held_names <= turns._holds.keys() <= waiting.keys()
