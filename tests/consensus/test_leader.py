"""Leaders are a pure function of the view and the ancestry (P8)."""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import Committee, Tree

from parley.consensus.forest import Forest
from parley.consensus.leader import schemes
from parley.consensus.leader.cwa import DELAY, Cwa
from parley.consensus.leader.cwa_plus import PERIOD, CwaPlus
from parley.consensus.leader.line import REMEMBERED, Line, remember
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.leader.round_robin import RoundRobin
from parley.consensus.types import Block

HEADERS = [block.header for block in Committee().chain(1, 2, 4)]

Make = Callable[[int], LeaderScheme]
with_memory = pytest.mark.parametrize("make", [Cwa, CwaPlus])


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    size=st.integers(1, 200),
    views=st.lists(st.integers(0, 2**40), max_size=10),
    entered=st.sampled_from(EnteredBy),
)
def test_the_leader_does_not_depend_on_what_was_asked_before(
    size: int, views: list[int], entered: EnteredBy
) -> None:
    used, fresh = RoundRobin(size), RoundRobin(size)
    answers = [used.leader(view, entered, iter(HEADERS)) for view in views]
    assert answers == [fresh.leader(view, entered, iter(HEADERS)) for view in reversed(views)][::-1]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(size=st.integers(1, 200), view=st.integers(0, 2**40))
def test_round_robin_reads_neither_history_nor_certificate(size: int, view: int) -> None:
    scheme: LeaderScheme = RoundRobin(size)
    assert scheme.memory == 0
    assert scheme.leader(view, EnteredBy.QC, HEADERS) == scheme.leader(view, EnteredBy.TC, ())


@settings(derandomize=True, max_examples=50, deadline=None)
@given(size=st.integers(1, 200), start=st.integers(0, 2**40))
def test_in_any_n_consecutive_views_each_member_leads_once(size: int, start: int) -> None:
    scheme = RoundRobin(size)
    leaders = [scheme.leader(view, EnteredBy.QC, ()) for view in range(start, start + size)]
    assert sorted(leaders) == list(range(size))


def test_schemes_go_by_name() -> None:
    assert {name: type(schemes.make(name, 4)) for name in schemes.SCHEMES} == {
        "round-robin": RoundRobin,
        "cwa": Cwa,
        "cwa+": CwaPlus,
    }
    with pytest.raises(ValueError, match=r"no leader scheme 'raft'; choose from round-robin, cwa, cwa\+"):
        schemes.make("raft", 4)


# -- schemes with a memory ------------------------------------------------------------------------------------------------


def sprout(tree: Tree, chance: Random, parent: Block, step: int) -> Block:
    """Anybody proposes, any quorum votes for the parent."""
    return tree.block(
        parent,
        parent.view + step,
        proposer=chance.randrange(tree.size),
        signers=chance.sample(range(tree.size), chance.randint(tree.quorum, tree.size)),
        time=chance.getrandbits(40),
    )


def bush(tree: Tree, chance: Random, count: int) -> list[Block]:
    """Forks everywhere, and gaps."""
    blocks = [tree.genesis]
    for _ in range(count):
        blocks.append(sprout(tree, chance, chance.choice(blocks[-3:]), chance.choice([1, 1, 1, 2, 4])))
    return blocks


def trunk(tree: Tree, chance: Random, height: int) -> list[Block]:
    """One chain that commits most of the time, with gaps, and twigs that never commit."""
    blocks: list[Block] = []
    tip = tree.genesis
    for _ in range(height):
        twig = tip
        for _ in range(chance.choice([0, 0, 0, 1, 3])):
            twig = sprout(tree, chance, twig, 2)
            blocks.append(twig)
        tip = sprout(tree, chance, tip, chance.choice([1, 1, 1, 1, 2, 4]))
        blocks.append(tip)
    return blocks


@with_memory
@pytest.mark.parametrize(("size", "count"), [(2, 200), (4, 350)])
def test_r1_a_new_instance_for_each_question_answers_as_one_that_was_asked_all(
    make: Make, size: int, count: int
) -> None:
    """In any order, with forks, after more questions than are remembered."""
    chance, tree, used = Random(size), Tree(size), make(size)
    blocks = bush(tree, chance, count)
    for block in chance.choices(blocks, k=count):
        view = block.view + 1
        fresh = make(size).leader(view, EnteredBy.QC, tree.ancestry(block))
        assert used.leader(view, EnteredBy.QC, tree.ancestry(block)) == fresh


@with_memory
def test_r1_nor_does_it_matter_how_little_is_remembered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was forgotten is folded anew; and it ends, however the gaps lie."""
    tree, chance, asked = Tree(4), Random(5), make(4)
    blocks = bush(tree, chance, 350)
    answers = [asked.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block)) for block in blocks]
    monkeypatch.setattr("parley.consensus.leader.line.REMEMBERED", DELAY + 2)
    used = make(4)
    for number, block in chance.sample(list(enumerate(blocks)), 50):
        assert used.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block)) == answers[number]


def test_what_is_remembered_is_bounded() -> None:
    answers: dict[bytes, int] = {}
    for number in range(2 * REMEMBERED):
        assert remember(answers, number.to_bytes(4), number) == number
    assert list(answers.values()) == list(range(REMEMBERED, 2 * REMEMBERED))


@with_memory
@pytest.mark.parametrize("length", [0, 1, 20, 140])
def test_a_view_that_a_tc_opened_is_led_by_turns(make: Make, length: int) -> None:
    tree, scheme = Tree(4), make(4)
    parent = tree.chain(length)[-1] if length else tree.genesis
    leaders = [scheme.leader(view, EnteredBy.TC, tree.ancestry(parent)) for view in range(500, 508)]
    assert leaders == [0, 1, 2, 3] * 2


@with_memory
def test_without_a_reference_block_views_are_led_by_turns(make: Make) -> None:
    """Block 0 is none: nobody proposed it, nobody voted for it."""
    tree, scheme = Tree(4), make(4)
    parents = [tree.genesis, *tree.chain(DELAY)]
    leaders = [scheme.leader(parent.view + 1, EnteredBy.QC, tree.ancestry(parent)) for parent in parents]
    assert leaders == [(parent.view + 1) % 4 for parent in parents]
    assert scheme.leader(3, EnteredBy.QC, ()) == 3


@with_memory
def test_it_reads_no_certificate_above_the_parent_and_no_header_below_its_memory(make: Make) -> None:
    """The votes for the parent are cast before its QC exists: they must find the collector without it (P8)."""
    tree = Tree(4)
    parent = trunk(tree, Random(1), 300)[-1]
    scheme, forest = make(4), Forest(2, tree.lineage(parent), 10**6)
    before = scheme.leader(parent.view + 1, EnteredBy.QC, forest.ancestry(parent.id))
    for votes in [(0, 1, 2), (1, 2, 3)]:
        child = tree.block(parent, signers=votes)
        forest.add(child)
        assert scheme.leader(child.view, EnteredBy.QC, forest.ancestry(child.parent)) == before
    assert parent.height > scheme.memory
    enough = islice(tree.ancestry(parent), scheme.memory)
    assert make(4).leader(parent.view + 1, EnteredBy.QC, enough) == before


def test_an_ancestry_that_is_too_short_is_never_guessed_at() -> None:
    tree = Tree(4)
    parent = tree.chain(100)[-1]
    with pytest.raises(AssertionError, match="as long as `memory` says"):
        Cwa(4).leader(101, EnteredBy.QC, islice(tree.ancestry(parent), Cwa(4).memory - 1))


def test_a_line_reads_no_further_than_asked() -> None:
    tree = Tree(4)
    rest = tree.ancestry(tree.chain(10)[-1])
    line = Line(rest)
    assert (line.height, line.header(8).height, line.id(7)) == (10, 8, line.header(8).parent)
    assert line.proposers(10, 2) == [10 % 4, 9 % 4]
    assert next(rest).height == 7


def test_nobody_proposed_block_0() -> None:
    tree = Tree(4)
    assert Line(tree.ancestry(tree.chain(3)[-1])).proposers(2, 5) == [2, 1]


def answers(make: Make, size: int, forest: Forest, blocks: list[Block]) -> Iterator[int]:
    """Of a replica that starts now; only for blocks that it knows."""
    scheme = make(size)
    for block in blocks:
        if forest.get(block.id) is not None:
            yield scheme.leader(block.view + 1, EnteredBy.QC, forest.ancestry(block.id))


def grow(forest: Forest, blocks: list[Block], *, certify: bool) -> None:
    for block in blocks:
        if forest.get(block.parent) is not None:
            if certify:
                forest.certify(block.parent)
            if forest.get(block.parent) is not None:
                forest.add(block)


@with_memory
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("size", [2, 4])
def test_r3_replicas_agree_whatever_they_have_committed(make: Make, size: int, seed: int) -> None:
    """One has committed all it could, one nothing, one restarted, one joined with a snapshot's headers."""
    tree, chance = Tree(size), Random(seed)
    memory = make(size).memory
    blocks = trunk(tree, chance, 3 * PERIOD * size // 2)
    ahead = Forest(2, [tree.genesis], memory)
    grow(ahead, blocks, certify=True)
    tips = [block for block in blocks if ahead.get(block.id) is not None]
    committed = tree.lineage(ahead.root)
    assert len(committed) > memory

    behind = Forest(2, [tree.genesis], memory)
    grow(behind, blocks, certify=False)
    lowest = Forest.needed_history(ahead.root.header, 2, memory)
    restarted = Forest(2, committed[lowest:], memory)
    joined = Forest(2, committed[-memory:], memory)
    expected = list(answers(make, size, ahead, tips))
    for forest in (restarted, joined):
        grow(forest, tips, certify=False)
    for forest in (behind, restarted, joined):
        assert list(answers(make, size, forest, tips)) == expected
    assert len(expected) >= 3
