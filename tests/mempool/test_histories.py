"""After every history of calls the pool is what a plain model of it says."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mempool.pools import ME, SIZE, TIGHT, Disk, asked, block_of, body, new_pool, timer_of

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Broadcast, SetTimer
from parley.consensus.types import Block
from parley.mempool.fetch import FETCH_GRACE
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import (
    SLACK,
    BatchTimer,
    Effect,
    Intake,
    Pending,
    Pool,
    Ready,
    StoreBatch,
    TooLarge,
    admit_any,
    batch_digest,
)
from parley.mempool.turns import MAX_EARLY

numbers = st.integers(0, 11)
members = st.integers(0, SIZE - 1)
advances = st.integers(0, 4)  # heights only grow
steps = st.one_of(
    st.tuples(st.just("receive"), members, numbers),
    st.tuples(st.just("submit"), numbers),
    st.tuples(
        st.just("fetch"), st.lists(numbers, min_size=1, max_size=4, unique=True), members, st.booleans()
    ),
    st.tuples(st.just("abandon"), st.integers(0, 20)),
    st.tuples(st.just("timer"), st.integers(0, 40)),
    st.tuples(st.just("settle"), st.lists(numbers, max_size=4), st.lists(numbers, max_size=4), advances),
    st.tuples(st.just("payload"), st.lists(numbers, max_size=4)),
)


INTAKES = {Intake.KNOWN: Reason.REPLAYED, Intake.FULL: Reason.QUOTA}  # as for other brokers


def body_of(number: int) -> bytes:
    return body(number, 10 + 5 * number)


def name_of(number: int) -> bytes:
    return batch_digest(body_of(number))


def accept(pool: Pool, sender: int | None, data: bytes, height: int) -> list[Effect] | Reason:
    """What the pool does with a batch, or why it refuses it; `sender` is None for a client."""
    try:
        if sender is not None:
            return pool.receive(sender, data, height)
        intake, effects = pool.submit(admit_any(data), height)
        assert (intake is Intake.TAKEN) == bool(effects)
        return effects if intake is Intake.TAKEN else INTAKES[intake]
    except Refused as refused:
        return refused.reason


class History:
    """Plays arbitrary calls and compares the pool with a plain model of what must be true."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.pool = new_pool(TIGHT, self.disk)
        self.waiting: dict[bytes, Pending] = {}
        self.settled: dict[bytes, None] = {}
        self.missing: dict[bytes, set[bytes]] = {}  # block -> digests that are neither waiting nor stored
        self.room: dict[bytes, int | None] = {}
        self.graced: set[bytes] = set()  # blocks that nobody has been asked about yet
        self.blocks: list[Block] = []
        self.timers: list[BatchTimer] = []
        self.vain: Counter[bytes] = Counter()  # how often a waiting batch was ordered in vain
        self.fetched: set[bytes] = set()
        self.height = 0

    def take(self, entry: int, number: int, *, announce: bool) -> None:
        data = body_of(number)
        name = batch_digest(data)
        wanted = any(name in missing for missing in self.missing.values())
        waits = announce or not wanted
        share = [pending for pending in self.waiting.values() if pending.entry == entry]
        slack = 1 if entry == ME else SLACK
        fits = len(share) < slack * TIGHT.pending_batches and (
            sum(len(pending.data) for pending in share) + len(data) <= slack * TIGHT.pending_bytes
        )
        result = accept(self.pool, None if announce else entry, data, self.height)
        if isinstance(result, Reason):
            assert waits
            known = name in self.waiting or name in self.settled or (name in self.fetched and not announce)
            assert result is (Reason.REPLAYED if known else Reason.QUOTA)
            assert known or not fits
            return
        assert not waits or fits
        assert name not in self.waiting
        pending = Pending(entry, self.height, data)
        assert result[0] == StoreBatch(name, pending, sync=announce or wanted, waits=waits)
        assert [effect for effect in result[1:] if not isinstance(effect, Broadcast)] == self.arrive(
            name, len(data)
        )
        assert (result[-1] == Broadcast(BatchMessage(data))) == announce
        self.disk.write(result)
        if waits:
            self.waiting[name] = pending
        else:
            self.fetched.add(name)

    def arrive(self, name: bytes, size: int) -> list[Ready | TooLarge]:
        done: list[Ready | TooLarge] = []
        for block, missing in self.missing.items():
            if name not in missing:
                continue
            missing.discard(name)
            room = self.room[block]
            self.room[block] = room = None if room is None else room - size
            if room is not None and room < 0:
                done.append(TooLarge(block))
            elif not missing:
                done.append(Ready(block))
        for effect in done:
            self.drop(effect.block)
        return done

    def fetch(self, chosen: list[int], proposer: int, committed: bool) -> None:
        bodies = [body_of(number) for number in chosen]
        block = block_of(*bodies, proposer=proposer, view=len(self.blocks) % 7)
        self.blocks.append(block)
        missing = {
            name for name in block.batches if name not in self.waiting and name not in self.disk.written
        }
        held = sum(len(data) for data in bodies if batch_digest(data) not in missing)
        effects = self.pool.fetch(block, committed=committed)
        if not committed and held > TIGHT.block_bytes:
            assert effects == [TooLarge(block.id)]
            return
        if not missing:
            assert effects == [Ready(block.id)]
            return
        self.room[block.id] = None if committed else TIGHT.block_bytes - held
        if block.id in self.missing:
            if committed and block.id in self.graced:
                self.asked(block.id, effects)
            else:
                assert effects == []
            return
        self.missing[block.id] = missing
        if committed:
            self.asked(block.id, effects)
        else:
            self.graced.add(block.id)
            assert effects == [SetTimer(BatchTimer(block.id, 0), FETCH_GRACE)]
            self.timers.append(timer_of(effects))

    def asked(self, block: bytes, effects: list[Effect]) -> None:
        ((peer, names),) = asked(effects)
        assert peer != ME
        assert set(names) == self.missing[block]
        self.graced.discard(block)
        self.timers.append(timer_of(effects))

    def fire(self, timer: BatchTimer) -> None:
        effects = self.pool.on_timer(timer)
        assert not effects or timer.block in self.missing
        assert effects or timer.block not in self.graced or timer.attempt
        if effects:
            self.asked(timer.block, effects)

    def drop(self, block: bytes) -> None:
        self.missing.pop(block, None)
        self.graced.discard(block)

    def settle(self, ordered: list[bytes], settled: list[bytes], advance: int) -> None:
        self.height += advance
        gone = self.pool.settle(ordered, settled, self.height)
        done = [name for name in ordered if name in settled]
        self.settled |= dict.fromkeys(done)
        old = {name for name, pending in self.waiting.items() if pending.height + TIGHT.expiry < self.height}
        self.vain.update(name for name in set(ordered) - set(done) if name in self.waiting)
        assert len(gone) == len(set(gone))
        must = (set(done) & self.waiting.keys()) | old
        assert must <= set(gone)
        assert all(self.vain[name] >= MAX_EARLY for name in set(gone) - must)
        for name in gone:
            del self.waiting[name]
            self.vain.pop(name, None)

    def payload(self, exclude: list[bytes]) -> None:
        chosen = self.pool.payload(exclude)
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= self.waiting.keys() - set(exclude)
        assert sum(len(self.waiting[name].data) for name in chosen) <= TIGHT.block_bytes

    def check(self) -> None:
        assert self.pool._pending == self.waiting
        assert {
            block: set(fetch.missing) for block, fetch in self.pool._fetches._running.items()
        } == self.missing
        wanted: dict[bytes, int] = {}
        for missing in self.missing.values():
            for name in missing:
                wanted[name] = wanted.get(name, 0) + 1
        assert self.pool._fetches._wanted == wanted
        for entry, share in enumerate(self.pool._shares):
            mine = {name: len(p.data) for name, p in self.waiting.items() if p.entry == entry}
            assert list(share.waiting) == list(mine)
            assert share.size == sum(mine.values())


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(steps, max_size=40))
def test_after_every_history_shares_quotas_and_wishes_agree(history: list[tuple[object, ...]]) -> None:
    world = History()
    for step in history:
        match step:
            case ("receive", int(entry), int(number)):
                world.take(entry, number, announce=False)
            case ("submit", int(number)):
                world.take(ME, number, announce=True)
            case ("fetch", list(chosen), int(proposer), bool(committed)):
                world.fetch(chosen, proposer, committed)
            case ("abandon", int(which)) if which < len(world.blocks):
                world.pool.abandon(world.blocks[which].id)
                world.drop(world.blocks[which].id)
            case ("timer", int(which)) if which < len(world.timers):
                world.fire(world.timers[which])
            case ("settle", list(ordered), list(settled), int(advance)):
                world.settle([name_of(n) for n in ordered], [name_of(n) for n in settled], advance)
            case ("payload", list(exclude)):
                world.payload([name_of(number) for number in exclude])
            case _:  # names a block or timer that does not exist yet
                pass
        world.check()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**16), st.integers(1, 60)), max_size=80))
def test_announcements_alone_never_exceed_any_quota(announced: list[tuple[int, int, int]]) -> None:
    pool = new_pool(TIGHT)
    kept: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for entry, number, size in announced:
        if not isinstance(accept(pool, entry, body(number, 4 + size), 0), Reason):
            kept[entry].append(4 + size)
        assert all(len(sizes) <= SLACK * TIGHT.pending_batches for sizes in kept.values())
        assert all(sum(sizes) <= SLACK * TIGHT.pending_bytes for sizes in kept.values())
