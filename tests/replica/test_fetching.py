"""The pieces of a snapshot: each node and entry in its place, blocks of one branch, and nothing that was not asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
from tests.consensus.chains import Committee
from tests.replica.driver import MemoryStore

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import QC, Block
from parley.ledger import layout, state_map
from parley.ledger.layout import StateNodes, StoredBlock
from parley.replica.fetching import BlocksFetch, EntriesFetch, NodesFetch
from parley.replica.snapshots import least
from parley.sync.messages import (
    BlocksRequest,
    BlocksResponse,
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
)

A = TypeVar("A")

COMMITTEE = Committee()
CHAIN = [COMMITTEE.genesis, *COMMITTEE.chain(*range(1, 12))]
TIP = CHAIN[11]
HEIGHT = TIP.header.executed_height
OFFER = SnapshotOffer(TIP.header, COMMITTEE.qc(TIP), b"")


# Two answers of half of these are long enough, so that more may come after the first.
STATE = {b"key %d" % number: bytes(least() // 3) for number in range(8)}
KEYS = sorted(STATE)


def fetch(memory: int = 0) -> BlocksFetch:
    return BlocksFetch(OFFER, COMMITTEE.verifier(), COMMITTEE.depth, memory)


def answer(blocks: Sequence[Block], qc: QC | None = None, target: bytes = TIP.id) -> BlocksResponse:
    certificate = COMMITTEE.qc(blocks[-1]) if qc is None and blocks else qc
    return BlocksResponse(target, tuple(map(StoredBlock.of, blocks)), certificate)


def refused(take: Callable[[A], object], answered: A) -> Reason:
    with pytest.raises(Refused) as refusal:
        take(answered)
    return refusal.value.reason


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
    assert refused(blocks.take, answer(abandoned[1:])) is Reason.BAD_ANSWER
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
    assert refused(fetch().take, unasked) is Reason.UNSOLICITED


@pytest.mark.parametrize(
    "forged",
    [
        answer(CHAIN[5:], COMMITTEE.qc(CHAIN[10])),
        answer(CHAIN[5:], COMMITTEE.qc(TIP, (0, 1))),
        answer([*CHAIN[5:7], COMMITTEE.block(CHAIN[6], time=77), *CHAIN[8:]]),
        answer([*CHAIN[5:11], COMMITTEE.block(CHAIN[10], shard=1)]),
        answer([*CHAIN[5:11], Block(TIP.header, (bytes(32),))]),
    ],
    ids=["another certificate", "few signers", "a changed block", "another shard", "other batches"],
)
def test_blocks_that_are_no_certified_chain_are_refused(forged: BlocksResponse) -> None:
    blocks = fetch()
    with pytest.raises(Refused):
        blocks.take(forged)
    assert blocks.blocks == ()


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


# -- nodes and entries -----------------------------------------------------------------------------------------------------


def state_of(entries: dict[bytes, bytes]) -> tuple[SnapshotOffer, MemoryStore]:
    """An offer of this state, and a store with the nodes of its map."""
    root, nodes = state_map.update(StateNodes(MemoryStore()), entries)
    stored = ((layout.state_node(path), node) for path, node in nodes.items() if node is not None)
    header = COMMITTEE.block(executed_height=HEIGHT, state_root=root).header
    return SnapshotOffer(header, OFFER.qc, b""), MemoryStore(stored)


def entries_fetch() -> EntriesFetch:
    return EntriesFetch(*state_of(STATE), leaves=len(STATE))


def page(
    keys: Sequence[bytes], after: bytes = b"", *, more: bool = False, height: int = HEIGHT
) -> SnapshotEntries:
    return SnapshotEntries(height, after, tuple((key, STATE[key]) for key in keys), more)


def test_nodes_are_counted_and_written_as_they_come() -> None:
    offer, source = state_of(STATE)
    store = MemoryStore()
    nodes = NodesFetch(offer, store)
    while not nodes.done:
        question = nodes.question()
        found = tuple(state_map.standing(StateNodes(source), path) or b"" for path in question.paths)
        for key, value in nodes.take(SnapshotNodes(HEIGHT, question.paths[0], found)):
            assert value is not None
            store.entries[key] = value
    assert nodes.leaves == len(STATE)
    assert store.entries == source.entries


def test_nodes_that_were_not_asked_for_or_are_not_those_of_the_map_are_refused() -> None:
    offer, source = state_of(STATE)
    root = source.entries[layout.state_node(b"")]
    nodes = NodesFetch(offer, MemoryStore())
    assert nodes.question() == NodesRequest(HEIGHT, (b"",))
    other_height, other_path = SnapshotNodes(HEIGHT + 1, b"", (root,)), SnapshotNodes(HEIGHT, b"\1", (root,))
    for unasked in (other_height, other_path):
        assert refused(nodes.take, unasked) is Reason.UNSOLICITED
    for wrong in ((), (root, root), (b"",), (root[:-1] + bytes([root[-1] ^ 1]),)):
        answered = SnapshotNodes(HEIGHT, b"", wrong)
        assert refused(nodes.take, answered) is Reason.BAD_ANSWER
    assert nodes.take(SnapshotNodes(HEIGHT, b"", (root,)))


def test_entries_come_in_key_order_in_several_answers() -> None:
    entries = entries_fetch()
    entries.take(page(KEYS[:4], more=True))
    assert (entries.done, entries.complete) == (False, False)
    assert entries.question() == EntriesRequest(HEIGHT, KEYS[3])
    entries.take(page(KEYS[4:], KEYS[3]))
    assert (entries.done, entries.complete) == (True, True)


def test_entries_of_another_question_are_not_taken() -> None:
    entries = entries_fetch()
    entries.take(page(KEYS[:4], more=True))
    for unasked in (page(KEYS[4:]), page(KEYS[5:], KEYS[4]), page(KEYS[4:], KEYS[3], height=HEIGHT + 1)):
        assert refused(entries.take, unasked) is Reason.UNSOLICITED
    assert entries.question() == EntriesRequest(HEIGHT, KEYS[3])


def test_little_of_the_state_with_more_to_come_is_refused() -> None:
    """Entry by entry a liar could keep a joiner for ever."""
    for few in ([], KEYS[:1], KEYS[:2]):
        answered = page(few, more=True)
        assert refused(entries_fetch().take, answered) is Reason.BAD_ANSWER
    entries_fetch().take(page(KEYS[:3], more=True))


def test_an_entry_that_comes_twice_or_backwards_or_is_not_of_the_state_is_refused() -> None:
    repeated = page([*KEYS[:3], KEYS[2], *KEYS[4:]])
    backwards = page([KEYS[1], KEYS[0], *KEYS[2:]])
    foreign = SnapshotEntries(HEIGHT, b"", ((KEYS[0], b"another value"),), more=False)
    for wrong in (repeated, backwards, foreign):
        assert refused(entries_fetch().take, wrong) is Reason.BAD_ANSWER


@pytest.mark.parametrize("missing", [0, 3, 7])
def test_an_entry_that_was_left_out_shows_at_the_end(missing: int) -> None:
    entries = entries_fetch()
    entries.take(page(KEYS[:missing] + KEYS[missing + 1 :]))
    assert (entries.done, entries.complete) == (True, False)
