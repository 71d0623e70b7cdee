"""A block is final when it heads a run of consecutive views, and the commit walk goes by parents (T1, T8, P2)."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Committee, batch, finalised

from parley.consensus.forest import MAX_UNCERTIFIED, Forest
from parley.consensus.types import Block


def heights(blocks: tuple[Block, ...]) -> list[int]:
    return [block.height for block in blocks]


def grow(forest: Forest, blocks: list[Block]) -> list[list[int]]:
    """Certify each block as soon as it is added; the heights that each makes final."""
    final = []
    for block in blocks:
        forest.add(block)
        final.append(heights(forest.certify(block.id)[0]))
    return final


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_only_depths_2_and_3_are_commit_rules(depth: int) -> None:
    with pytest.raises(ValueError, match="commit depth must be 2 or 3"):
        Forest(depth, [Committee().genesis])


def test_two_consecutive_certified_views_commit_the_first() -> None:
    committee = Committee()
    assert grow(Forest(2, [committee.genesis]), committee.chain(1, 2, 3)) == [[], [1], [2]]


def test_three_consecutive_certified_views_commit_the_first() -> None:
    committee = Committee(depth=3)
    assert grow(Forest(3, [committee.genesis]), committee.chain(1, 2, 3, 4)) == [[], [], [1], [2]]


def test_t1_parents_alone_commit_nothing() -> None:
    """T1: every block here is the direct parent of the next, but no two views are consecutive."""
    committee = Committee()
    assert grow(Forest(2, [committee.genesis]), committee.chain(1, 3, 5, 7, 9)) == [[]] * 5


def test_t1_a_gap_inside_a_run_of_three_commits_nothing() -> None:
    committee = Committee(depth=3)
    views = (1, 2, 4, 5, 7, 8, 10)
    assert grow(Forest(3, [committee.genesis]), committee.chain(*views)) == [[]] * len(views)


@pytest.mark.parametrize("views", [(3, 2), (2, 2), (3, 1)])
def test_t1_views_that_do_not_ascend_commit_nothing(views: tuple[int, ...]) -> None:
    committee = Committee()
    assert grow(Forest(2, [committee.genesis]), committee.chain(*views)) == [[], []]


def test_t8_commit_walk_neither_repeats_nor_reorders_with_gaps() -> None:
    committee = Committee()
    final = grow(Forest(2, [committee.genesis]), committee.chain(1, 3, 4, 6, 8, 9, 10))
    assert final == [[], [], [1, 2], [], [], [3, 4, 5], [6]]


def test_t8_a_long_commit_abandons_no_committed_block() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    blocks = committee.chain(1, 3, 5, 7, 9, 11, 12)
    grow(forest, blocks[:-1])
    forest.add(blocks[-1])
    final, abandoned = forest.certify(blocks[-1].id)
    assert (heights(final), abandoned) == ([1, 2, 3, 4, 5, 6], ())


def test_t14_a_commit_abandons_every_other_branch() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    b1, b2 = committee.chain(1, 2)
    forks = [committee.block(view=4), committee.block(b1, 5)]
    nephew = committee.block(forks[0], 6)
    for block in (b1, *forks, nephew, b2):
        forest.add(block)
    final, abandoned = forest.certify(b2.id)
    assert heights(final) == [1]
    assert set(abandoned) == {forks[0].id, nephew.id}
    assert [forest.get(id_) is not None for id_ in (b1.id, b2.id, forks[1].id, forks[0].id)] == [
        True,
        True,
        True,
        False,
    ]


def test_a_second_certificate_of_one_block_commits_nothing_again() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    blocks = committee.chain(1, 2)
    grow(forest, blocks)
    assert forest.certify(blocks[1].id) == ((), ())


def test_uncommitted_blocks_are_listed_from_the_newest_down_to_the_root() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    blocks = committee.chain(1, 2, 4, 6)
    grow(forest, blocks)
    assert [block.height for block in forest.uncommitted(blocks[-1].id)] == [4, 3, 2]
    assert list(forest.uncommitted(forest.root.id)) == []


def test_of_a_block_that_is_not_here_no_batches_are_known() -> None:
    """It may be the one that the newest certificate names: then nothing is left out of what is asked for."""
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    absent = committee.chain(1)[0]
    assert forest.ordered(absent.id) == frozenset()


def test_the_ancestry_reaches_below_the_root() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis], memory=5)
    blocks = committee.chain(*range(1, 11))
    grow(forest, blocks)
    assert [header.height for header in forest.ancestry(blocks[-1].id)] == [10, 9, 8, 7, 6, 5, 4]


def test_the_ancestry_has_no_gap_where_many_blocks_were_committed_at_once() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis], memory=5)
    blocks = committee.chain(1, 3, 5, 7, 8)
    assert grow(forest, blocks)[-1] == [1, 2, 3, 4]
    assert [header.height for header in forest.ancestry(blocks[-1].id)] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("depth", "memory", "kept"), [(2, 0, 3), (3, 0, 4), (2, 3, 3), (3, 3, 4), (2, 7, 7), (3, 7, 7)]
)
def test_as_many_committed_headers_are_kept_as_the_rule_and_the_leader_read(
    depth: int, memory: int, kept: int
) -> None:
    committee = Committee(depth=depth)
    forest = Forest(depth, [committee.genesis], memory)
    grow(forest, committee.chain(*range(1, 21)))
    below = list(forest.ancestry(forest.root.id))[1:]
    assert [header.height for header in below] == [forest.root.height - down for down in range(1, kept + 1)]


def test_the_oldest_of_too_many_uncertified_blocks_fall_out() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    loose = [committee.block(view=view) for view in range(MAX_UNCERTIFIED + 2, 0, -1)]
    for block in loose[: MAX_UNCERTIFIED - 1]:
        forest.add(block)
    assert forest.trim() == ()
    for block in loose[MAX_UNCERTIFIED - 1 :]:
        forest.add(block)
    assert forest.trim(keep=loose[-1].id) == (loose[-2], loose[-3])
    assert [forest.get(block.id) is not None for block in loose[-4:]] == [True, False, False, True]


def test_certified_blocks_never_fall_out() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    certified = committee.block(view=1)
    forest.add(certified)
    forest.certify(certified.id)
    for view in range(2, 2 * MAX_UNCERTIFIED):
        forest.add(committee.block(view=view))
    assert certified not in forest.trim()
    assert forest.get(certified.id) is not None


def test_the_newest_payload_of_a_branch_is_known() -> None:
    committee = Committee()
    forest = Forest(2, [committee.genesis])
    b1 = committee.block(batches=(batch(1),))
    b2 = committee.block(b1)
    grow(forest, [b1, b2])
    nodes = [forest.get(block.id) for block in (committee.genesis, b1, b2)]
    assert [None if node is None else node.last_payload for node in nodes] == [None, 1, 1]


@pytest.mark.parametrize(("payload", "newest"), [((2, 4), 4), ((2, 5), 5), ((), 0)])
def test_a_restarted_forest_knows_the_newest_payload_of_its_history(
    payload: tuple[int, ...], newest: int
) -> None:
    committee = Committee()
    line = [committee.genesis]
    for view in range(1, 6):
        line.append(committee.block(line[-1], batches=(batch(view),) if view in payload else ()))
    root = Forest(2, line).get(line[-1].id)
    assert root is not None
    assert root.last_payload == newest


@pytest.mark.parametrize("depth", [2, 3])
def test_a_restarted_forest_knows_the_executed_height_that_the_next_block_must_name(depth: int) -> None:
    committee = Committee(depth=depth)
    blocks = committee.chain(*range(1, 7))
    root = Forest(depth, [committee.genesis, *blocks]).get(blocks[-1].id)
    assert root is not None
    assert root.child_executes == committee.block(blocks[-1]).header.executed_height == 6 - depth


# -- against a slow model ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Growth:
    """A block on the certified block that is `parent` before the newest one, after `gap` views without a block."""

    parent: int
    gap: int
    certified: bool


growths = st.lists(
    st.builds(
        Growth,
        parent=st.one_of(st.integers(0, 2), st.integers(0, 60)),
        gap=st.sampled_from([0, 0, 0, 1, 2]),
        certified=st.sampled_from([True, True, True, False]),
    ),
    max_size=40,
)
histories = st.tuples(st.sampled_from([2, 3]), growths)


def trees(history: tuple[int, list[Growth]]) -> tuple[Committee, list[tuple[Block, bool]]]:
    """Blocks with ever higher views, mostly on recent blocks, each certified at once or never."""
    depth, steps = history
    committee = Committee(depth=depth)
    made: list[tuple[Block, bool]] = [(committee.genesis, True)]
    view = 0
    for step in steps:
        certified = [block for block, is_certified in made if is_certified]
        parent = certified[-1 - step.parent % len(certified)]
        view = max(view, parent.view) + 1 + step.gap
        payload = (batch(view),) if view % 3 == 0 else ()
        made.append((committee.block(parent, view, payload), step.certified))
    return committee, made[1:]


def extends(committee: Committee, block: Block, ancestor: Block) -> bool:
    return ancestor in committee.lineage(block)


def play(forest: Forest, committee: Committee, tree: list[tuple[Block, bool]]) -> list[Block]:
    """Add and certify in order, as far as the forest still knows the parents; what became final, in order."""
    final: list[Block] = []
    for block, certified in tree:
        if forest.get(block.parent) is None:
            continue
        forest.add(block)
        if certified:
            final += forest.certify(block.id)[0]
    return final


def model(committee: Committee, depth: int, tree: list[tuple[Block, bool]]) -> list[Block]:
    """Every certified block's own chain decides what is final; what leaves the committed chain is ignored."""
    committed = [committee.genesis]
    for block, certified in tree:
        if not certified or not extends(committee, block, committed[-1]):
            continue
        line = committee.lineage(block)
        committed += line[len(committed) : finalised(line, depth) + 1]
    return committed[1:]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(histories)
def test_t1_t8_commits_agree_with_the_slow_model(history: tuple[int, list[Growth]]) -> None:
    committee, tree = trees(history)
    assert play(Forest(history[0], [committee.genesis]), committee, tree) == model(
        committee, history[0], tree
    )


@settings(derandomize=True, max_examples=200, deadline=None)
@given(histories)
def test_t8_commits_are_one_chain_each_block_once_in_height_order(
    history: tuple[int, list[Growth]],
) -> None:
    committee, tree = trees(history)
    final = play(Forest(history[0], [committee.genesis]), committee, tree)
    assert [block.height for block in final] == list(range(1, len(final) + 1))
    assert all(child.parent == parent.id for parent, child in pairwise(final))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(histories)
def test_t14_what_leaves_the_forest_was_committed_or_is_named_as_abandoned(
    history: tuple[int, list[Growth]],
) -> None:
    committee, tree = trees(history)
    forest = Forest(history[0], [committee.genesis])
    held = {committee.genesis.id}
    for block, certified in tree:
        if forest.get(block.parent) is None:
            continue
        forest.add(block)
        held.add(block.id)
        final, abandoned = forest.certify(block.id) if certified else ((), ())
        held -= set(abandoned)
        assert not set(abandoned) & {b.id for b in committee.lineage(forest.root)}
        if final:
            held -= {b.id for b in committee.lineage(forest.root)} - {forest.root.id}
        assert held == {id_ for id_ in held if forest.get(id_) is not None}


@settings(derandomize=True, max_examples=200, deadline=None)
@given(histories)
def test_executed_height_is_what_the_certificates_in_parent_and_ancestors_make_final(
    history: tuple[int, list[Growth]],
) -> None:
    committee, tree = trees(history)
    forest = Forest(history[0], [committee.genesis])
    for block, certified in tree:
        node = forest.get(block.parent)
        if node is None:
            continue
        assert node.child_executes == committee.executed_height(node.block)
        forest.add(block)
        if certified:
            forest.certify(block.id)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(histories, st.integers(0, 40), st.sampled_from([0, 6]))
def test_a_forest_restarted_anywhere_from_the_needed_history_goes_on_as_before(
    history: tuple[int, list[Growth]], stop: int, memory: int
) -> None:
    depth = history[0]
    committee, tree = trees(history)
    old = Forest(depth, [committee.genesis], memory)
    before = play(old, committee, tree[:stop])
    committed = committee.lineage(old.root)
    lowest = Forest.needed_history(old.root.header, depth, memory)
    new = Forest(depth, committed[lowest:], memory)
    again = play(new, committee, tree[:stop])
    for block, _ in tree[:stop]:
        lived, restarted = old.get(block.id), new.get(block.id)
        assert (lived is None) == (restarted is None)
        if lived is not None and restarted is not None:
            assert lived.child_executes == restarted.child_executes
            assert lived.finalises == restarted.finalises
            executed = block.header.executed_height
            assert max(lived.last_payload, executed) == max(restarted.last_payload, executed)
    rest = tree[stop:]
    assert again == []
    assert (
        play(new, committee, rest)
        == play(old, committee, rest)
        == model(committee, depth, tree)[len(before) :]
    )


@pytest.mark.parametrize(
    ("height", "executed", "depth", "memory", "lowest"),
    [
        (0, 0, 2, 0, 0),
        (10, 8, 2, 0, 7),
        (10, 8, 3, 0, 6),
        (10, 3, 2, 0, 3),
        (100, 98, 2, 16, 84),
        (5, 4, 2, 16, 0),
    ],
)
def test_the_needed_history_reaches_the_rule_the_leader_and_the_last_result(
    height: int, executed: int, depth: int, memory: int, lowest: int
) -> None:
    header = Committee().block(height=height, executed_height=executed).header
    assert Forest.needed_history(header, depth, memory) == lowest
