"""CWA elects exactly whom Algorithm 2 elects, read as P8 says."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Tree

from parley.consensus.committee import faults, quorum
from parley.consensus.leader.cwa import DELAY, HIGHEST_SCORE, Cwa
from parley.consensus.leader.line import Line
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.types import Block, Header

# By how much the view grows, who proposes, who votes for the parent; the last two are reduced to the committee's size.
Growth = tuple[int, int, int]
growths = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 5]), st.integers(0, 99), st.integers(1, 2**32 - 1)))


def signers(header: Header) -> list[int]:
    bits = int.from_bytes(header.justify.votes.bitmap, "little")
    return [member for member in range(bits.bit_length()) if bits >> member & 1]


def algorithm_2(chain: list[Header], view: int, size: int) -> int:
    """Slow and obvious. `chain[i]` is the header at height i, the last one is the parent; B_ref lies D blocks below."""
    reference = len(chain) - 1 - 5
    if reference <= 0:
        return view % size
    window = range(max(1, reference - 4 * size + 1), reference + 1)
    reputation = dict.fromkeys(range(size), 0)
    for height in window:
        reputation[chain[height].proposer] += 10 * 65536
        for voter in signers(chain[height + 1]):
            reputation[voter] += 65536
        for member in range(size):
            reputation[member] = min(4 * reputation[member] // 5, 100 * 65536)
    exclude: set[int] = set()
    height = reference
    while len(exclude) < (size - 1) // 3 and height in window:
        exclude |= {chain[height].proposer}
        height -= 1
    candidates = set(signers(chain[reference + 1])) - exclude
    if not candidates:
        return view % size
    best = max(reputation[member] for member in candidates)
    return min(member for member in candidates if reputation[member] == best)


def plant(tree: Tree, growth: list[Growth]) -> list[Block]:
    blocks = [tree.genesis]
    for step, proposer, votes in growth:
        blocks.append(
            tree.block(
                blocks[-1],
                blocks[-1].view + step,
                proposer=proposer % tree.size,
                signers=[member for member in range(tree.size) if votes >> member & 1],
            )
        )
    return blocks


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.integers(1, 12), growths)
def test_it_elects_as_algorithm_2_does(size: int, growth: list[Growth]) -> None:
    tree, scheme = Tree(size), Cwa(size)
    blocks = plant(tree, growth)
    headers = [block.header for block in blocks]
    for block in blocks:
        elected = scheme.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block))
        assert elected == algorithm_2(headers[: block.height + 1], block.view + 1, size)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(st.integers(4, 12), st.integers(0, 2**32))
def test_it_elects_as_algorithm_2_does_beyond_the_window(size: int, seed: int) -> None:
    tree, scheme, chance = Tree(size), Cwa(size), Random(seed)
    growth = [
        (chance.choice([1, 1, 2]), chance.randrange(size), chance.getrandbits(size))
        for _ in range(5 * size + 10)
    ]
    blocks = plant(tree, growth)
    headers = [block.header for block in blocks]
    for block in blocks[-size:]:
        elected = scheme.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block))
        assert elected == algorithm_2(headers[: block.height + 1], block.view + 1, size)


def test_the_voters_of_the_reference_block_are_those_that_this_branch_shows() -> None:
    """Another child of the reference block may hold other votes for it; what was found for one is not the other's."""
    tree = Tree(4)
    reference = tree.chain(8)[-1]
    scheme = Cwa(4)
    leaders = {}
    for votes in [(0, 1, 2), (0, 1, 3)]:
        child = tree.block(reference, signers=votes)
        parent = tree.chain(DELAY - 1, child)[-1]
        leaders[votes] = scheme.leader(parent.view + 1, EnteredBy.QC, tree.ancestry(parent))
        headers = [block.header for block in tree.lineage(parent)]
        assert leaders[votes] == algorithm_2(headers, parent.view + 1, 4)
    assert len(set(leaders.values())) == 2


def test_without_a_candidate_it_is_everybodys_turn() -> None:
    """No quorum is that small; the rule is there so that an answer never depends on that."""
    tree, scheme = Tree(4), Cwa(4)
    reference = tree.block(tree.chain(8)[-1], proposer=2)
    parent = tree.chain(DELAY - 1, tree.block(reference, signers=[2]))[-1]
    assert [scheme.leader(view, EnteredBy.QC, tree.ancestry(parent)) for view in (20, 21, 22)] == [0, 1, 2]


def test_r6_a_member_whose_votes_are_left_out_is_never_elected() -> None:
    """What the paper's scheme does, and CWA+ does not: see test_cwa_plus.py."""
    tree, scheme = Tree(4), Cwa(4)
    block = tree.chain(DELAY + 1)[-1]
    for _ in range(100):
        leader = scheme.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block))
        assert leader != 3
        block = tree.block(block, proposer=leader, signers=(0, 1, 2))


def test_r5_scores_stay_in_range_for_every_size() -> None:
    for size in range(1, 101):
        tree, scheme = Tree(size), Cwa(size)
        parent = tree.chain(2 * DELAY + 2 * faults(size))[-1]
        scores = scheme._scores(Line(tree.ancestry(parent)), parent.height - DELAY)
        assert all(0 <= score <= HIGHEST_SCORE for score in scores)
        assert min(scores[: quorum(size)]) > 0
        elected = scheme._best(Line(tree.ancestry(parent)), parent.height - DELAY)
        assert elected is not None
        assert 0 <= elected < size
