"""Each test is a property that did not always hold; its docstring says what used to happen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.consensus import chains
from tests.consensus.world import Solo, only, sent
from tests.mempool.pools import body, new_pool
from tests.replica.cut_off import HOLDER, CutOff
from tests.replica.driver import Cluster, Member, agree, batches
from tests.sync.branches import Branch
from tests.sync.laggard import ME, Laggard, recorded

from parley.consensus.errors import Reason
from parley.consensus.errors import Refused as Refusal
from parley.consensus.events import Payload, RequestBlocks, RequestPayload
from parley.consensus.forest import MAX_UNCERTIFIED
from parley.consensus.machine import Config
from parley.consensus.record import COPIES, recover_record
from parley.consensus.types import QC, Block, Certificates, Proposal
from parley.consensus.view_times import ViewTimes
from parley.crypto import merkle
from parley.mempool.messages import MAX_BATCH_BYTES, BatchesRequest
from parley.mempool.pool import Limits, batch_digest
from parley.mempool.turns import FIRST_HOLD
from parley.replica import serving, wire
from parley.replica.beginning import provision
from parley.replica.ports import PersistSafety, Refused, Send
from parley.replica.serving import BLOCKS_QUESTION, BURST, RATE, Budget
from parley.sim.counter import Counter, encode_batch
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse

LONG = 2 * MAX_UNCERTIFIED  # failed views: more blocks than are kept in memory, whoever misses some of them


def refusal(action: Callable[[], object]) -> Reason | None:
    try:
        action()
    except Refusal as refused:
        return refused.reason
    return None


# -- blocks that must not be lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("views", [4, LONG])
def test_a_block_certified_at_one_cut_off_member_is_never_lost_by_those_who_voted_for_it(
    views: int, restarted: bool
) -> None:
    """Enough newer blocks without a certificate used to push it out and off the disk: nobody could ever go on."""
    story = CutOff()
    story.fail(views)
    assert story.on_disk(story.block) == story.voters
    if restarted:
        story.lose_power(*story.correct)
        assert story.on_disk(story.block) == story.voters
    story.spread_certificate()
    story.heal()
    assert_going_on(story, *story.correct)
    for member in story.correct:
        story.cluster.restart(member)
    assert_going_on(story, *story.correct)
    assert all(story.block in story.member(member).committed() for member in story.correct)


@pytest.mark.parametrize(("size", "holder_comes_back"), [(4, True), (7, False)])
def test_the_block_of_the_newest_certificate_survives_a_power_failure_after_a_long_failed_period(
    size: int, holder_comes_back: bool
) -> None:
    """A start with many stored blocks used to set their certified parent aside and delete what extended it."""
    story = CutOff(size)
    story.fail(LONG)
    story.spread_certificate()
    story.heal()
    story.cluster.run_until(lambda: newest_certificate(story).view > story.view + LONG)
    newest = newest_certificate(story).block
    holders = story.on_disk(newest)
    assert set(story.others) <= set(holders)
    story.lose_power(*(story.correct if holder_comes_back else story.others))
    assert story.on_disk(newest) == holders
    assert_going_on(story, *(story.correct if holder_comes_back else story.others))


def newest_certificate(story: CutOff) -> QC:
    """Of those on disk."""
    records = [story.member(member).record()[1] for member in story.correct if member != HOLDER]
    return max((record.high_qc for record in records), key=lambda qc: qc.view)


def assert_going_on(story: CutOff, *members: int) -> None:
    heights = story.cluster.heights()
    story.cluster.run_until(
        lambda: all(story.cluster.heights()[member] > heights[member] + 3 for member in members)
    )
    assert agree([story.member(member) for member in members])


# -- catching up ---------------------------------------------------------------------------------------------------------


class FullBranch(Branch):
    """Like `Branch`, with as many batches in each block as it can name."""

    def __init__(self, length: int, step: int) -> None:
        super().__init__(0, step)
        committee = recorded().committee
        for height in range(1, length + 1):
            parent, view = self.blocks[-1], step * height
            names = tuple(chains.batch(1024 * height + number) for number in range(1024))
            header = replace(
                parent.header,
                height=height,
                view=view,
                parent=parent.id,
                proposer=view % committee.size,
                time=height,
                justify=self.qcs[-1],
                batches_root=merkle.root(names),
            )
            block = Block(header, names)
            message = committee.instance.vote_message(view, block.id)
            votes = {member: committee.authority.signer(member).sign(message) for member in range(3)}
            self.blocks.append(block)
            self.qcs.append(QC(0, view, block.id, committee.authority.scheme().aggregate(votes)))


@pytest.mark.parametrize(
    ("branch_of", "known", "target"),
    [(lambda: Branch(70, step=2), MAX_BLOCKS, 70), (lambda: FullBranch(5, step=2), 3, 5)],
    ids=["sparse", "full"],
)
def test_a_fetch_ends_although_a_whole_answer_of_known_blocks_lies_below_the_target(
    branch_of: Callable[[], Branch], known: int, target: int
) -> None:
    """An answer whose last block was known used to be refused, whoever gave it: the fetch never ended."""
    branch, laggard = branch_of(), Laggard()
    fetch(laggard, branch, known)
    assert laggard.height == 0  # nothing is final, so the next fetch starts from the bottom
    fetch(laggard, branch, target)
    assert not laggard.member.refused
    assert laggard.fire() == []


def fetch(laggard: Laggard, branch: Branch, height: int) -> None:
    """Everybody answers honestly; two answers of one member are enough."""
    branch.show(laggard, height)
    for _ in range(2 * ME):
        if not laggard.member.replica._machine.known(branch.blocks[height].id):
            laggard.ask(branch.answer)
    assert laggard.member.replica._machine.known(branch.blocks[height].id)
    assert laggard.fire() == []


@pytest.mark.parametrize("slow", range(ME))
def test_a_member_that_answers_one_block_at_a_time_gets_no_more_than_its_turn(slow: int) -> None:
    """Every good answer used to earn the next question, so one member kept a laggard at its own slow pace for ever."""
    laggard, target = Laggard(), 400
    laggard.learn(target)
    full_answers = -(-target // (MAX_BLOCKS - 1))
    while laggard.height < target - 1 and len(laggard.questions) <= 2 * full_answers:
        answer_question(laggard, slow)
    assert laggard.height >= target - 1
    assert len(laggard.questions) <= 2 * full_answers


def test_fetches_start_with_each_member_in_turn() -> None:
    """Every fetch used to start with the first voter: one slow or silent member delayed each of them."""
    branch, laggard = Branch(54, step=1), Laggard()
    for target in range(3, 55, 3):
        branch.show(laggard, target)
        laggard.ask(branch.answer)
        assert laggard.member.replica._machine.known(branch.blocks[target].id)
    asked = [to for to, _ in laggard.questions]
    assert [asked.count(member) for member in range(ME)] == [6, 6, 6]


def answer_question(laggard: Laggard, slow: int) -> None:
    to, _ = laggard.questions[-1]
    laggard.ask(drip if to == slow else recorded().answer)
    laggard.give_batches()


def drip(request: BlocksRequest) -> BlocksResponse:
    """The truth, as little of it as possible."""
    truth = recorded().answer(request)
    if len(truth.blocks) == 1:
        return truth
    return replace(truth, blocks=truth.blocks[:1], qc=truth.blocks[1].header.justify)


# -- answers are not for nothing -----------------------------------------------------------------------------------------


def served(member: Member, asker: int, now: int, request: wire.WireMessage) -> tuple[int, list[Reason]]:
    """How many messages go to the asker, and what is refused."""
    effects = member.replica.receive(now, asker, wire.encode(request))
    answers = [effect for effect in effects if isinstance(effect, Send)]
    assert all(effect.to == asker for effect in answers)
    return len(answers), [effect.reason for effect in effects if isinstance(effect, Refused)]


def test_a_request_that_repeats_a_digest_is_refused() -> None:
    """A batch used to be sent as often as one small request named it."""
    cluster = Cluster().start()
    held = batches(author=0, count=2)
    for batch in held:
        cluster.submit(0, batch)
    one, two = map(batch_digest, held)
    member = cluster.members[0]
    for digests in ((one, one), (one, two, one), (two,) * 1024):
        assert served(member, 2, 0, BatchesRequest(digests)) == (0, [Reason.MALFORMED])
    assert served(member, 2, 0, BatchesRequest((one, two))) == (2, [])


def test_a_member_that_asks_for_more_than_its_budget_is_refused_and_others_are_not() -> None:
    """Small requests used to be answered without any limit: a hundred of them queued 800 MiB."""
    cluster = Cluster().start()
    in_block = Limits().block_bytes // MAX_BATCH_BYTES
    held = [bytes([number]) * MAX_BATCH_BYTES for number in range(in_block)]
    for batch in held:
        cluster.submit(0, batch)
    member, request = cluster.members[0], BatchesRequest(tuple(map(batch_digest, held)))

    answers = [served(member, 2, 0, request) for _ in range(2 * BURST // Limits().block_bytes)]
    assert sum(count for count, _ in answers) == BURST // MAX_BATCH_BYTES
    assert answers[0] == (in_block, [])
    assert answers[-1] == (0, [Reason.QUOTA])
    assert member.replica.counters[Reason.QUOTA] > 1

    assert served(member, 3, 0, request) == (in_block, [])
    assert served(member, 2, BURST // RATE, request) == (in_block, [])


def test_questions_for_blocks_are_paid_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question for blocks used to be answered: nine hundred in a second kept a replica busy with nothing else."""
    monkeypatch.setattr(serving, "BURST", 20 * BLOCKS_QUESTION)
    cluster = Cluster().start().run(100)
    member, request = cluster.members[0], BlocksRequest(bytes(32), 0)
    answers = [served(member, 2, cluster.now, request) for _ in range(30)]
    assert answers[0] == (1, [])
    assert answers[-1] == (0, [Reason.QUOTA])
    assert sum(count for count, _ in answers) <= 20
    assert served(member, 3, cluster.now, request) == (1, [])
    assert served(member, 2, cluster.now + 20 * BLOCKS_QUESTION // RATE, request) == (1, [])


def refuses(purse: Budget, member: int, now: int, cost: int) -> bool:
    """Whether a question is refused; if not, it and its answer cost so much."""
    refused = refusal(lambda: purse.require(member, now)) is Reason.QUOTA
    if not refused:
        purse.charge(member, cost)
    return refused


def test_a_budget_is_a_burst_and_may_be_overdrawn_by_one_answer() -> None:
    purse = Budget(4)
    assert not refuses(purse, 1, 0, BURST - 1)
    assert not refuses(purse, 1, 0, 10 * RATE)
    assert refuses(purse, 1, 0, 1)
    assert refuses(purse, 1, 9, 1)
    assert not refuses(purse, 1, 10, 1)


def test_a_refused_question_costs_nothing_and_loses_no_refill() -> None:
    purse = Budget(4)
    purse.charge(1, BURST)
    mebibyte = 1024 * 1024
    granted = sum(not refuses(purse, 1, now, mebibyte) for now in range(1, 5_001))
    assert granted == -(-5_000 * RATE // mebibyte)


def test_members_have_budgets_of_their_own() -> None:
    purse = Budget(4)
    purse.charge(1, BURST)
    assert [refuses(purse, member, 0, BURST) for member in range(4)] == [False, True, False, False]


def test_a_budget_refills_with_time_up_to_a_burst() -> None:
    purse = Budget(4)
    assert not refuses(purse, 1, 10**9, BURST)
    assert refuses(purse, 1, 10**9, 1)
    assert not refuses(purse, 1, 10**9 + 1, 1)


def test_a_clock_that_is_set_back_neither_refills_a_budget_nor_empties_it() -> None:
    purse = Budget(4)
    assert not refuses(purse, 1, 1_000, BURST - 100)
    assert not refuses(purse, 1, 0, 100)
    assert refuses(purse, 1, 1_000, 1)
    assert not refuses(purse, 1, 1_001, RATE)


# -- batches that come before their turn ---------------------------------------------------------------------------------


def codes(member: Member, batch: bytes) -> list[str]:
    """What came of a batch each time that it was ordered."""
    receipts = [receipt for applied in member.applied for receipt in applied.receipts]
    return [receipt.code for receipt in receipts if receipt.batch == batch_digest(batch)]


def test_a_batch_ordered_before_its_turn_is_applied_later_without_another_submission() -> None:
    """It used to vanish from every pool although execution had not settled it; only the client's retry helped."""
    cluster = Cluster().start()
    first, second, third = batches(author=9, count=3)
    cluster.submit(1, third)
    cluster.submit(1, second)
    cluster.run_until(lambda: all(codes(member, second) for member in cluster.members))
    assert all(member.replica._pool.body(batch_digest(second)) == second for member in cluster.members)
    cluster.submit(2, first)
    cluster.run_until(
        lambda: all(
            codes(member, batch)[-1:] == ["ok"] for member in cluster.members for batch in (second, third)
        )
    )
    assert agree(cluster.members)


def test_a_batch_whose_turn_never_comes_is_proposed_ever_more_rarely() -> None:
    """The counterpart: what stays in the pool unsettled must not fill blocks for ever."""
    cluster = Cluster().start()
    name = batch_digest(encode_batch(9, 1, b"after a gap"))
    cluster.submit(1, encode_batch(9, 1, b"after a gap"))
    cluster.run_until(lambda: min(cluster.heights()) > 40 * FIRST_HOLD)
    (heights,) = {
        tuple(block.height for block in member.blocks()[: 40 * FIRST_HOLD] if name in block.batches)
        for member in cluster.members
    }
    pauses = [later - earlier for earlier, later in pairwise(heights)]
    assert len(pauses) >= 4
    assert all(pause >= FIRST_HOLD * 2**turn for turn, pause in enumerate(pauses))


@pytest.mark.parametrize("turned", [0, 1, 7, 15])
@pytest.mark.parametrize("step", [1, -1])
def test_which_settled_batches_are_remembered_does_not_depend_on_the_order_of_a_set(
    turned: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of a set of digests used to decide, and with it the seed of Python's hashes."""
    monkeypatch.setattr("parley.mempool.pool.REMEMBERED", 10)
    pool = new_pool()
    bodies = [body(number) for number in range(16)]
    names = [batch_digest(data) for data in bodies]
    in_some_order = [*names[turned:], *names[:turned]][::step]
    pool.settle(names, in_some_order, 1)
    taken = [data for data in bodies if refusal(partial(pool.receive, 1, data, 1)) is not Reason.REPLAYED]
    assert taken == bodies[:6]


# -- views and records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failed", [0, 3, 7, 8, 1_000])
def test_after_any_number_of_failed_views_seven_certificates_bring_back_the_shortest_wait(
    failed: int,
) -> None:
    """Failures used to be counted without a limit: hours of long waits followed a night of outage."""
    settings = Config(chains.Committee().instance, 0)
    times = ViewTimes(settings.waits)
    for _ in range(failed):
        times.failed()
    waited = times.duration(has_work=True, reachable=True)
    assert (waited == settings.longest_timeout) == (failed >= 7)
    for _ in range(7):
        times.certified(10, has_work=True)
    assert times.duration(has_work=True, reachable=True) == settings.shortest_timeout


def test_a_leader_that_learns_of_a_higher_certificate_of_a_known_block_proposes_in_that_view() -> None:
    """It used to ask for a payload only on entering the view, when the certified block was unknown: the view was lost."""
    committee = chains.Committee()
    parent = committee.block(view=1)
    unknown, known = committee.block(parent, 2), committee.block(parent, 3)
    leader = Solo(committee, 0)
    leader.propose(parent)
    leader.propose(known)

    entered = leader.receive(Certificates(committee.qc(unknown), committee.tc(7, 2)))
    assert leader.machine.view == 8
    assert only(RequestBlocks, entered)
    assert not only(RequestPayload, entered)

    learnt = leader.receive(Certificates(committee.qc(known), None))
    assert only(RequestPayload, learnt) == [RequestPayload(8, frozenset())]
    (proposal,) = sent(Proposal, leader.feed(Payload(8, (chains.batch(1),))))
    assert (proposal.header.view, proposal.header.parent) == (8, known.id)


def test_a_record_written_over_a_longer_one_is_read_back() -> None:
    """The checksum used to cover whatever followed: a slot that is written in place had to be cut to length."""
    cluster = Cluster().start()
    for batch in batches(
        author=0, count=40
    ):  # one leader names nearly all of them, so its next records are shorter
        cluster.submit(0, batch)
    cluster.run(300)
    shorter = 0
    for member in cluster.members:
        slots, _ = provision(cluster.committee.config(member.index), Counter())
        clean, in_place = list(slots), [bytearray(slot) for slot in slots]
        for effect in member.history:
            if isinstance(effect, PersistSafety):
                shorter += len(effect.record) < len(in_place[effect.slot])
                clean[effect.slot] = effect.record
                in_place[effect.slot][: len(effect.record)] = effect.record
                found = recover_record([[bytes(slot)] * COPIES for slot in in_place], "memory")
                assert found == recover_record([[slot] * COPIES for slot in clean], "memory")
    assert shorter
