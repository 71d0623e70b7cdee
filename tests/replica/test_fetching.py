"""Blocks around a snapshot: of one branch, as far down as consensus reads, up to a header that makes the snapshot final."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.consensus.chains import Committee

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import QC, Block
from parley.ledger.layout import StoredBlock
from parley.replica.fetching import BlocksFetch
from parley.sync.messages import BlocksRequest, BlocksResponse, SnapshotOffer

COMMITTEE = Committee()
CHAIN = [COMMITTEE.genesis, *COMMITTEE.chain(*range(1, 12))]
TIP = CHAIN[11]
HEIGHT = TIP.header.executed_height
OFFER = SnapshotOffer(TIP.header, COMMITTEE.qc(TIP), b"")


def fetch(memory: int = 0) -> BlocksFetch:
    return BlocksFetch(OFFER, COMMITTEE.verifier(), COMMITTEE.depth, memory)


def answer(blocks: Sequence[Block], qc: QC | None = None, target: bytes = TIP.id) -> BlocksResponse:
    certificate = COMMITTEE.qc(blocks[-1]) if qc is None and blocks else qc
    return BlocksResponse(target, tuple(map(StoredBlock.of, blocks)), certificate)


def reason(action: Callable[[], object]) -> Reason:
    with pytest.raises(Refused) as refused:
        action()
    return refused.value.reason


def test_the_snapshot_of_these_tests_is_of_a_height_below_the_headers() -> None:
    assert (TIP.height, HEIGHT) == (11, 8)
    assert [block.header.executed_height for block in CHAIN[8:]] == [5, 6, 7, 8]


def test_blocks_may_come_in_several_answers() -> None:
    blocks = fetch()
    assert blocks.question() == BlocksRequest(TIP.id, HEIGHT - 4)
    blocks.take(answer(CHAIN[5:7]))
    assert blocks.question() == BlocksRequest(TIP.id, 6)
    blocks.take(answer(CHAIN[7:]))
    assert blocks.done
    assert blocks.blocks == tuple(CHAIN[5:])


def test_blocks_of_a_second_answer_that_do_not_link_to_the_first_are_refused() -> None:
    """Both are certified: the liar's branch was abandoned."""
    abandoned = COMMITTEE.chain(20, 22, parent=CHAIN[5])
    blocks = fetch()
    blocks.take(answer(CHAIN[5:7]))
    assert abandoned[1].height == 7
    assert reason(lambda: blocks.take(answer(abandoned[1:]))) is Reason.BAD_ANSWER
    assert blocks.blocks == tuple(CHAIN[5:7])


def test_a_snapshots_block_is_final_only_with_a_header_above_that_names_it() -> None:
    """Each block is certified, but that makes none of them final."""
    blocks = fetch()
    for height in range(5, 11):
        blocks.take(answer([CHAIN[height]]))
        assert not blocks.done
    blocks.take(answer([TIP]))
    assert blocks.done


def test_after_another_members_turn_begins_nothing_of_the_one_before_is_left() -> None:
    blocks = fetch()
    blocks.take(answer(CHAIN[5:7]))
    blocks.restart()
    assert blocks.blocks == ()
    assert blocks.question() == BlocksRequest(TIP.id, HEIGHT - 4)


@pytest.mark.parametrize(
    "unasked",
    [
        answer(CHAIN[5:], target=CHAIN[5].id),
        answer(CHAIN[6:]),
        answer(CHAIN[4:]),
        BlocksResponse(TIP.id, (), None),
    ],
    ids=["another target", "later blocks", "earlier blocks", "no blocks"],
)
def test_what_was_not_asked_for_is_refused(unasked: BlocksResponse) -> None:
    assert reason(lambda: fetch().take(unasked)) is Reason.UNSOLICITED


@pytest.mark.parametrize(("memory", "first"), [(0, 5), (3, 5), (5, 3), (8, 1), (100, 1)])
def test_blocks_are_fetched_from_as_far_down_as_consensus_reads(memory: int, first: int) -> None:
    blocks = fetch(memory)
    assert blocks.question() == BlocksRequest(TIP.id, first - 1)
    blocks.take(answer(CHAIN[first:]))
    assert blocks.done
    assert blocks.blocks == tuple(CHAIN[first:])


def test_blocks_from_further_down_are_fetched_where_views_failed() -> None:
    """The block of the snapshot's height names an executed height far below: consensus reads from there on."""
    line = [COMMITTEE.genesis, *COMMITTEE.chain(1, 2, 3, *range(5, 21, 2), 21, 22, 23, 24)]
    tip = line[-1]
    height = tip.header.executed_height
    offer = SnapshotOffer(tip.header, COMMITTEE.qc(tip), b"")
    blocks = BlocksFetch(offer, COMMITTEE.verifier(), COMMITTEE.depth, 0)
    above = blocks.question().above
    blocks.take(answer(line[above + 1 :], target=tip.id))
    assert not blocks.done
    assert blocks.blocks == ()
    lower = blocks.question().above
    assert lower < line[height].header.executed_height
    blocks.take(answer(line[lower + 1 :], target=tip.id))
    assert blocks.done
