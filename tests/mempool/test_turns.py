"""Whose batches fill the blocks: nobody's for ever, nobody's before those of others who wait, and nobody's twice in a hurry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.mempool.pools import ME, ROOMY, SIZE, Disk

from parley.consensus.types import MAX_BATCHES
from parley.ledger.application import AdmittedBatch, Receipt, Results
from parley.mempool.pool import Intake, Limits, Pool, StoreBatch, batch_digest
from parley.mempool.turns import FEWEST, FIRST_HOLD, LONGEST_PAUSE, MAX_EARLY, MAX_IN_VAIN, Turns
from parley.model.refusals import OK, Busy, OutOfSequence

MALLORY, ALICE, BOB = b"m", b"a", b"b"
FAR = 1_000  # heights, by which everything that repeats itself has stopped


def of(author: bytes, number: int, session: int = 0) -> bytes:
    return author + number.to_bytes(4, "big") + (session.to_bytes(2, "big") if session else b"")


def number_of(data: bytes) -> int:
    return int.from_bytes(data[1:5], "big")


def admit(data: bytes) -> AdmittedBatch:
    number = number_of(data)
    return AdmittedBatch(batch_digest(data), data[:1], data, b"session" + data[5:], number, number + 1)


class Chain:
    """Blocks that one pool fills and executes, two of them on their way at a time. What becomes of a batch, a test says."""

    def __init__(self, limits: Limits = ROOMY) -> None:
        self.pool = Pool(ME, SIZE, limits, Disk().written.get, admit)
        self.height = 0
        self.blocks: list[list[bytes]] = []  # the bodies in each
        self.gone: set[bytes] = set()
        self.early: list[int] = []  # how many in each were too early
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

    def restart(self) -> None:
        """With what is on disk; the blocks on their way are abandoned."""
        stored = list(self.pool._pending.items())
        self.pool = Pool(ME, SIZE, ROOMY, Disk().written.get, admit)
        self.pool.restore(reversed(stored))
        self._way.clear()

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
            self.early.append(sum(one == OutOfSequence.code for one in codes))
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
            author, number = data[:1], number_of(data)
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


# -- a session's order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 700])
@pytest.mark.parametrize("entries", [(1, 1), (1, 2)])
def test_a_session_whose_batches_came_in_a_wrong_order_once_is_not_ordered_out_of_turn_for_ever(
    first: int, entries: tuple[int, int]
) -> None:
    """A convoy: batches that are put behind younger ones make these too early as well, and so on."""
    chain, apply = Chain(), in_sequence(first)
    chain.announce(entries[0], *(of(ALICE, first + number) for number in range(4, 10)))
    chain.grow(4, apply)
    chain.announce(entries[1], *(of(ALICE, first + number) for number in range(4)))
    for number in range(10, 190, 3):
        chain.announce(entries[number % 2], *(of(ALICE, first + number + more) for more in range(3)))
        chain.grow(1, apply)
    assert not any(chain.early[8:])
    assert len(chain.pool) <= 4 * 3  # three blocks are on their way
    assert max(chain.ordered.values()) == 2


@settings(derandomize=True, deadline=None, max_examples=60, phases=[Phase.explicit, Phase.generate])
@given(
    st.permutations(range(24)),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=24, max_size=24),
    st.sampled_from([0, 700]),
    st.sampled_from([ROOMY, Limits(block_bytes=15)]),
)
def test_whatever_way_and_order_a_sessions_batches_come_in_all_are_applied_and_none_is_given_up(
    order: list[int], ways: list[tuple[int, int]], first: int, limits: Limits
) -> None:
    chain, apply = Chain(limits), in_sequence(first)
    chain.announce(
        1, *(of(bytes([200 + number]), 0) for number in range(20))
    )  # others, which are never applied
    for number, (entry, heights) in zip(order, ways, strict=True):
        chain.announce(entry, of(ALICE, first + number))
        chain.grow(heights, apply)
    chain.grow(120, apply)
    assert {batch_digest(of(ALICE, first + number)) for number in range(24)} <= chain.gone
    assert max(chain.ordered.values()) <= MAX_EARLY
    assert apply([of(ALICE, first + 24)]) == [OK]  # all before it were applied


def test_a_gap_that_is_filled_slowly_does_not_have_what_waits_behind_it_ordered_with_every_batch() -> None:
    chain, apply = Chain(), in_sequence(700)
    chain.announce(1, *(of(ALICE, number) for number in range(740, 760)))
    chain.grow(3, apply)
    for number in range(739, 719, -1):  # the other way round
        chain.announce(2, of(ALICE, number))
        chain.grow(1, apply)
    for number in range(700, 720):
        chain.announce(3, of(ALICE, number))
        chain.grow(1, apply)
    chain.grow(4, apply)
    assert len(chain.gone) == 60
    assert max(chain.ordered.values()) <= MAX_EARLY


def test_a_session_that_is_held_does_not_hold_its_authors_other_ones() -> None:
    chain = Chain()
    chain.announce(1, *(of(ALICE, number, 1) for number in range(9, 20)))

    def apply(bodies: Sequence[bytes]) -> list[str]:
        return [OK if len(data) == 5 else OutOfSequence.code for data in bodies]

    for number in range(300):
        chain.announce(1, of(ALICE, number))
        chain.grow(1, apply)
        assert len(chain.gone) >= number - 3
    assert max(chain.ordered.values()) == MAX_EARLY


def test_four_thousand_sessions_of_one_batch_with_a_wrong_sequence_are_ordered_a_few_times_each() -> None:
    chain = Chain()
    for entry in (1, 2):
        chain.announce(entry, *(of(MALLORY, 9, 2_000 * entry + number) for number in range(2_000)))
    chain.grow(200, always(OutOfSequence.code))
    assert len(chain.gone) == 4_000
    assert set(chain.ordered.values()) == {MAX_EARLY}
    turns = chain.pool._turns
    assert not turns._batches
    assert not turns._queues
    assert not turns._sessions
    assert not turns._early
    assert not turns._due


def test_a_session_goes_on_in_order_when_its_client_sends_one_of_its_batches_again() -> None:
    chain = Chain()
    waiting = [of(ALICE, number) for number in (7, 5, 6)]
    for data in waiting:
        chain.hand_in(data)
    chain.announce(1, of(ALICE, 8))
    chain.grow(3, always(OutOfSequence.code))
    assert chain.pool.payload(()) == ()
    assert chain.hand_in(of(ALICE, 6)) is Intake.KNOWN
    assert chain.pool.payload(()) == tuple(batch_digest(of(ALICE, number)) for number in (5, 6, 7, 8))


def test_batches_that_were_on_their_way_behind_some_without_room_go_on_behind_them() -> None:
    chain, apply = Chain(), in_sequence(0, room=0)
    chain.announce(1, *(of(ALICE, number) for number in range(6)))
    chain.grow(1, apply)
    chain.announce(1, *(of(ALICE, number) for number in range(6, 12)))
    chain.grow(2, apply)  # the first block had no room
    apply = in_sequence(0)
    chain.grow(12, apply)
    assert len(chain.gone) == 12
    assert set(chain.ordered.values()) == {2}


def test_a_session_through_several_brokers_is_ordered_in_order_though_one_of_them_has_more_authors() -> None:
    """Blocks hold three batches."""
    chain, apply = Chain(Limits(block_bytes=15)), in_sequence(0)
    chain.announce(1, *(of(bytes([200 + number]), 0) for number in range(40)))
    for number in range(20):
        chain.announce(1 + number % 2, of(ALICE, number))
    chain.grow(80, apply)
    alices = [data for bodies in chain.blocks for data in bodies if data[:1] == ALICE]
    assert alices == [of(ALICE, number) for number in range(20)]


def test_after_a_restart_a_sessions_batches_are_proposed_in_order() -> None:
    chain, apply = Chain(), in_sequence(0)
    chain.announce(1, of(ALICE, 3), of(ALICE, 1))
    chain.grow(3, apply)
    chain.announce(2, of(ALICE, 2), of(ALICE, 0))
    chain.restart()
    names = chain.pool.payload(())
    assert names == tuple(batch_digest(of(ALICE, number)) for number in range(4))


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
    st.tuples(
        st.just("add"), names, st.integers(0, 1), st.integers(0, 1), st.integers(0, 1), st.integers(0, 4)
    ),
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
            case ("add", bytes(name), int(entry), int(author), int(session), int(sequence)) if (
                name not in waiting
            ):
                waiting[name] = entry, bytes([author])
                turns.add(name, entry, bytes([author]), b"s" * session, (sequence, sequence + 1))
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
    queue = turns._batches[name][0]
    return queue.keeps_order or name in list(queue.put_off)[queue.window :]


def _check(turns: Turns, waiting: dict[bytes, tuple[int, bytes]], height: int) -> None:
    batches = turns._batches
    assert {name: (queue.entry, queue.author) for name, (queue, _, _) in batches.items()} == waiting
    assert {key: queue.size for key, queue in turns._queues.items()} == Counter(waiting.values())
    sessions = Counter(session for _, session, _ in batches.values())
    assert {session: session.size for session in turns._sessions.values()} == sessions
    assert turns._early.keys() <= waiting.keys()
    offered = list(turns.offer(()))
    assert len(offered) == len(set(offered))
    for name, (queue, session, place) in batches.items():
        assert (name in queue.put_off) != (place in session.places)
        assert (queue in session.queues) <= ((session.key in queue.open) == session.is_open)
        assert (turns._ready[queue.entry].get(queue.author) is queue) == queue.is_ready(height)
    for session in sessions:
        assert session.places == sorted(session.places)
        assert session.queues == Counter(batches[place[2]][0] for place in session.places)
        assert not session.until or session.until > height
        # What is held is not offered.
        bound = max(session.limit, session.reach)
        assert not any(place[0] >= bound and place[2] in offered for place in session.places)
    assert all(queue.open.keys() <= {one.key for one in sessions} for queue in turns._queues.values())
