"""A replica comes back from its disk as it was, wherever it stopped, and goes on."""

from __future__ import annotations

from random import Random

import pytest
from tests.replica.driver import ROUND, Cluster, Committee, agree, batches, done, submitted

from parley.consensus.types import Proposal, Timeout, Vote
from parley.crypto.encoding import u64
from parley.mempool.pool import batch_digest
from parley.replica import wire
from parley.replica.ports import Send


class Signed:
    """Everything that members have signed; a second, different thing for one view fails the test."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, str, int], bytes] = {}

    def carries(self, sender: int, _to: int, data: bytes) -> bool:
        match message := wire.decode(data):
            case Proposal():
                self._note((sender, "proposal", message.header.view), message.header.id())
            case Vote():
                self._note((sender, "vote", message.view), message.block)
            case Timeout():
                self._note((sender, "timeout", message.view), u64(message.high_qc.view))
            case _:
                pass
        return True

    def count(self, kind: str) -> int:
        return sum(found == kind for _, found, _ in self.values)

    def _note(self, key: tuple[int, str, int], value: bytes) -> None:
        assert self.values.setdefault(key, value) == value


def test_a_restart_at_any_round_keeps_the_chain_and_goes_on() -> None:
    cluster = Cluster().start()
    names = submitted(cluster, count=40)
    for round_ in range(60):
        index = round_ % 4
        member = cluster.members[index]
        before = member.committed(), member.roots()
        cluster.restart(index)
        assert (member.committed(), member.roots()) == before
        cluster.round()
    cluster.run_until(lambda: done(cluster, names))
    assert agree(cluster.members)


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_crash_between_any_two_effects_keeps_what_was_final_and_signs_nothing_twice(
    seed: int, depth: int
) -> None:
    chance, signed = Random(seed), Signed()
    cluster = Cluster(Committee(depth=depth)).start()
    cluster.outbox.carries = signed.carries
    names = submitted(cluster, count=10)
    crashes = 0
    for _ in range(300):
        cluster.outbox.now += ROUND
        messages, cluster.outbox.messages = cluster.outbox.messages, []
        for sender, to, data in messages:
            member = cluster.members[to]
            effects = member.replica.receive(cluster.now, sender, data)
            if chance.random() > 0.06:
                member.execute(effects, cluster.outbox)
                continue
            crashes += 1
            member.execute(effects[: chance.randint(0, len(effects))], cluster.outbox)
            chain = member.committed()
            cluster.restart(to)
            assert member.committed()[: len(chain)] == chain
        cluster.round()
    cluster.run_until(lambda: done(cluster, names))
    assert agree(cluster.members)
    assert crashes > 10


def test_all_restart_at_once_and_go_on() -> None:
    cluster = Cluster().start()
    names = submitted(cluster, count=20)
    for _ in range(10):
        cluster.run(5)
        chains = [member.committed() for member in cluster.members]
        for index in range(4):
            cluster.restart(index)
        for member, chain in zip(cluster.members, chains, strict=True):
            assert member.committed()[: len(chain)] == chain
    cluster.run_until(lambda: done(cluster, names))
    assert agree(cluster.members)


def test_restarts_never_sign_two_things_for_one_view_t16_t18() -> None:
    cluster, signed = Cluster().start(), Signed()
    cluster.outbox.carries = signed.carries
    submitted(cluster, count=20)
    for round_ in range(1_400):
        cluster.round()
        if round_ % 11 == 0:
            cluster.restart(round_ // 11 % 4)
    assert min(map(signed.count, ("proposal", "vote", "timeout"))) > 10


def test_a_restart_sends_the_vote_of_the_view_again_and_no_other_t17() -> None:
    cluster = Cluster().start()
    member = cluster.members[2]

    def voted() -> bool:
        vote = member.record()[1].last_vote
        return vote is not None and vote.view == member.replica.view and (vote.view + 1) % 4 != 2

    for _ in range(5):
        cluster.run_until(voted)
        vote = member.record()[1].last_vote
        member.history.clear()
        cluster.restart(2)
        sent = [wire.decode(effect.data) for effect in member.history if isinstance(effect, Send)]
        assert sent == [vote]
        cluster.run(20)


def test_batches_that_waited_are_proposed_after_a_restart() -> None:
    cluster = Cluster().start().run(10)
    cluster.absent = {0, 1, 2, 3}
    waiting = batches(author=0, count=5)
    for batch in waiting:
        cluster.submit(0, batch)
    cluster.outbox.messages.clear()
    cluster.restart(0)
    cluster.absent = set()
    cluster.run_until(lambda: done(cluster, set(map(batch_digest, waiting))))
    assert agree(cluster.members)


def test_a_timer_that_has_fired_does_nothing_when_it_fires_again() -> None:
    cluster = Cluster().start()
    submitted(cluster)
    cluster.run(50)
    cluster.absent = {3}
    cluster.run(200)
    cluster.absent = set()
    cluster.run(100)
    pending = [(index, timer) for _, _, index, timer in cluster.outbox.timers]
    late = [entry for entry in cluster.fired if entry not in pending]
    assert len({type(timer) for _, timer in late}) >= 3
    assert all(cluster.members[index].replica.fire(cluster.now, timer) == [] for index, timer in late)
