"""Several messages of one broker in one step do what they would do one by one, whatever is among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replica.driver import (
    Cluster,
    Committee,
    Member,
    Outbox,
    agree,
    batches,
    done,
    ordered,
    submitted,
)
from tests.sync.branches import Branch
from tests.sync.laggard import Laggard

from parley.consensus.errors import Reason
from parley.consensus.types import Proposal, Vote
from parley.mempool.messages import BatchMessage
from parley.mempool.pool import batch_digest
from parley.replica import wire
from parley.replica.ports import (
    AdmittedBatch,
    Broadcast,
    Certified,
    Effect,
    Halt,
    Refused,
    Send,
    Submission,
    Timer,
    Write,
)
from parley.replica.replica import Replica
from parley.sim.counter import encode_batch, mounted

GARBAGE = b"no message"


class ByLink(Cluster):
    """All that one member sent another in a round comes together: in one step, or at least one after the other."""

    def __init__(self, committee: Committee | None = None, *, together: bool) -> None:
        super().__init__(committee)
        self.together = together
        self.largest = 0

    def parcels(self, messages: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, int, list[bytes]]]:
        by_link = sorted(messages, key=lambda message: (message[1], message[0]))
        for (to, sender), found in groupby(by_link, key=lambda message: (message[1], message[0])):
            parcel = [data for _, _, data in found]
            self.largest = max(self.largest, len(parcel))
            yield from [(sender, to, parcel)] if self.together else [(sender, to, [data]) for data in parcel]


# -- whole networks ----------------------------------------------------------------------------------------------------


def test_a_loaded_network_makes_the_same_chain_either_way() -> None:
    chains, effects = [], []
    for together in (False, True):
        cluster = ByLink(together=together)
        names = submitted(cluster)
        cluster.start().run_until(lambda cluster=cluster, names=names: done(cluster, names))  # type: ignore[misc]
        assert cluster.largest > 5
        chains.append([member.committed() for member in cluster.members])
        effects.append([bare(member.history) for member in cluster.members])
    assert chains[0] == chains[1]
    assert effects[0] == effects[1]


def test_an_idle_network_makes_the_same_chain_either_way() -> None:
    single, together = (ByLink(together=together).start().run(100) for together in (False, True))
    assert [bare(member.history) for member in single.members] == [
        bare(member.history) for member in together.members
    ]
    assert min(single.heights()) > 3


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(0, 12)), min_size=1, max_size=8),
    st.sampled_from([None, 0, 1, 2, 3]),
)
def test_whatever_comes_together_is_ordered_once_and_all_agree(
    load: list[tuple[int, int, int]], away: int | None
) -> None:
    cluster = ByLink(together=True).start()
    cluster.absent = set() if away is None else {away}
    names: set[bytes] = set()
    published = [0] * 4
    for chosen, count, pause in load:
        entry = (chosen + 1) % 4 if chosen == away else chosen
        for _ in range(count):
            batch = encode_batch(entry, published[entry], b"load")
            published[entry] += 1
            cluster.submit(entry, batch)
            names.add(batch_digest(batch))
        cluster.run(pause)
    present = [index for index in range(4) if index != away]
    cluster.run_until(lambda: done(cluster, names, *present))
    members = [cluster.members[index] for index in present]
    assert agree(members)
    for member in members:
        assert sorted(ordered(member)) == sorted(names)
        assert not member.halts
        assert not member.reports


# -- one member --------------------------------------------------------------------------------------------------------


@dataclass
class Input:
    """A step of a replica as it was, and what it did."""

    now: int
    sender: int | None = None
    data: bytes = b""
    timer: Timer | None = None
    effects: list[Effect] = field(default_factory=list)

    @property
    def sets_off_more(self) -> bool:
        """A batch that a leader or a vote waited for: with others behind it, these are taken in first, and a block that is
        proposed then holds them, too.
        """
        more = any(not isinstance(effect, Write | Refused) for effect in self.effects)
        return more and self.data != GARBAGE and isinstance(wire.decode(self.data), BatchMessage)


class Recorder:
    """Notes every step of a replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.inputs: list[Input] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._replica, name)

    def start(self, now: int) -> list[Effect]:
        return self._note(Input(now), self._replica.start(now))

    def receive(self, now: int, sender: int, data: bytes) -> list[Effect]:
        return self._note(Input(now, sender, data), self._replica.receive(now, sender, data))

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        submission = self._replica.submit(now, batch)
        self._note(Input(now, None, batch.body), submission.effects)
        return submission

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        return self._note(Input(now, timer=timer), self._replica.fire(now, timer))

    def _note(self, step: Input, effects: list[Effect]) -> list[Effect]:
        step.effects = effects
        self.inputs.append(step)
        return effects


def is_a(effect: Effect, kind: type[object]) -> bool:
    return isinstance(effect, Send | Broadcast) and isinstance(wire.decode(effect.data), kind)


def bare(effects: Sequence[Effect]) -> list[Effect]:
    """Without the news of certified headers: of several in one step only the newest is told."""
    return [effect for effect in effects if not isinstance(effect, Certified)]


@cache
def recorded() -> tuple[list[list[Input]], list[Member]]:
    """What reached each member of a busy network, with garbage, repetitions and a silent member for a while."""
    cluster = ByLink(together=False)
    for member in cluster.members:
        member.replica = Recorder(member.replica)  # type: ignore[assignment]
    cluster.start()
    bodies = [batches(author, 30) for author in range(4)]
    for round_ in range(150):
        for author in range(4):
            if bodies[author] and round_ % (author + 2) == 0:
                cluster.submit(author, bodies[author].pop(0))
        cluster.absent = {2} if 60 <= round_ < 90 else set()
        sent = list(cluster.outbox.messages)
        for sender, to, data in sent[round_ % 5 :: 7]:
            cluster.outbox.messages += [(sender, to, GARBAGE), (sender, to, data)]
        cluster.round()
    return [member.replica.inputs for member in cluster.members], cluster.members  # type: ignore[attr-defined]


def replayed(steps: list[Input], index: int, sizes: Iterator[int]) -> Member:
    """The same inputs, but messages that came at one moment from one sender in parcels of these sizes."""
    member, outbox = Member(Committee(), index, mounted()), Outbox()
    parcel: list[Input] = []
    room = next(sizes)

    def deliver() -> None:
        if parcel:
            first = parcel[0]
            assert first.sender is not None
            data = [step.data for step in parcel]
            member.execute(member.replica.receive(first.now, first.sender, *data), outbox)
            parcel.clear()

    for step in steps:
        if step.sender is None:
            deliver()
            match step:
                case Input(timer=None, data=b""):
                    member.execute(member.replica.start(step.now), outbox)
                case Input(timer=None):
                    member.execute(member.submit(step.now, step.data).effects, outbox)
                case _:
                    assert step.timer is not None
                    member.execute(member.replica.fire(step.now, step.timer), outbox)
            continue
        if len(parcel) == room or (parcel and (parcel[0].now, parcel[0].sender) != (step.now, step.sender)):
            deliver()
            room = next(sizes)
        parcel.append(step)
        if step.sets_off_more:
            deliver()
    deliver()
    return member


@pytest.mark.parametrize("index", range(4))
@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_member_does_the_same_whatever_parcels_its_messages_come_in(index: int, sizes: list[int]) -> None:
    inputs, members = recorded()

    def again() -> Iterator[int]:
        while True:
            yield from sizes

    member = replayed(inputs[index], index, again())
    assert bare(member.history) == bare(members[index].history)
    assert member.committed() == members[index].committed()
    assert member.store.entries == members[index].store.entries
    assert member.slots == members[index].slots
    assert member.replica.counters == members[index].replica.counters
    assert member.certified[-1] == members[index].certified[-1]
    assert set(map(str, member.certified)) <= set(map(str, members[index].certified))


def test_the_recording_is_worth_replaying() -> None:
    inputs, members = recorded()
    for steps, member in zip(inputs, members, strict=True):
        parcels = [list(found) for _, found in groupby(steps, key=lambda step: (step.now, step.sender))]
        assert max(map(len, parcels)) > 5
        assert len(member.committed()) > 20
        reasons = {refused.reason for refused in member.refused}
        assert {Reason.MALFORMED, Reason.REPLAYED} <= reasons


# -- what is among them ------------------------------------------------------------------------------------------------


def test_a_message_that_is_refused_takes_none_of_the_others_with_it() -> None:
    cluster = Cluster().start()
    first, second = batches(1, 2)
    data = [wire.encode(BatchMessage(first)), GARBAGE, b"", wire.encode(BatchMessage(second))]
    effects = cluster.deliver(1, 0, *data, data[0])
    reasons = [effect.reason for effect in effects if isinstance(effect, Refused)]
    assert reasons == [Reason.MALFORMED, Reason.MALFORMED, Reason.REPLAYED]
    assert all(effect.sender == 1 for effect in effects if isinstance(effect, Refused))
    written = {key for effect in effects if isinstance(effect, Write) for key, _ in effect.entries}
    assert {b"b/" + batch_digest(body) for body in (first, second)} <= written


def test_a_waiting_leader_proposes_all_batches_of_a_parcel_in_one_block() -> None:
    cluster = Cluster().start()
    cluster.run(3)
    leader = cluster.members[cluster.members[0].replica.view % 4]
    bodies = batches((leader.index + 1) % 4, 5)
    data = [wire.encode(BatchMessage(body)) for body in bodies]
    effects = cluster.deliver((leader.index + 1) % 4, leader.index, *data)
    (proposal,) = [
        message
        for effect in effects
        if isinstance(effect, Broadcast) and isinstance(message := wire.decode(effect.data), Proposal)
    ]
    assert set(proposal.batches) == {batch_digest(body) for body in bodies}


def test_a_parcel_of_a_stranger_is_refused_as_a_whole() -> None:
    cluster = Cluster().start()
    data = [wire.encode(BatchMessage(body)) for body in batches(1, 3)]
    (refused,) = cluster.deliver(4, 0, *data)
    assert refused == Refused(4, Reason.UNKNOWN_SIGNER, "sender 4")


def test_an_empty_parcel_does_nothing() -> None:
    cluster = Cluster().start()
    assert cluster.deliver(1, 0) == []


def test_after_a_halt_the_rest_of_the_parcel_is_ignored() -> None:
    laggard = Laggard()
    final, fork = Branch(20, step=1), Branch(25, step=1, skipped=100)
    final.show(laggard, 20)
    laggard.ask(final.answer)
    fork.show(laggard, 25)
    to, question = laggard.questions[-1]
    answer = fork.answer(question)
    assert answer is not None
    batch = wire.encode(BatchMessage(batches(1, 1)[0]))
    replica = laggard.member.replica
    effects = replica.receive(0, to, wire.encode(answer), batch, GARBAGE)
    assert isinstance(effects[-1], Halt)
    assert not any(isinstance(effect, Refused) for effect in effects)
    assert not any(
        key.startswith(b"b/") for effect in effects if isinstance(effect, Write) for key, _ in effect.entries
    )
    assert replica.receive(0, 1, batch, batch) == [Refused(1, Reason.HALTED, "")]


def test_a_vote_leaves_after_all_batches_of_its_block_that_came_with_the_proposal() -> None:
    cluster = Cluster().start()
    cluster.run(3)
    view = cluster.members[0].replica.view
    leader, voter = view % 4, (view + 2) % 4
    bodies = batches(leader, 4)
    for body in bodies:
        cluster.submit(leader, body)
    data = [found for sender, to, found in cluster.outbox.messages if (sender, to) == (leader, voter)]
    decoded = [wire.decode(found) for found in data]
    assert any(isinstance(message, Proposal) for message in decoded)
    parcel = sorted(data, key=lambda found: not isinstance(wire.decode(found), Proposal))
    effects = cluster.deliver(leader, voter, *parcel)
    sent = [at for at, effect in enumerate(effects) if is_a(effect, Vote)]
    proposal = next(message for message in decoded if isinstance(message, Proposal))
    on_disk: set[bytes] = set()
    waiting: set[bytes] = set()
    for effect in effects[: sent[0]]:
        if isinstance(effect, Write):
            waiting |= {key for key, _ in effect.entries}
            if effect.sync:
                on_disk |= waiting
    assert {b"b/" + name for name in proposal.batches} <= on_disk
