"""A member that is behind arrives by honest answers, however many members lie, and never in a tight loop (T21)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.sync.laggard import ME, Laggard, recorded

from parley.consensus.errors import Reason
from parley.consensus.types import QC, Header
from parley.crypto.qc import Aggregate, bitmap_of
from parley.ledger.layout import StoredBlock
from parley.replica.ports import Refused, SetTimer
from parley.replica.replica import MAX_UNEXECUTED
from parley.sync.blocks import RETRY, SyncTimer
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse

TARGET = 150
Lie = Callable[[BlocksResponse], BlocksResponse]


def honest(request: BlocksRequest) -> BlocksResponse:
    return recorded().answer(request)


def silent(request: BlocksRequest) -> None:
    return None


def arrive(laggard: Laggard, servers: dict[int, Callable[[BlocksRequest], BlocksResponse | None]]) -> None:
    """Answer question after question; when nothing is asked, time passes."""
    answered = 0
    for _ in range(100):
        if laggard.height >= TARGET - 1:
            return
        if len(laggard.questions) == answered:
            laggard.fire()
        else:
            answered = len(laggard.questions)
            to, _request = laggard.questions[-1]
            laggard.ask(servers[to])
    raise AssertionError(f"still at height {laggard.height} after {answered} questions")


def new_laggard() -> Laggard:
    laggard = Laggard()
    laggard.learn(TARGET)
    return laggard


# -- honest members ------------------------------------------------------------------------------------------------------


def test_a_laggard_arrives_in_several_answers_of_members_in_turn() -> None:
    laggard = new_laggard()
    arrive(laggard, dict.fromkeys(range(ME), honest))
    # Each answer gives up its newest block for a certificate, and the last block that it brings is not final yet.
    assert [request.above for _, request in laggard.questions] == [0, 62, 124]
    assert len({to for to, _ in laggard.questions}) == len(laggard.questions)
    assert not laggard.member.refused
    assert laggard.member.replica.view == recorded().qc(TARGET).view + 1


def test_the_others_are_asked_in_turn_and_oneself_never() -> None:
    laggard = new_laggard()
    for _ in range(5):
        laggard.fire()
    assert [to for to, _ in laggard.questions] == [0, 1, 2, 0, 1, 2]


def test_a_newer_certificate_moves_the_target_without_a_second_question() -> None:
    laggard = new_laggard()
    laggard.learn(TARGET + 20)
    assert len(laggard.questions) == 1
    laggard.fire()
    assert laggard.questions[-1][1].target == recorded().qc(TARGET + 20).block


def test_an_older_certificate_does_not_move_the_target_back() -> None:
    laggard = Laggard()
    laggard.learn(TARGET)
    laggard.learn(TARGET - 20)
    laggard.fire()
    assert {request.target for _, request in laggard.questions} == {recorded().qc(TARGET).block}


def test_after_arriving_timers_do_nothing_and_the_next_target_starts_anew() -> None:
    laggard = new_laggard()
    arrive(laggard, dict.fromkeys(range(ME), honest))
    questions = len(laggard.questions)
    assert all(laggard.member.replica.fire(0, timer) == [] for timer in laggard.timers)
    laggard.learn(TARGET + 20)
    assert len(laggard.questions) == questions + 1


def test_a_block_that_arrived_by_another_way_ends_the_fetch_at_the_timer() -> None:
    laggard = Laggard()
    laggard.learn(20)
    to, request = laggard.questions[-1]
    laggard.learn(21)
    answer = recorded().answer(BlocksRequest(recorded().qc(21).block, 0))
    laggard.fire()
    laggard.hear(laggard.questions[-1][0], answer)
    questions = len(laggard.questions)
    assert all(laggard.member.replica.fire(0, timer) == [] for timer in laggard.timers)
    assert len(laggard.questions) == questions
    assert (to, request.above) == (laggard.questions[0][0], 0)


# -- lies ------------------------------------------------------------------------------------------------------------------


def with_header(number: int, change: Callable[[Header], Header]) -> Lie:
    def lie(truth: BlocksResponse) -> BlocksResponse:
        blocks = list(truth.blocks)
        blocks[number] = replace(blocks[number], header=change(blocks[number].header))
        return replace(truth, blocks=tuple(blocks))

    return lie


def with_batches(change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Lie:
    def lie(truth: BlocksResponse) -> BlocksResponse:
        blocks = [replace(stored, batches=change(stored.batches)) for stored in truth.blocks]
        return replace(truth, blocks=tuple(blocks))

    return lie


def with_qc(change: Callable[[QC], QC | None]) -> Lie:
    def lie(truth: BlocksResponse) -> BlocksResponse:
        assert truth.qc is not None
        return replace(truth, qc=change(truth.qc))

    return lie


def reordered(truth: BlocksResponse) -> BlocksResponse:
    first, second, *rest = truth.blocks
    return replace(truth, blocks=(second, first, *rest))


def foreign(header: Header) -> Header:
    return replace(header, chain=bytes(32))


LIES: dict[str, tuple[Lie, Reason]] = {
    "empty": (lambda truth: replace(truth, blocks=(), qc=None), Reason.BAD_ANSWER),
    "empty with a certificate": (lambda truth: replace(truth, blocks=()), Reason.BAD_ANSWER),
    "tampered in the middle": (with_header(5, lambda h: replace(h, time=h.time + 1)), Reason.BAD_ANSWER),
    "tampered at the end": (with_header(-1, lambda h: replace(h, time=h.time + 1)), Reason.BAD_ANSWER),
    "tampered results": (with_header(-1, lambda h: replace(h, state_root=bytes(32))), Reason.BAD_ANSWER),
    "batches left out": (with_batches(lambda _batches: ()), Reason.BAD_BATCHES),
    "batches doubled": (with_batches(lambda batches: batches + batches), Reason.BAD_BATCHES),
    "reordered": (reordered, Reason.BAD_ANSWER),
    "backwards": (lambda truth: replace(truth, blocks=truth.blocks[::-1]), Reason.BAD_ANSWER),
    "one left out": (lambda t: replace(t, blocks=t.blocks[:7] + t.blocks[8:]), Reason.BAD_ANSWER),
    "one doubled": (lambda t: replace(t, blocks=t.blocks[:7] + t.blocks[6:]), Reason.BAD_ANSWER),
    "certificate of another block": (with_qc(lambda _qc: recorded().qc(30)), Reason.BAD_ANSWER),
    "certificate of another view": (with_qc(lambda qc: replace(qc, view=qc.view + 1)), Reason.BAD_ANSWER),
    "no certificate": (with_qc(lambda _qc: None), Reason.BAD_ANSWER),
    "forged certificate": (
        with_qc(lambda qc: replace(qc, votes=Aggregate(qc.votes.bitmap, bytes(len(qc.votes.signature))))),
        Reason.BAD_SIGNATURE,
    ),
    "certificate of too few": (
        with_qc(lambda qc: replace(qc, votes=Aggregate(bitmap_of((0, 1), 4), qc.votes.signature[:32]))),
        Reason.TOO_FEW_SIGNERS,
    ),
    "certificate of nobody known": (
        with_qc(lambda qc: replace(qc, votes=Aggregate(b"\xff", qc.votes.signature))),
        Reason.BAD_BITMAP,
    ),
    "certificate of another epoch": (with_qc(lambda qc: replace(qc, epoch=1)), Reason.WRONG_EPOCH),
    "foreign chain": (with_header(3, foreign), Reason.WRONG_CHAIN),
    "foreign shard": (with_header(3, lambda h: replace(h, shard=1)), Reason.WRONG_CHAIN),
    "foreign epoch": (with_header(3, lambda h: replace(h, epoch=1)), Reason.WRONG_EPOCH),
    "foreign governance": (
        with_header(3, lambda h: replace(h, governance=replace(h.governance, height=1))),
        Reason.BAD_GOVERNANCE,
    ),
    "unknown version": (with_header(3, lambda h: replace(h, version=2)), Reason.WRONG_VERSION),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_with_its_reason_changes_nothing_and_the_next_member_is_asked_t21(name: str) -> None:
    lie, reason = LIES[name]
    laggard = new_laggard()
    before = laggard.state()
    first, request = laggard.questions[-1]
    effects = laggard.hear(first, lie(honest(request)))
    assert [effect.reason for effect in effects if isinstance(effect, Refused)] == [reason]
    assert laggard.state() == before
    assert len(laggard.questions) == 2
    assert laggard.questions[1][0] not in {first, ME}
    assert laggard.member.replica.counters[reason] == 1
    arrive(laggard, dict.fromkeys(range(ME), honest))


def elsewhere(request: BlocksRequest) -> BlocksResponse:
    """Real blocks with a real certificate, from another place of the chain."""
    blocks = recorded().blocks[50:60]
    return BlocksResponse(request.target, tuple(map(StoredBlock.of, blocks)), recorded().qc(59))


def nothing_new(request: BlocksRequest) -> BlocksResponse:
    """The same real block again and again."""
    blocks = recorded().blocks[1:2]
    return BlocksResponse(request.target, tuple(map(StoredBlock.of, blocks)), recorded().qc(1))


@pytest.mark.parametrize("useless", [elsewhere, nothing_new])
def test_a_member_that_answers_truly_but_uselessly_is_passed_over_t21(
    useless: Callable[[BlocksRequest], BlocksResponse],
) -> None:
    laggard = new_laggard()
    first = laggard.questions[0][0]
    servers: dict[int, Callable[[BlocksRequest], BlocksResponse | None]] = dict.fromkeys(range(ME), honest)
    arrive(laggard, servers | {first: useless})


def test_real_blocks_from_elsewhere_change_nothing_t21() -> None:
    laggard = new_laggard()
    before = laggard.state()
    first, request = laggard.questions[-1]
    effects = laggard.hear(first, elsewhere(request))
    assert [effect.reason for effect in effects if isinstance(effect, Refused)] == [Reason.BAD_ANSWER]
    assert laggard.state() == before
    assert laggard.questions[-1][0] != first


# -- answers nobody waits for ----------------------------------------------------------------------------------------------


def refused_as_unsolicited(laggard: Laggard, sender: int, response: BlocksResponse) -> bool:
    before = laggard.state(), len(laggard.questions)
    effects = laggard.hear(sender, response)
    reasons = [effect.reason for effect in effects if isinstance(effect, Refused)]
    return reasons == [Reason.UNSOLICITED] and (laggard.state(), len(laggard.questions)) == before


def test_blocks_that_nobody_asked_for_are_refused() -> None:
    request = BlocksRequest(recorded().qc(TARGET).block, 0)
    assert refused_as_unsolicited(Laggard(), 0, honest(request))


def test_an_answer_of_another_member_than_the_asked_one_is_refused_and_the_right_one_still_counts() -> None:
    laggard = new_laggard()
    first, request = laggard.questions[-1]
    for other in {0, 1, 2} - {first}:
        assert refused_as_unsolicited(laggard, other, honest(request))
    laggard.hear(first, honest(request))
    assert laggard.height == 62


def test_an_answer_to_another_question_is_refused_and_the_right_one_still_counts() -> None:
    laggard = new_laggard()
    first, request = laggard.questions[-1]
    other = BlocksRequest(recorded().qc(100).block, 0)
    assert refused_as_unsolicited(laggard, first, honest(other))
    laggard.hear(first, honest(request))
    assert laggard.height == 62


def test_an_answer_that_comes_after_the_next_member_was_asked_is_refused() -> None:
    laggard = new_laggard()
    first, request = laggard.questions[-1]
    laggard.fire()
    assert refused_as_unsolicited(laggard, first, honest(request))


def test_a_second_answer_to_one_question_is_refused() -> None:
    laggard = new_laggard()
    first, request = laggard.questions[-1]
    laggard.hear(first, honest(request))
    second, _ = laggard.questions[-1]
    laggard.fire()
    assert laggard.questions[-1][0] != second
    assert refused_as_unsolicited(laggard, second, honest(request))


def test_an_answer_to_the_question_counts_although_a_newer_block_is_wanted_by_now() -> None:
    laggard = new_laggard()
    first, request = laggard.questions[-1]
    laggard.learn(TARGET + 1)
    laggard.hear(first, honest(request))
    assert laggard.height == 62


# -- many liars --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truthful", range(ME))
@pytest.mark.parametrize("name", ["empty", "tampered at the end", "forged certificate"])
def test_a_laggard_arrives_when_all_but_one_lie(truthful: int, name: str) -> None:
    lie, _ = LIES[name]
    laggard = new_laggard()

    def liar(request: BlocksRequest) -> BlocksResponse:
        truth = honest(request)
        return lie(truth) if truth.qc is not None else replace(truth, blocks=())

    servers: dict[int, Callable[[BlocksRequest], BlocksResponse | None]] = dict.fromkeys(range(ME), liar)
    arrive(laggard, servers | {truthful: honest})


@pytest.mark.parametrize("truthful", range(ME))
def test_a_laggard_arrives_when_all_but_one_are_silent(truthful: int) -> None:
    servers: dict[int, Callable[[BlocksRequest], BlocksResponse | None]] = dict.fromkeys(range(ME), silent)
    arrive(new_laggard(), servers | {truthful: honest})


def test_a_truthful_member_whose_first_answer_was_lost_is_asked_again() -> None:
    laggard = new_laggard()
    truthful = laggard.questions[0][0]
    answers = iter([None])

    def forgetful(request: BlocksRequest) -> BlocksResponse | None:
        return next(answers, honest(request))

    def empty(request: BlocksRequest) -> BlocksResponse:
        return replace(honest(request), blocks=(), qc=None)

    servers: dict[int, Callable[[BlocksRequest], BlocksResponse | None]] = dict.fromkeys(range(ME), empty)
    arrive(laggard, servers | {truthful: forgetful})


def test_when_everybody_answers_nothing_the_next_round_waits_for_the_timer() -> None:
    laggard = new_laggard()
    answered = 0
    while answered < len(laggard.questions):
        to, request = laggard.questions[answered]
        answered += 1
        laggard.hear(to, replace(honest(request), blocks=(), qc=None))
        assert answered <= ME, "a tight loop"
    assert [to for to, _ in laggard.questions] == list(dict(laggard.questions))
    laggard.fire()
    assert len(laggard.questions) == ME + 1


def test_a_question_always_has_a_timer_that_asks_the_next_member() -> None:
    laggard = new_laggard()
    for count in range(1, 10):
        assert len(laggard.questions) == count
        effects = laggard.fire()
        assert SetTimer(laggard.timers[-1], RETRY) in effects


def test_timers_of_earlier_questions_do_nothing() -> None:
    laggard = new_laggard()
    laggard.fire()
    assert laggard.member.replica.fire(0, laggard.timers[0]) == []
    assert laggard.member.replica.fire(0, SyncTimer(99)) == []


# -- execution far behind ------------------------------------------------------------------------------------------------


def test_fetching_pauses_while_execution_is_far_behind_and_goes_on_afterwards() -> None:
    laggard = Laggard()
    laggard.learn(410)
    while laggard.height <= MAX_UNEXECUTED:
        laggard.ask(honest)
    assert laggard.height <= MAX_UNEXECUTED + MAX_BLOCKS
    questions = len(laggard.questions)
    for _ in range(3):
        assert laggard.fire() == [SetTimer(laggard.timers[-1], RETRY)]
    assert len(laggard.questions) == questions
    laggard.give_batches()
    assert laggard.member.replica.executed_height == laggard.height
    laggard.fire()
    assert len(laggard.questions) == questions + 1
    while laggard.height < 409:
        laggard.ask(honest)
        laggard.give_batches()
    assert laggard.member.committed() == [block.id for block in recorded().blocks[:410]]
