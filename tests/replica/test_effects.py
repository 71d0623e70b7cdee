"""The order of effects is the order of the proof: what a message depends on is on disk before it leaves (T16-T20)."""

from __future__ import annotations

from functools import cache

from tests.replica.driver import Cluster, Committee, MemoryStore

from parley.consensus.record import COPIES, SafetyState, recover_record
from parley.consensus.types import Proposal, Timeout, Vote
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import batch_digest
from parley.replica import wire
from parley.replica.beginning import provision
from parley.replica.chain import Chain
from parley.replica.ports import Applied, Broadcast, Effect, PersistSafety, Send, Write
from parley.sim.counter import Counter, encode_batch


class Durable:
    """What a disk certainly holds after a prefix of the effects: synced writes, those before them, and the records."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self._unsynced: set[bytes] = set()
        self.state: SafetyState | None = None
        self._slots = [[record] * COPIES for record in provision(Committee().config(0), Counter())[0]]

    def execute(self, effect: Effect) -> None:
        match effect:
            case Write():
                self._unsynced |= {key for key, value in effect.entries if value is not None}
                if effect.sync:
                    self.keys |= self._unsynced
                    self._unsynced.clear()
            case PersistSafety():
                self._slots[effect.slot] = [effect.record] * COPIES
                _, self.state = recover_record(self._slots, "memory")
            case _:
                pass


@cache
def long_run(*, restarts: bool) -> Cluster:
    """Load, a silent leader for a while, members that come back."""
    cluster = Cluster().start()
    for round_ in range(500):
        if round_ % 3 == 0:
            cluster.submit(round_ % 4, encode_batch(round_ % 4, round_ // 4, b"load"))
        cluster.absent = {2} if 100 <= round_ < 200 else set()
        if restarts and round_ % 23 == 0:
            cluster.restart(round_ % 4)
        cluster.round()
    return cluster


def check_votes(durable: Durable, vote: Vote | None) -> int:
    """A vote has left: its record, its block and the batches of the block are on disk."""
    if vote is None:
        return 0
    assert durable.state is not None
    assert durable.state.last_voted_view >= vote.view
    assert durable.state.last_voted_view > vote.view or durable.state.last_vote == vote
    assert b"u/" + vote.block in durable.keys
    return 1


def test_no_vote_leaves_before_its_block_and_its_record_are_synced_t16() -> None:
    for member in long_run(restarts=False).members:
        durable, votes = Durable(), 0
        for effect in member.history:
            durable.execute(effect)
            if isinstance(effect, Send | Broadcast):
                match message := wire.decode(effect.data):
                    case Vote():
                        votes += check_votes(durable, message)
                    case Timeout():
                        votes += check_votes(durable, message.vote)
                    case _:
                        pass
        assert votes > 50


def test_no_vote_leaves_before_the_batches_of_its_block_are_synced_t20() -> None:
    cluster = long_run(restarts=False)
    blocks = {block.id: block for member in cluster.members for block in member.blocks()}
    for member in cluster.members:
        durable, checked = Durable(), 0
        for effect in member.history:
            durable.execute(effect)
            if isinstance(effect, Send):
                message = wire.decode(effect.data)
                if isinstance(message, Vote) and message.block in blocks:
                    wanted = {b"b/" + name for name in blocks[message.block].batches}
                    assert wanted <= durable.keys
                    checked += len(wanted)
        assert checked > 20


def test_timeouts_and_proposals_leave_after_their_record_t16_t18() -> None:
    seen: set[type[Timeout | Proposal]] = set()
    for member in long_run(restarts=True).members:
        durable = Durable()
        for effect in member.history:
            durable.execute(effect)
            if isinstance(effect, Broadcast) and durable.state is not None:
                match message := wire.decode(effect.data):
                    case Timeout():
                        assert durable.state.last_timeout == message
                        seen.add(Timeout)
                    case Proposal():
                        assert durable.state.last_proposal == message
                        seen.add(Proposal)
                    case _:
                        pass
    assert seen == {Timeout, Proposal}


def test_a_record_goes_to_the_slots_in_turn_and_never_twice_to_one_t19() -> None:
    for member in long_run(restarts=True).members:
        slots = [effect.slot for effect in member.history if isinstance(effect, PersistSafety)]
        assert slots == [number % 2 for number in range(len(slots))]


def test_a_batch_is_synced_before_it_is_announced_t20() -> None:
    announced = 0
    for member in long_run(restarts=False).members:
        durable = Durable()
        for effect in member.history:
            durable.execute(effect)
            if isinstance(effect, Broadcast):
                message = wire.decode(effect.data)
                if isinstance(message, BatchMessage):
                    assert b"b/" + batch_digest(message.data) in durable.keys
                    announced += 1
    assert announced > 100


def test_results_are_reported_after_they_are_synced() -> None:
    for member in long_run(restarts=False).members:
        store = MemoryStore()
        for effect in member.history:
            if (isinstance(effect, Write) and effect.sync) or isinstance(effect, Write):
                store.write(effect.entries)
            elif isinstance(effect, Applied):
                assert Chain(store).head().height == effect.block.height


def test_a_step_leaves_no_effect_behind_for_the_next() -> None:
    cluster = Cluster().start().run(50)
    replica = cluster.members[0].replica
    assert replica.receive(cluster.now, 1, b"") != []
    assert len(replica.receive(cluster.now, 1, b"")) == 1
