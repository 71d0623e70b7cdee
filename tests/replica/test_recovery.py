"""A broker that lost its disk comes back and never contradicts the life that it has forgotten, whatever is tried (P10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import combinations

import pytest
from msgspec.structs import replace
from tests.replica.driver import Cluster, Committee, Member, MemoryStore, agree, batches

from parley.consensus.committee import quorum
from parley.consensus.errors import Reason, Refused
from parley.consensus.types import QC, TC, Block, Certificates, Proposal, Timeout, Vote, genesis_qc
from parley.consensus.verify import Verifier
from parley.replica import recovery, wire
from parley.replica.beginning import provision
from parley.replica.ports import Broadcast, Effect, Halt, PersistSafety, Send
from parley.replica.recovery import Recovery
from parley.replica.replica import Replica
from parley.replica.serving import BATCHES_QUESTION, BURST
from parley.sync.messages import RecoveryAnswer, RecoveryRequest
from parley.sync.timers import RecoveryTimer

LOST = 3
NONCE = b"one life's nonce"


# -- what was signed ------------------------------------------------------------------------------------------------------


def messages(effects: list[Effect]) -> list[wire.WireMessage]:
    return [wire.decode(effect.data) for effect in effects if isinstance(effect, Send | Broadcast)]


def signed(effects: list[Effect]) -> dict[tuple[str, int], set[object]]:
    """All that a member has signed and sent: by kind and view."""
    found: dict[tuple[str, int], set[object]] = defaultdict(set)
    for message in messages(effects):
        match message:
            case Vote():
                found["vote", message.view].add(message.block)
            case Timeout():
                found["timeout", message.view].add(message.high_qc.view)
                if message.vote is not None:
                    found["vote", message.view].add(message.vote.block)
            case Proposal():
                found["proposal", message.header.view].add(message.header)
            case _:
                pass
    return found


def contradicts_itself(member: Member) -> bool:
    """Two different messages of a kind in one view, or a new vote in a view given up on before."""
    given_up: set[int] = set()
    votes: dict[int, bytes] = {}
    for message in messages(member.history):
        vote = message.vote if isinstance(message, Timeout) else message
        if isinstance(vote, Vote):
            if vote.view in given_up and votes.get(vote.view) != vote.block:
                return True
            votes.setdefault(vote.view, vote.block)
        if isinstance(message, Timeout):
            given_up.add(message.view)
    return any(len(contents) > 1 for contents in signed(member.history).values())


def newest_signed(effects: list[Effect]) -> int:
    return max((view for _, view in signed(effects)), default=0)


def shown(member: Member) -> int:
    """The highest view of which the member's record holds a certificate."""
    state = member.record()[1]
    return max(state.high_qc.view, 0 if state.high_tc is None else state.high_tc.view)


# -- losing a disk --------------------------------------------------------------------------------------------------------


def boot(cluster: Cluster, index: int, nonce: bytes = NONCE) -> None:
    """Start a life of the member on what its disk holds; messages for the one before may still arrive."""
    member, outbox = cluster.members[index], cluster.outbox
    outbox.timers = [entry for entry in outbox.timers if entry[2] != index]
    member.replica = Replica(
        cluster.committee.config(index),
        cluster.committee.authority.signer(index),
        cluster.committee.authority.scheme(),
        member.application,
        record=member.record(),
        store=member.store,
        nonce=nonce,
    )
    cluster.start(index)


def lose(cluster: Cluster, index: int = LOST, *, store: bool = True, nonce: bytes = NONCE) -> None:
    """The safety record is gone, and the store as well; the member starts with what `parley node recover` makes."""
    member = cluster.members[index]
    records, genesis = provision(cluster.committee.config(index), member.application.machine, abstaining=True)
    member.slots = list(records)
    if store:
        member.store = MemoryStore()
        member.store.write(genesis.entries)
    boot(cluster, index, nonce)


def loaded(rounds: int, committee: Committee | None = None) -> Cluster:
    cluster = Cluster(committee).start()
    for index in range(cluster.committee.size):
        for batch in batches(author=index, count=4):
            cluster.submit(index, batch)
    return cluster.run(rounds)


def comes_back(cluster: Cluster, index: int = LOST) -> None:
    """It votes again: the others cannot go on without it when one of them is away."""
    member = cluster.members[index]
    cluster.run_until(lambda: not member.replica.abstaining)
    away = (index + 1) % cluster.committee.size
    needed = cluster.committee.size - quorum(cluster.committee.size)
    cluster.absent = {(away + number) % cluster.committee.size for number in range(needed)}
    before = newest_signed(member.history)
    height = member.replica.executed_height
    cluster.run_until(lambda: member.replica.executed_height > height + 4)
    assert newest_signed(member.history) > before
    cluster.absent = set()
    assert agree(cluster.members)
    assert not contradicts_itself(member)


@pytest.mark.parametrize("rounds", [1, 3, 10, 31, 32, 33, 34, 60])
@pytest.mark.parametrize("index", range(4))
def test_whenever_a_disk_is_lost_its_broker_comes_back_and_votes_again(rounds: int, index: int) -> None:
    cluster = loaded(rounds)
    lose(cluster, index)
    assert cluster.members[index].replica.abstaining
    comes_back(cluster, index)


@pytest.mark.parametrize("rounds", [3, 33])
def test_a_broker_that_lost_only_its_record_keeps_its_store(rounds: int) -> None:
    cluster = loaded(rounds)
    before = cluster.members[LOST].replica.executed_height
    lose(cluster, store=False)
    assert cluster.members[LOST].replica.executed_height == before
    comes_back(cluster)


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_it_comes_back_in_committees_of_other_sizes(size: int) -> None:
    cluster = loaded(30, Committee(size))
    lose(cluster, size - 1)
    cluster.run_until(lambda: not cluster.members[size - 1].replica.abstaining)
    cluster.run(200)
    assert not contradicts_itself(cluster.members[size - 1])
    assert agree(cluster.members)


def test_until_then_it_follows_the_chain_and_signs_nothing() -> None:
    cluster = loaded(40)
    lose(cluster)
    member, life = cluster.members[LOST], len(cluster.members[LOST].history)
    cluster.outbox.carries = lambda _sender, to, data: (
        not (to == LOST and isinstance(wire.decode(data), RecoveryAnswer))
    )
    cluster.run_until(lambda: member.replica.executed_height > 20)
    effects = member.history[life:]
    assert not any(isinstance(effect, PersistSafety) for effect in effects)
    assert not any(isinstance(message, Vote | Timeout | Proposal) for message in messages(effects))
    assert "0 of the 3 other brokers" in member.replica.abstaining


def test_the_record_is_on_disk_before_it_signs_again() -> None:
    cluster = loaded(40)
    lose(cluster)
    member = cluster.members[LOST]
    life = len(member.history)
    cluster.run_until(lambda: any(isinstance(m, Vote) for m in messages(member.history[life:])))
    effects = member.history[life:]
    persisted = next(place for place, effect in enumerate(effects) if isinstance(effect, PersistSafety))
    assert not any(isinstance(m, Vote | Timeout | Proposal) for m in messages(effects[:persisted]))


# -- a test tries ---------------------------------------------------------------------------------------------------------


class Attack:
    """The worst case: what the victim signed last lies two views above all that the honest others can show.

    The leader of a view shows its proposal to the victim alone, which votes for it and loses its disk. The others voted in
    the view before, and their records show the certificate for that and nothing newer. One of them has even been away for
    long, and the leader will hide all that it knows: one honest witness is left.
    """

    def __init__(self, *, victim_leads: bool = False) -> None:
        self.cluster = Cluster().start()
        self.leaders = {LOST} if victim_leads else {LIAR}
        self.old: list[tuple[int, bytes]] = []
        self.secret: Proposal | None = None
        self.cluster.outbox.carries = self._before
        for index in range(4):
            for batch in batches(author=index, count=3):
                self.cluster.submit(index, batch)
        self.cluster.run(20)
        self.cluster.absent = {AWAY}
        self.cluster.run_until(lambda: ("vote", self.view) in signed(self.victim.history))
        assert shown(self.cluster.members[WITNESS]) == self.view - 2
        assert shown(self.cluster.members[AWAY]) < self.view - 2
        self.cluster.absent = set()
        self.life = len(self.victim.history)

    @property
    def victim(self) -> Member:
        return self.cluster.members[LOST]

    @property
    def view(self) -> int:
        return -1 if self.secret is None else self.secret.header.view

    def _before(self, sender: int, to: int, data: bytes) -> bool:
        message = wire.decode(data)
        if self.secret is not None:  # nothing else arrives before the disk is lost
            return message == self.secret and to == LOST
        self.old.append((sender, data))
        if isinstance(message, Proposal) and self._fits(message):
            self.secret = message
            return to == LOST
        return True

    def _fits(self, message: Proposal) -> bool:
        header = message.header
        long_away = AWAY in self.cluster.absent and header.view > shown(self.cluster.members[AWAY]) + 3
        return long_away and header.proposer in self.leaders and header.justify.view + 1 == header.view

    def _lying(self, sender: int, to: int, data: bytes) -> bool:
        message = wire.decode(data)
        if sender != LIAR or not isinstance(message, RecoveryAnswer):
            return True
        lie = RecoveryAnswer(message.nonce, first_qc(self.cluster), None)
        self.cluster.outbox.messages.append((sender, to, wire.encode(lie)))
        return False

    def strike(self, reachable: frozenset[int], *, store: bool) -> None:
        """The victim comes back and asks those whom it can reach. Then it hears again all that was ever said, and more."""
        cluster = self.cluster
        cluster.outbox.carries = lambda sender, to, data: (
            self._lying(sender, to, data) and (LOST not in (sender, to) or {sender, to} <= reachable | {LOST})
        )
        lose(cluster, store=store)
        cluster.run(3)
        for number in range(50):
            for sender, to, message in self._temptations():
                cluster.deliver(sender, to, wire.encode(message))
            if number % 20 == 0:
                for sender, data in self.old:
                    if sender != LOST:
                        cluster.deliver(sender, LOST, data)
            cluster.round()

    def _temptations(self) -> list[tuple[int, int, Certificates | Proposal]]:
        """The certificate that opens the view in question, and another proposal for it by its leader."""
        assert self.secret is not None
        opening = (LIAR, LOST, Certificates(self.secret.header.justify, None))
        if (
            self.secret.header.proposer == LOST
        ):  # whose key nobody else has: it would have to propose again itself
            return [opening]
        header = replace(self.secret.header, time=self.secret.header.time + 1)
        signer = self.cluster.committee.authority.signer(LIAR)
        signature = signer.sign(
            self.cluster.committee.instance.proposal_message(Block(header, self.secret.batches).id)
        )
        other = Proposal(header, self.secret.batches, signature)
        return [opening, *((LIAR, member, other) for member in (WITNESS, AWAY, LOST))]

    def oversteps(self) -> bool:
        """Whether the new life has signed in a view in which the old one signed, or before."""
        history = self.victim.history
        return any(view <= newest_signed(history[: self.life]) for _, view in signed(history[self.life :]))


LIAR, AWAY, WITNESS = 0, 1, 2
REACHABLE = [frozenset(some) for count in range(4) for some in combinations((LIAR, WITNESS, AWAY), count)]


def first_qc(cluster: Cluster) -> QC:
    genesis = cluster.members[0].blocks()[0]
    return genesis_qc(cluster.committee.instance, genesis)


@pytest.mark.parametrize("victim_leads", [False, True], ids=["votes", "proposes"])
@pytest.mark.parametrize("store", [False, True], ids=["record", "disk"])
@pytest.mark.parametrize("reachable", REACHABLE, ids=str)
def test_nothing_makes_it_sign_twice(victim_leads: bool, store: bool, reachable: frozenset[int]) -> None:
    attack = Attack(victim_leads=victim_leads)
    attack.strike(reachable, store=store)
    assert not attack.oversteps()
    assert not contradicts_itself(attack.victim)
    attack.cluster.outbox.carries = lambda _sender, _to, _data: True
    comes_back(attack.cluster)
    assert not attack.oversteps()


@pytest.mark.parametrize("victim_leads", [False, True], ids=["votes", "proposes"])
def test_with_too_small_a_margin_it_would(victim_leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack is real: who takes part two views earlier contradicts itself."""
    monkeypatch.setattr(recovery, "MARGIN", 0)
    attack = Attack(victim_leads=victim_leads)
    attack.strike(frozenset({LIAR, WITNESS, AWAY}), store=False)
    assert attack.oversteps()
    assert contradicts_itself(attack.victim)


# -- those who are asked --------------------------------------------------------------------------------------------------


def ask(cluster: Cluster, to: int, sender: int = LOST) -> list[wire.WireMessage]:
    return messages(cluster.deliver(sender, to, wire.encode(RecoveryRequest(NONCE))))


def test_a_broker_answers_from_its_record_and_not_from_what_it_has_heard_since() -> None:
    cluster = loaded(40)
    cluster.absent = {0}
    first, newest = cluster.members[:2]
    cluster.run_until(lambda: newest.certified[-1].qc.view > first.replica.view + 4)
    state = first.record()[1]
    cluster.deliver(1, 0, wire.encode(Certificates(newest.certified[-1].qc, None)))
    assert first.replica.view > state.high_qc.view + 4
    assert ask(cluster, 0) == [RecoveryAnswer(NONCE, state.high_qc, state.high_tc)]


def test_what_it_signs_shows_in_its_next_answer() -> None:
    cluster = loaded(40)
    before = ask(cluster, 0)
    cluster.run(40)
    state = cluster.members[0].record()[1]
    assert ask(cluster, 0) == [RecoveryAnswer(NONCE, state.high_qc, state.high_tc)] != before


def test_questions_cost_their_asker() -> None:
    cluster = loaded(2)
    for _ in range(BURST // BATCHES_QUESTION):
        ask(cluster, 0)
    assert ask(cluster, 0) == []
    assert cluster.members[0].refused[-1].reason is Reason.QUOTA
    assert len(ask(cluster, 0, sender=1)) == 1


def test_who_has_lost_its_own_record_says_nothing() -> None:
    cluster = loaded(40)
    lose(cluster, 2)
    assert ask(cluster, 2) == []
    cluster.run_until(lambda: not cluster.members[2].replica.abstaining)
    assert len(ask(cluster, 2)) == 1


def test_two_of_seven_come_back_at_a_time() -> None:
    cluster = loaded(60, Committee(7))
    lose(cluster, 5, nonce=b"fifth's new life")
    lose(cluster, 6, nonce=b"sixth's new life")
    lost = cluster.members[5:]
    cluster.run_until(lambda: not any(member.replica.abstaining for member in lost))
    cluster.run(100)
    assert not any(map(contradicts_itself, lost))
    assert agree(cluster.members)


def test_with_more_than_f_lost_the_network_stands_still_and_nobody_errs() -> None:
    cluster = loaded(60)
    lives = {index: len(cluster.members[index].history) for index in (2, 3)}
    lose(cluster, 2, nonce=b"second's new one")
    lose(cluster, 3, nonce=b"third's new life")
    before = max(cluster.heights())
    cluster.run(600)
    assert max(cluster.heights()) <= before + 2
    assert all(signed(cluster.members[index].history[life:]) == {} for index, life in lives.items())


@pytest.mark.parametrize("size", [1, 2])
def test_where_too_few_others_exist_the_broker_stops_and_says_so(size: int) -> None:
    cluster = Cluster(Committee(size)).start().run(20)
    member = cluster.members[0]
    life = len(member.history)
    lose(cluster, 0)
    assert [type(effect) for effect in member.halts] == [Halt]
    assert f"in a network of {size} there are not enough others" in member.halts[0].why
    cluster.run(100)
    assert signed(member.history[life:]) == {}


# -- crashes in between -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8, 13, 40])
def test_a_crash_in_the_middle_starts_the_questions_anew(every: int) -> None:
    cluster = loaded(50)
    lose(cluster)
    for life in range(6):
        cluster.run(every)
        boot(cluster, LOST, bytes([life]) * 16)
    comes_back(cluster)


def test_answers_for_an_earlier_life_do_not_count() -> None:
    cluster = loaded(50)
    lose(cluster)
    cluster.run(1)
    boot(cluster, LOST, b"the life after..")
    cluster.run(1)
    member = cluster.members[LOST]
    reasons = [refused.reason for refused in member.refused if "another life" in refused.detail]
    assert reasons == [Reason.UNSOLICITED] * 3
    assert "0 of the 3" in member.replica.abstaining


def test_after_it_has_come_back_a_restart_is_like_any_other() -> None:
    cluster = loaded(50)
    lose(cluster)
    member = cluster.members[LOST]
    cluster.run_until(lambda: not member.replica.abstaining)
    boot(cluster, LOST, b"yet another life")
    assert not member.replica.abstaining
    comes_back(cluster)


# -- answers ----------------------------------------------------------------------------------------------------------------


class Asking:
    """A recovery that is fed by hand, and certificates of a chain that is there already."""

    def __init__(self, size: int = 4) -> None:
        self.cluster = loaded(60, Committee(size))
        genesis = self.cluster.members[0].blocks()[0]
        committee = self.cluster.committee
        verifier = Verifier(committee.instance, committee.authority.scheme(), genesis)
        self.qcs = [block.header.justify for block in self.cluster.members[0].blocks()[1:]]
        self.recovery = Recovery(size, verifier, NONCE)

    def answer(self, sender: int, qc: QC, nonce: bytes = NONCE) -> None:
        self.recovery.receive(sender, RecoveryAnswer(nonce, qc, None))

    def safe_from(self) -> int | None:
        return next((view for view in range(200) if self.recovery.is_safe(view)), None)


def test_it_asks_all_again_every_second_until_a_quorum_of_others_has_answered() -> None:
    asking = Asking()
    asked = Broadcast(wire.encode(RecoveryRequest(NONCE))).data
    for attempt in (1, 2, 3):
        effects = (
            asking.recovery.start() if attempt == 1 else asking.recovery.on_timer(RecoveryTimer(attempt - 1))
        )
        assert [wire.encode(effect.message) for effect in effects if not hasattr(effect, "timer")] == [asked]
        assert [effect.timer for effect in effects if hasattr(effect, "timer")] == [RecoveryTimer(attempt)]
    assert asking.recovery.on_timer(RecoveryTimer(2)) == []  # an old one
    for sender in (0, 1, 2):
        asking.answer(sender, asking.qcs[0])
    assert asking.recovery.on_timer(RecoveryTimer(3)) == []


def test_the_highest_view_of_a_quorum_counts_and_two_more() -> None:
    asking = Asking()
    for sender, qc in enumerate((asking.qcs[2], asking.qcs[5])):
        asking.answer(sender, qc)
        assert asking.safe_from() is None
        assert "of the 3 other brokers" in asking.recovery.standing()
    asking.answer(2, asking.qcs[0])
    assert asking.safe_from() == asking.qcs[5].view + 3
    assert f"above {asking.qcs[5].view + 2}" in asking.recovery.standing()


def test_every_member_has_one_voice_and_can_only_raise_what_it_said() -> None:
    asking = Asking()
    for qc in (asking.qcs[3], asking.qcs[5], asking.qcs[0]):
        asking.answer(0, qc)
    assert asking.safe_from() is None
    for sender in (1, 2):
        asking.answer(sender, asking.qcs[0])
    assert asking.safe_from() == asking.qcs[5].view + 3


def test_a_timeout_certificate_counts_as_well() -> None:
    asking = Asking()
    asking.cluster.absent = {3}
    member = asking.cluster.members[0]
    asking.cluster.run_until(
        lambda: (tc := member.record()[1].high_tc) is not None and shown(member) == tc.view
    )
    state = member.record()[1]
    assert state.high_tc is not None
    assert state.high_tc.view > state.high_qc.view
    asking.recovery.receive(0, RecoveryAnswer(NONCE, asking.qcs[0], state.high_tc))
    for sender in (1, 2):
        asking.answer(sender, asking.qcs[0])
    assert asking.safe_from() == state.high_tc.view + 3


def test_nobody_can_put_off_the_end_by_showing_every_new_certificate() -> None:
    asking = Asking()
    for sender in (0, 1, 2):
        asking.answer(sender, asking.qcs[1])
    before = asking.safe_from()
    assert asking.qcs[-1].view > asking.qcs[1].view
    for sender in (0, 1, 2):
        asking.answer(sender, asking.qcs[-1])
    assert asking.safe_from() == before


def refusal(action: Callable[[], None]) -> Reason:
    with pytest.raises(Refused) as caught:
        action()
    return caught.value.reason


def test_what_does_not_count() -> None:
    asking = Asking()
    good = asking.qcs[3]
    for sender in (0, 1):
        asking.answer(sender, good)
    assert refusal(lambda: asking.answer(2, good, b"an earlier life.")) is Reason.UNSOLICITED
    assert refusal(lambda: asking.answer(2, replace(good, view=good.view + 1))) is Reason.BAD_SIGNATURE
    assert refusal(lambda: asking.answer(2, replace(good, epoch=1))) is Reason.WRONG_EPOCH
    claimed = TC(0, 1_000_000, (0,) * 3, good.votes)  # it would put off the end for ever
    forged = RecoveryAnswer(NONCE, good, claimed)
    assert refusal(lambda: asking.recovery.receive(2, forged)) is Reason.BAD_SIGNATURE
    assert asking.safe_from() is None


def test_an_answer_that_nobody_asked_for_is_refused() -> None:
    cluster = loaded(10)
    state = cluster.members[1].record()[1]
    cluster.deliver(1, 0, wire.encode(RecoveryAnswer(NONCE, state.high_qc, state.high_tc)))
    assert cluster.members[0].refused[-1].reason is Reason.UNSOLICITED


@pytest.mark.parametrize("size", range(1, 33))
def test_it_is_possible_exactly_where_the_others_make_a_quorum(size: int) -> None:
    assert Recovery.is_possible(size) == (size - 1 >= quorum(size)) == (size >= 3)
