"""From decoded to verified: every refusal before the machine has its own reason (T3-T7, T22)."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.consensus.chains import Committee, batch

from parley.consensus import verify
from parley.consensus.committee import quorum
from parley.consensus.errors import Reason, Refused
from parley.consensus.types import QC, Block, Certificates, Governance, Timeout, Vote
from parley.consensus.verify import Verifier
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.crypto.qc import Aggregate, Ed25519List

COMMITTEE = Committee()
OTHER_EPOCH = Committee(epoch=1)
B1, B2, B3 = COMMITTEE.chain(1, 2, 3)
QC1 = COMMITTEE.qc(B1)
TC2 = COMMITTEE.tc(2, 1)


@pytest.fixture
def verifier() -> Verifier:
    return COMMITTEE.verifier()


def reason(action: Callable[[], object]) -> Reason:
    with pytest.raises(Refused) as refused:
        action()
    return refused.value.reason


# -- certificates -----------------------------------------------------------------------------------------------------


def test_a_qc_of_a_quorum_is_verified(verifier: Verifier) -> None:
    verified = verifier.qc(QC1)
    assert (verified.qc, verified.view, verified.block) == (QC1, 1, B1.id)


def test_a_qc_of_any_quorum_and_of_all_members_is_verified(verifier: Verifier) -> None:
    for signers in ((0, 1, 3), (1, 2, 3), (0, 1, 2, 3)):
        verifier.qc(COMMITTEE.qc(B1, signers))


def test_the_empty_qc_is_valid_for_block_0(verifier: Verifier) -> None:
    assert verifier.qc(COMMITTEE.genesis_qc).view == 0


def test_the_empty_qc_is_valid_for_block_0_only(verifier: Verifier) -> None:
    empty = replace(COMMITTEE.genesis_qc, block=B1.id)
    assert reason(lambda: verifier.qc(empty)) is Reason.TOO_FEW_SIGNERS


def test_the_empty_qc_is_valid_in_view_0_only(verifier: Verifier) -> None:
    assert reason(lambda: verifier.qc(replace(COMMITTEE.genesis_qc, view=1))) is Reason.TOO_FEW_SIGNERS


def test_t5_a_qc_below_the_quorum_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.qc(COMMITTEE.qc(B1, (0, 1)))) is Reason.TOO_FEW_SIGNERS


def test_t5_one_signature_three_times_is_not_a_quorum(verifier: Verifier) -> None:
    """T5: a bitmap cannot name a signer twice, so the copies stand under other members' bits and fail there."""
    vote = COMMITTEE.vote(B1, 0)
    copied = replace(QC1, votes=Aggregate(b"\x07", vote.signature * 3))
    assert reason(lambda: verifier.qc(copied)) is Reason.BAD_SIGNATURE


def test_t5_one_bit_with_three_signatures_is_refused(verifier: Verifier) -> None:
    vote = COMMITTEE.vote(B1, 0)
    copied = replace(QC1, votes=Aggregate(b"\x01", vote.signature * 3))
    assert reason(lambda: verifier.qc(copied)) is Reason.TOO_FEW_SIGNERS


@pytest.mark.parametrize("bitmap", [b"", b"\x17", b"\x07\x00", b"\xff"])
def test_t5_a_bitmap_of_wrong_length_or_with_unknown_bits_is_refused(
    verifier: Verifier, bitmap: bytes
) -> None:
    bad = replace(QC1, votes=Aggregate(bitmap, QC1.votes.signature))
    assert reason(lambda: verifier.qc(bad)) is Reason.BAD_BITMAP


def test_t4_a_qc_with_another_view_beside_its_signatures_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.qc(replace(QC1, view=2))) is Reason.BAD_SIGNATURE


def test_t4_a_qc_moved_to_another_block_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.qc(replace(QC1, block=B2.id))) is Reason.BAD_SIGNATURE


def test_a_verified_qc_is_not_checked_twice_but_its_forgery_is(verifier: Verifier) -> None:
    verifier.qc(QC1)
    forged = replace(QC1, votes=Aggregate(QC1.votes.bitmap, bytes(len(QC1.votes.signature))))
    assert reason(lambda: verifier.qc(forged)) is Reason.BAD_SIGNATURE
    assert verifier.qc(QC1).qc is QC1


@pytest.mark.parametrize("forger", [0, 1, 2])
def test_a_qc_with_ones_own_vote_is_checked_all_the_same(forger: int) -> None:
    keys = [SecretKey.from_seed(digest("tests/key", bytes([i]))) for i in range(4)]
    scheme = Ed25519List([key.public for key in keys])
    verifier = Verifier(COMMITTEE.instance, scheme, COMMITTEE.genesis)
    message = COMMITTEE.instance.vote_message(B1.view, B1.id)
    signatures = {i: keys[i].sign(message) for i in range(3)}
    verifier.remember_own(Vote(0, B1.view, B1.id, 0, signatures[0]))
    forged = QC(0, B1.view, B1.id, scheme.aggregate({**signatures, forger: bytes(64)}))
    assert reason(lambda: verifier.qc(forged)) is Reason.BAD_SIGNATURE
    good = QC(0, B1.view, B1.id, scheme.aggregate(signatures))
    assert verifier.qc(good).qc == good


@pytest.mark.parametrize("copied_to", ["another block", "another view"])
def test_ones_own_vote_is_no_vote_for_another_block_or_in_another_view(copied_to: str) -> None:
    """Two liars have signed what they like; the third signature is one that this member gave to something else."""
    keys = [SecretKey.from_seed(digest("tests/key", bytes([i]))) for i in range(4)]
    scheme = Ed25519List([key.public for key in keys])
    verifier = Verifier(COMMITTEE.instance, scheme, COMMITTEE.genesis)
    own = keys[0].sign(COMMITTEE.instance.vote_message(B1.view, B1.id))
    verifier.remember_own(Vote(0, B1.view, B1.id, 0, own))
    view, block = (B1.view, B2.id) if copied_to == "another block" else (B1.view + 1, B1.id)
    message = COMMITTEE.instance.vote_message(view, block)
    signatures = {0: own, 1: keys[1].sign(message), 2: keys[2].sign(message)}
    forged = QC(0, view, block, scheme.aggregate(signatures))
    assert reason(lambda: verifier.qc(forged)) is Reason.BAD_SIGNATURE


def test_a_certificate_that_was_refused_is_refused_again(verifier: Verifier) -> None:
    forged_qc = replace(QC1, votes=Aggregate(QC1.votes.bitmap, bytes(len(QC1.votes.signature))))
    forged_tc = replace(TC2, qc_views=(0, 1, 1))
    for _ in range(2):
        assert reason(lambda: verifier.qc(forged_qc)) is Reason.BAD_SIGNATURE
        assert reason(lambda: verifier.tc(forged_tc)) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 8, 9, 10])
def test_t5_a_quorum_is_that_of_the_committees_size_also_between_3f_plus_1_and_the_next(size: int) -> None:
    committee = Committee(size)
    block = committee.block()
    committee.verifier().qc(committee.qc(block, range(quorum(size))))
    committee.verifier().tc(committee.tc(2, 0, range(quorum(size))))
    few = range(quorum(size) - 1)
    assert reason(lambda: committee.verifier().qc(committee.qc(block, few))) is Reason.TOO_FEW_SIGNERS
    assert reason(lambda: committee.verifier().tc(committee.tc(2, 0, few))) is Reason.TOO_FEW_SIGNERS


def test_the_oldest_certificate_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch, verifier: Verifier
) -> None:
    monkeypatch.setattr(verify, "_CACHED_CERTIFICATES", 2)
    certificates = [COMMITTEE.qc(block) for block in (B1, B2, B3)]
    for certificate in certificates:
        verifier.qc(certificate)
    assert list(verifier._passed) == certificates[1:]


def test_remembered_certificates_are_bounded(monkeypatch: pytest.MonkeyPatch, verifier: Verifier) -> None:
    monkeypatch.setattr(verify, "_CACHED_CERTIFICATES", 2)
    for block in (B1, B2, B3):
        verifier.qc(COMMITTEE.qc(block))
    assert len(verifier._passed) == 2
    assert verifier.qc(QC1).qc == QC1


def test_a_tc_of_a_quorum_is_verified(verifier: Verifier) -> None:
    tc = COMMITTEE.tc(5, (1, 3, 2), (0, 2, 3))
    verified = verifier.tc(tc)
    assert (verified.tc, verified.view) == (tc, 5)
    assert verifier.tc(tc) == verified


def test_t5_a_tc_below_the_quorum_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.tc(COMMITTEE.tc(5, 1, (0, 1)))) is Reason.TOO_FEW_SIGNERS


@pytest.mark.parametrize("views", [2, 4])
def test_a_tc_with_another_number_of_views_than_signers_is_refused(verifier: Verifier, views: int) -> None:
    assert reason(lambda: verifier.tc(replace(TC2, qc_views=(1,) * views))) is Reason.BAD_CERTIFICATE


def test_a_tc_without_views_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.tc(replace(TC2, qc_views=()))) is Reason.BAD_CERTIFICATE


def test_a_tc_that_saw_a_qc_of_its_own_view_contradicts_itself(verifier: Verifier) -> None:
    assert reason(lambda: verifier.tc(COMMITTEE.tc(5, (1, 5, 2)))) is Reason.BAD_CERTIFICATE


def test_a_tc_with_other_views_than_were_signed_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.tc(replace(TC2, qc_views=(0, 1, 1)))) is Reason.BAD_SIGNATURE


def test_certificates_are_verified_both(verifier: Verifier) -> None:
    verified = verifier.certificates(Certificates(QC1, TC2))
    assert (verified.qc.qc, verified.tc and verified.tc.tc) == (QC1, TC2)
    assert verifier.certificates(Certificates(QC1, None)).tc is None


def test_t6_a_forged_tc_beside_a_good_qc_is_refused(verifier: Verifier) -> None:
    forged = replace(TC2, view=3)
    assert reason(lambda: verifier.certificates(Certificates(QC1, forged))) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("qc_views", [(0, 0, 1), (1, 1, 1)])
def test_t10_a_tc_that_saw_a_higher_qc_than_comes_with_it_opens_no_view(
    verifier: Verifier, qc_views: tuple[int, ...]
) -> None:
    """T10: a liar can sign that it saw a QC that nobody has; a view opened by that could never be left again."""
    message = Certificates(COMMITTEE.genesis_qc, COMMITTEE.tc(2, qc_views))
    assert reason(lambda: verifier.certificates(message)) is Reason.BAD_CERTIFICATE


def test_certificates_with_a_tc_that_saw_nothing_are_refused(verifier: Verifier) -> None:
    message = Certificates(QC1, replace(TC2, qc_views=()))
    assert reason(lambda: verifier.certificates(message)) is Reason.BAD_CERTIFICATE


# -- votes, timeouts, proposals ----------------------------------------------------------------------------------------


def test_a_signed_vote_is_verified(verifier: Verifier) -> None:
    vote = COMMITTEE.vote(B1, 2)
    assert verifier.vote(vote).vote == vote


def test_a_vote_of_a_stranger_is_refused(verifier: Verifier) -> None:
    stranger = replace(COMMITTEE.vote(B1, 0), signer=4)
    assert reason(lambda: verifier.vote(stranger)) is Reason.UNKNOWN_SIGNER


@pytest.mark.parametrize("changed", [{"view": 2}, {"block": B2.id}, {"signer": 1}, {"signature": b""}])
def test_a_vote_that_its_signer_did_not_sign_is_refused(
    verifier: Verifier, changed: dict[str, object]
) -> None:
    forged = replace(COMMITTEE.vote(B1, 0), **changed)
    assert reason(lambda: verifier.vote(forged)) is Reason.BAD_SIGNATURE


def test_a_timeout_right_after_its_qc_is_verified(verifier: Verifier) -> None:
    timeout = COMMITTEE.timeout(2, 1, QC1, vote=COMMITTEE.vote(B2, 1))
    verified = verifier.timeout(timeout)
    assert (verified.timeout, verified.high_qc.qc, verified.tc) == (timeout, QC1, None)
    assert verified.vote is not None
    assert verified.vote.vote == timeout.vote


def test_a_timeout_after_a_tc_is_verified(verifier: Verifier) -> None:
    verified = verifier.timeout(COMMITTEE.timeout(3, 1, QC1))
    assert verified.tc is not None
    assert (verified.tc.view, verified.vote) == (2, None)


@pytest.mark.parametrize(
    "timeout",
    [
        COMMITTEE.timeout(2, 1, QC1, COMMITTEE.tc(1)),
        replace(COMMITTEE.timeout(3, 1, QC1), tc=None),
        COMMITTEE.timeout(1_000, 1, QC1, TC2),
        COMMITTEE.timeout(3, 1, COMMITTEE.genesis_qc, TC2),
        COMMITTEE.timeout(3, 1, COMMITTEE.qc(B3), TC2),
        COMMITTEE.timeout(3, 1, QC1, replace(TC2, qc_views=())),
    ],
    ids=[
        "a TC that is not needed",
        "no TC",
        "view+1000",
        "a QC below the TC's",
        "a QC above the view",
        "a TC that saw nothing",
    ],
)
def test_t7_a_timeout_without_the_certificate_of_the_view_before_is_refused(
    verifier: Verifier, timeout: Timeout
) -> None:
    assert reason(lambda: verifier.timeout(timeout)) is Reason.NOT_ENTITLED


def test_a_timeout_with_another_members_vote_is_refused(verifier: Verifier) -> None:
    timeout = COMMITTEE.timeout(2, 1, QC1, vote=COMMITTEE.vote(B2, 2))
    assert reason(lambda: verifier.timeout(timeout)) is Reason.BAD_CERTIFICATE


def test_a_timeout_with_a_vote_of_another_view_is_refused(verifier: Verifier) -> None:
    timeout = COMMITTEE.timeout(2, 1, QC1, vote=COMMITTEE.vote(B1, 1))
    assert reason(lambda: verifier.timeout(timeout)) is Reason.BAD_CERTIFICATE


def test_a_timeout_with_a_forged_vote_is_refused_whole(verifier: Verifier) -> None:
    vote = replace(COMMITTEE.vote(B2, 1), block=B3.id)
    assert reason(lambda: verifier.timeout(COMMITTEE.timeout(2, 1, QC1, vote=vote))) is Reason.BAD_SIGNATURE


def test_a_timeout_under_a_strangers_number_is_refused(verifier: Verifier) -> None:
    timeout = replace(COMMITTEE.timeout(2, 1, QC1), signer=9)
    assert reason(lambda: verifier.timeout(timeout)) is Reason.UNKNOWN_SIGNER


def test_a_timeout_that_its_signer_did_not_sign_is_refused(verifier: Verifier) -> None:
    timeout = replace(COMMITTEE.timeout(2, 1, QC1), signer=2)
    assert reason(lambda: verifier.timeout(timeout)) is Reason.BAD_SIGNATURE


def test_t6_a_timeout_with_a_forged_qc_is_refused(verifier: Verifier) -> None:
    forged = replace(QC1, votes=Aggregate(b"\x07", bytes(48)))
    assert reason(lambda: verifier.timeout(COMMITTEE.timeout(2, 1, forged))) is Reason.BAD_SIGNATURE


def test_t6_a_timeout_with_a_forged_tc_is_refused(verifier: Verifier) -> None:
    forged = replace(TC2, timeouts=Aggregate(b"\x07", bytes(48)))
    assert reason(lambda: verifier.timeout(COMMITTEE.timeout(3, 1, QC1, forged))) is Reason.BAD_SIGNATURE


def test_a_proposal_is_verified_with_its_certificates(verifier: Verifier) -> None:
    block = COMMITTEE.block(B1, 3, (batch(1),))
    proposal = COMMITTEE.proposal(block)
    verified = verifier.proposal(proposal)
    assert (verified.block, verified.justify.qc, verified.proposal) == (block, QC1, proposal)
    assert verified.tc is not None
    assert verified.tc.tc == TC2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"version": 2}, Reason.WRONG_VERSION),
        ({"chain": bytes(32)}, Reason.WRONG_CHAIN),
        ({"shard": 1}, Reason.WRONG_CHAIN),
        ({"epoch": 1}, Reason.WRONG_EPOCH),
        ({"governance": Governance(1, COMMITTEE.instance.chain)}, Reason.BAD_GOVERNANCE),
        ({"governance": Governance(0, bytes(32))}, Reason.BAD_GOVERNANCE),
        ({"view": 1_001}, Reason.NOT_ENTITLED),
        ({"view": 1}, Reason.NOT_ENTITLED),
        ({"tc": COMMITTEE.tc(1)}, Reason.NOT_ENTITLED),
        ({"view": 3}, Reason.NOT_ENTITLED),
        ({"parent": B3.id}, Reason.BAD_CERTIFICATE),
        ({"batches_root": bytes(32)}, Reason.BAD_BATCHES),
        ({"proposer": 4}, Reason.UNKNOWN_SIGNER),
        ({"justify": replace(QC1, votes=Aggregate(b"\x03", QC1.votes.signature))}, Reason.TOO_FEW_SIGNERS),
        ({"justify": replace(QC1, votes=Aggregate(b"\x0e", QC1.votes.signature))}, Reason.BAD_SIGNATURE),
    ],
)
def test_a_proposal_with_a_wrong_header_is_refused(
    verifier: Verifier, fields: dict[str, object], expected: Reason
) -> None:
    proposal = COMMITTEE.proposal(Block(replace(B2.header, **fields), ()), signer=2)
    assert reason(lambda: verifier.proposal(proposal)) is expected


def test_headers_are_of_the_instances_version_of_the_application_p24() -> None:
    newer = Committee(version=2)
    theirs, ours = newer.proposal(newer.block()), COMMITTEE.proposal(COMMITTEE.block())
    assert newer.verifier().proposal(theirs).block.header.version == 2
    assert reason(lambda: newer.verifier().proposal(ours)) is Reason.WRONG_VERSION
    assert reason(lambda: COMMITTEE.verifier().proposal(theirs)) is Reason.WRONG_VERSION


def test_t7_a_proposal_of_view_plus_1000_is_refused(verifier: Verifier) -> None:
    proposal = COMMITTEE.proposal(COMMITTEE.block(B1, 1_002, tc=TC2))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.NOT_ENTITLED


def test_t3_a_proposal_cannot_leave_out_the_tc_that_it_needs(verifier: Verifier) -> None:
    proposal = COMMITTEE.proposal(COMMITTEE.block(B1, 3, tc=None))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.NOT_ENTITLED


def test_t2_a_proposal_below_the_highest_qc_of_its_tc_is_refused(verifier: Verifier) -> None:
    proposal = COMMITTEE.proposal(COMMITTEE.block(B1, 4, tc=COMMITTEE.tc(3, (1, 1, 2))))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.NOT_ENTITLED


def test_t6_a_proposal_with_a_forged_tc_is_refused(verifier: Verifier) -> None:
    forged = replace(TC2, timeouts=Aggregate(b"\x07", bytes(48)))
    proposal = COMMITTEE.proposal(COMMITTEE.block(B1, 3, tc=forged))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.BAD_SIGNATURE


def test_a_proposal_signed_by_another_member_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.proposal(COMMITTEE.proposal(B2, signer=1))) is Reason.BAD_SIGNATURE


def test_a_batch_named_twice_is_refused(verifier: Verifier) -> None:
    proposal = COMMITTEE.proposal(COMMITTEE.block(B1, 2, (batch(1), batch(1))))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.BAD_BATCHES


def test_batches_other_than_the_header_covers_are_refused(verifier: Verifier) -> None:
    proposal = replace(COMMITTEE.proposal(B2), batches=(batch(1),))
    assert reason(lambda: verifier.proposal(proposal)) is Reason.BAD_BATCHES


# -- another epoch ---------------------------------------------------------------------------------------------------


FOREIGN = OTHER_EPOCH.block()


@pytest.mark.parametrize(
    "check",
    [
        lambda verifier: verifier.qc(OTHER_EPOCH.qc(FOREIGN)),
        lambda verifier: verifier.qc(OTHER_EPOCH.genesis_qc),
        lambda verifier: verifier.tc(OTHER_EPOCH.tc(1)),
        lambda verifier: verifier.vote(OTHER_EPOCH.vote(FOREIGN, 0)),
        lambda verifier: verifier.timeout(OTHER_EPOCH.timeout(1, 0)),
        lambda verifier: verifier.timeout(replace(OTHER_EPOCH.timeout(1, 0), epoch=0)),
        lambda verifier: verifier.proposal(OTHER_EPOCH.proposal(FOREIGN)),
        lambda verifier: verifier.certificates(Certificates(OTHER_EPOCH.qc(FOREIGN), None)),
        lambda verifier: verifier.certificates(Certificates(QC1, OTHER_EPOCH.tc(2))),
        lambda verifier: verifier.chain((FOREIGN,), OTHER_EPOCH.qc(FOREIGN)),
    ],
    ids=[
        "qc",
        "genesis qc",
        "tc",
        "vote",
        "timeout",
        "relabelled timeout",
        "proposal",
        "certificates",
        "tc beside qc",
        "chain",
    ],
)
def test_t22_whatever_another_epoch_signed_is_refused(
    verifier: Verifier, check: Callable[[Verifier], object]
) -> None:
    """A timeout that only claims this epoch fails by its signature, all else by its epoch."""
    assert reason(lambda: check(verifier)) in (Reason.WRONG_EPOCH, Reason.BAD_SIGNATURE)


def test_t22_a_qc_of_another_epoch_relabelled_is_refused(verifier: Verifier) -> None:
    """The epoch is under the signature, so writing another number beside it does not help."""
    relabelled = replace(OTHER_EPOCH.qc(FOREIGN), epoch=0)
    assert reason(lambda: verifier.qc(relabelled)) is Reason.BAD_SIGNATURE


def test_t22_certificates_of_this_epoch_under_another_number_are_refused(verifier: Verifier) -> None:
    """The number beside the signatures is not under them: two encodings of one certificate."""
    assert reason(lambda: verifier.qc(replace(QC1, epoch=1))) is Reason.WRONG_EPOCH
    assert reason(lambda: verifier.tc(replace(TC2, epoch=1))) is Reason.WRONG_EPOCH


def test_t22_a_vote_of_another_epoch_inside_a_timeout_is_refused(verifier: Verifier) -> None:
    vote = replace(COMMITTEE.vote(B2, 1), epoch=1)
    assert reason(lambda: verifier.timeout(COMMITTEE.timeout(2, 1, QC1, vote=vote))) is Reason.WRONG_EPOCH


# -- fetched chains ----------------------------------------------------------------------------------------------------


def test_t21_a_fetched_chain_with_the_qc_of_its_last_block_is_verified(verifier: Verifier) -> None:
    chain = verifier.chain((B1, B2, B3), COMMITTEE.qc(B3))
    assert (chain.blocks, chain.qc.view) == ((B1, B2, B3), 3)


@pytest.mark.parametrize(
    ("blocks", "certified"),
    [((), B3), ((B1, B3), B3), ((B2, B1), B1), ((B1, B2), B3)],
    ids=["nothing", "a hole", "backwards", "another QC"],
)
def test_t21_fetched_blocks_that_are_no_certified_chain_are_refused(
    verifier: Verifier, blocks: tuple[Block, ...], certified: Block
) -> None:
    assert reason(lambda: verifier.chain(blocks, COMMITTEE.qc(certified))) is Reason.BAD_ANSWER


def test_t21_a_fetched_chain_whose_heights_do_not_follow_is_refused(verifier: Verifier) -> None:
    high = COMMITTEE.block(B1, 2, height=7)
    assert reason(lambda: verifier.chain((B1, high), COMMITTEE.qc(high))) is Reason.BAD_ANSWER


def test_t21_fetched_blocks_of_two_branches_are_refused_although_their_heights_follow(
    verifier: Verifier,
) -> None:
    other = COMMITTEE.block(COMMITTEE.block(view=1, time=77), 2)
    assert other.height == B1.height + 1
    assert reason(lambda: verifier.chain((B1, other), COMMITTEE.qc(other))) is Reason.BAD_ANSWER


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"version": 2}, Reason.WRONG_VERSION),
        ({"chain": bytes(32)}, Reason.WRONG_CHAIN),
        ({"shard": 1}, Reason.WRONG_CHAIN),
        ({"epoch": 1}, Reason.WRONG_EPOCH),
        ({"governance": Governance(0, bytes(32))}, Reason.BAD_GOVERNANCE),
    ],
)
def test_t21_every_header_of_a_fetched_chain_is_checked(
    verifier: Verifier, fields: dict[str, object], expected: Reason
) -> None:
    wrong = COMMITTEE.block(**fields)  # type: ignore[arg-type]
    child = COMMITTEE.block(wrong)
    assert reason(lambda: verifier.chain((wrong, child), COMMITTEE.qc(child))) is expected


def test_t21_a_fetched_chain_names_members_only(verifier: Verifier) -> None:
    """Nobody checks who led a fetched block, but leader schemes count its proposer."""
    stranger = COMMITTEE.block(proposer=4)
    assert reason(lambda: verifier.chain((stranger,), COMMITTEE.qc(stranger))) is Reason.UNKNOWN_SIGNER


def test_t4_a_fetched_chain_with_a_qc_of_another_view_is_refused(verifier: Verifier) -> None:
    assert reason(lambda: verifier.chain((B1,), COMMITTEE.qc(B1, view=2))) is Reason.BAD_ANSWER


def test_t21_a_fetched_chain_with_a_forged_qc_is_refused(verifier: Verifier) -> None:
    forged = replace(COMMITTEE.qc(B3), votes=Aggregate(b"\x07", bytes(48)))
    assert reason(lambda: verifier.chain((B1, B2, B3), forged)) is Reason.BAD_SIGNATURE


def test_t21_fetched_batches_other_than_the_headers_cover_are_refused(verifier: Verifier) -> None:
    assert (
        reason(lambda: verifier.chain((Block(B1.header, (batch(1),)),), COMMITTEE.qc(B1)))
        is Reason.BAD_BATCHES
    )
