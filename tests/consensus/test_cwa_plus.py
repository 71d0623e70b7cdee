"""CWA+: exact records, and the bounds that the protections are for (R5-R9)."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.consensus.chains import CHAIN, Tree

from parley.consensus.committee import faults, quorum
from parley.consensus.leader.cwa import DELAY
from parley.consensus.leader.cwa_plus import ACTIVE, FAILED, INACTIVE, PERIOD, SILENCE, CwaPlus, Record
from parley.consensus.leader.line import Line
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.types import Block, Header
from parley.crypto.encoding import u64
from parley.crypto.hashing import digest


def signers(header: Header) -> list[int]:
    bits = int.from_bytes(header.justify.votes.bitmap, "little")
    return [member for member in range(bits.bit_length()) if bits >> member & 1]


class Reference:
    """Slow and obvious: everything from the start of the period, by recursion, over one chain without forks."""

    def __init__(self, chain: list[Header], size: int) -> None:
        self.chain = chain  # by height
        self.size = size
        self.failures = cache(self._failures)  # of the charges below: without it the recursion takes for ever

    def leader(self, parent: int) -> int:
        """Of the view after the parent's, entered by its QC."""
        view = self.chain[parent].view + 1
        if parent <= 5:
            return view % self.size
        excluded = [self.chain[h].proposer for h in range(1, parent + 1)][::-1][: (self.size - 1) // 3]
        tickets = [
            member
            for member in range(self.size)
            if member not in excluded
            for _ in range(self.weight(parent - 5, member))
        ]
        seed = digest("leader/cwa+", CHAIN, u64(0), u64(view))
        return tickets[int.from_bytes(seed, "big") % len(tickets)]

    def weight(self, reference: int, member: int) -> int:
        blocks = self.period_up_to(reference)
        proposals = len([h for h in blocks if self.chain[h].proposer == member])
        failures = sum(self.failures(h).count(member) for h in blocks)
        seen = [h for h in blocks if member in (self.chain[h].proposer, *signers(self.chain[h]))]
        if failures * 3 > proposals + failures:
            return 1
        return 100 if max([blocks[0], *seen]) < reference - 4 * self.size else 1000

    def _failures(self, height: int) -> list[int]:
        """Whom the views skipped below the block are held against."""
        block, parent = self.chain[height], self.chain[height - 1]
        failed = [view % self.size for view in range(parent.view + 2, block.view)]
        decided_here = height - 1 <= 5 or height - 1 - 5 in self.period_up_to(height)
        if block.view > parent.view + 1 and decided_here:
            failed.append(self.leader(height - 1))
        return failed

    def period_up_to(self, height: int) -> range:
        starts = range(1, height + 1, 64 * self.size)
        return range(starts[-1], height + 1)


def wander(tree: Tree, chance: Random, length: int, *, gaps: float) -> list[Block]:
    """A chain whose proposers, voters and skipped views are left to chance; from block 0."""
    blocks = [tree.genesis]
    for _ in range(length):
        skipped = chance.choice([1, 1, 2, 3 * tree.size]) if chance.random() < gaps else 0
        voters = chance.sample(range(tree.size), chance.randint(tree.quorum, tree.size))
        blocks.append(
            tree.block(
                blocks[-1],
                blocks[-1].view + 1 + skipped,
                proposer=chance.randrange(tree.size),
                signers=voters,
            )
        )
    return blocks


@settings(derandomize=True, max_examples=12, deadline=None)
@given(st.sampled_from([1, 2, 3, 4, 5]), st.integers(0, 2**32), st.sampled_from([0.02, 0.3]))
def test_it_elects_as_the_reference_does(size: int, seed: int, gaps: float) -> None:
    tree, chance = Tree(size), Random(seed)
    period = PERIOD * size
    blocks = wander(tree, chance, 2 * period + 40, gaps=gaps)
    reference, scheme = Reference([block.header for block in blocks], size), CwaPlus(size)
    heights = {*range(12), *range(period - 10, period + 30), *chance.sample(range(len(blocks)), 40)}
    for height in sorted(heights):
        block = blocks[height]
        elected = scheme.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block))
        assert elected == reference.leader(height), height


@pytest.mark.parametrize("size", [4, 31])
def test_it_reads_as_much_as_it_says(size: int) -> None:
    """With ten faults the newest proposers reach below the period in which a failure is charged."""
    tree, scheme = Tree(size), CwaPlus(size)
    end = 2 * PERIOD * size + DELAY
    blocks = wander(tree, Random(size), PERIOD * size, gaps=0.0)
    while blocks[-1].height < end:
        gap = blocks[-1].height == PERIOD * size + DELAY + 1
        blocks.append(tree.block(blocks[-1], blocks[-1].view + 1 + gap, proposer=blocks[-1].view % size))
    most = 0
    for block in blocks[-3:]:
        read = list(islice(tree.ancestry(block), scheme.memory))
        counted = Counting(tree.ancestry(block))
        fresh = CwaPlus(size)
        assert fresh.leader(7, EnteredBy.QC, counted) == CwaPlus(size).leader(7, EnteredBy.QC, read)
        most = max(most, counted.count)
    assert most == scheme.memory


class Counting:
    def __init__(self, headers: Iterable[Header]) -> None:
        self._headers = iter(headers)
        self.count = 0

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> Header:
        header = next(self._headers)
        self.count += 1
        return header


# -- records --------------------------------------------------------------------------------------------------------------


def record_at(tree: Tree, block: Block) -> Record:
    """The record up to `block`."""
    tip = tree.block(block)
    return CwaPlus(tree.size)._record(Line(tree.ancestry(tip)), block.height)


def test_a_record_counts_proposals_and_what_was_seen_of_a_member() -> None:
    tree = Tree(4)
    b1 = tree.block(proposer=0)
    b2 = tree.block(b1, proposer=0, signers=(0, 1, 2))
    b3 = tree.block(b2, proposer=1, signers=(0, 2, 3))
    assert record_at(tree, b3) == Record(3, (2, 1, 0, 0), (0, 0, 0, 0), (3, 3, 3, 3))
    assert record_at(tree, b2) == Record(2, (2, 0, 0, 0), (0, 0, 0, 0), (2, 2, 2, 1))


@pytest.mark.parametrize("height", [DELAY + 1, 21])
def test_skipped_views_are_held_against_the_leader_by_qc_and_then_round_robin(height: int) -> None:
    size = 7
    tree, scheme = Tree(size), CwaPlus(size)
    parent = tree.chain(height)[-1]
    first = scheme.leader(height + 1, EnteredBy.QC, tree.ancestry(parent))
    assert first != (height + 1) % size
    failed = Counter([first, (height + 2) % size, (height + 3) % size])
    block = tree.block(parent, height + 4)
    assert record_at(tree, block).failures == tuple(failed[member] for member in range(size))


def test_a_failure_near_the_start_of_the_chain_was_round_robins() -> None:
    tree = Tree(4)
    parent = tree.chain(DELAY)[-1]
    assert record_at(tree, tree.block(parent, parent.view + 2)).failures == (0, 0, 1, 0)


def test_a_failure_whose_leader_only_the_period_before_knows_is_not_charged() -> None:
    tree = Tree(4)
    chain = tree.chain(PERIOD * 4 + 20)
    first = PERIOD * 4 + 1
    charged = [
        sum(record_at(tree, tree.block(chain[height - 2], height + 1)).failures)
        for height in range(first, first + 10)
    ]
    assert charged == [0] * (DELAY + 1) + [1] * (10 - DELAY - 1)


def test_but_views_after_the_first_are_charged_everywhere() -> None:
    tree = Tree(4)
    parent = tree.chain(PERIOD * 4)[-1]
    record = record_at(tree, tree.block(parent, parent.view + 3))
    assert record.failures == tuple(int((parent.view + 2) % 4 == member) for member in range(4))


def test_a_gap_of_millions_of_views_is_charged_at_once() -> None:
    tree = Tree(4)
    record = record_at(tree, tree.block(tree.genesis, 4 * 10**15))
    assert record.failures == (10**15 - 1, 10**15, 10**15, 10**15)


def test_a_period_starts_without_guilt() -> None:
    tree = Tree(4)
    before = tree.block(tree.chain(PERIOD * 4 - 1)[-1], 1000)
    assert sum(record_at(tree, before).failures) > 0
    assert record_at(tree, tree.block(before)).failures == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("proposals", "failures", "silent_for", "weight"),
    [
        (0, 0, 0, ACTIVE),
        (2, 1, 0, ACTIVE),
        (1, 1, 0, FAILED),
        (0, 1, 0, FAILED),
        (0, 0, SILENCE, ACTIVE),
        (0, 0, SILENCE + 1, INACTIVE),
        (0, 1, SILENCE + 1, FAILED),
        (20, 10, SILENCE + 1, INACTIVE),
    ],
)
def test_tiers(proposals: int, failures: int, silent_for: int, weight: int) -> None:
    assert Record(100, (proposals,), (failures,), (100 - silent_for,)).weights == (weight,)


# -- R5 -------------------------------------------------------------------------------------------------------------------


def test_r5_somebody_is_electable_at_every_size() -> None:
    for size in range(1, 101):
        tree, scheme = Tree(size), CwaPlus(size)
        block = tree.chain(DELAY)[-1]
        for height in range(DELAY + 1, DELAY + 12):
            block = tree.block(block, block.view + 1 + (height % 3 == 0))
            assert 0 <= scheme.leader(block.view + 1, EnteredBy.QC, tree.ancestry(block)) < size
        for record in scheme._records.values():
            assert set(record.weights) <= {ACTIVE, INACTIVE, FAILED}
            assert min(record.failures) >= 0
            assert sum(record.proposals) == record.height


# -- what the protections are for -----------------------------------------------------------------------------------------


class Network:
    """Views over a growing chain. Dead members neither propose nor vote; `collect` says whose votes enter a QC."""

    def __init__(
        self,
        scheme: LeaderScheme,
        size: int,
        *,
        dead: Iterable[int] = (),
        collect: Callable[[int], list[int]] | None = None,
    ) -> None:
        self.tree = Tree(size)
        self.scheme = scheme
        self.dead = set(dead)
        self.alive = [member for member in range(size) if member not in self.dead]
        self.collect = collect or (lambda _leader: self.alive[: quorum(size)])
        self.tip = self.tree.genesis
        self.led: Counter[int] = Counter()  # views by leader, failed ones too

    def run(self, blocks: int) -> "Network":
        for _ in range(blocks):
            self.step()
        return self

    def step(self) -> None:
        """One block, and the views that fail before it."""
        view, entered_by = self.tip.view + 1, EnteredBy.QC
        while (leader := self._leader(view, entered_by)) in self.dead:
            view, entered_by = view + 1, EnteredBy.TC
        self.tip = self.tree.block(self.tip, view, proposer=leader, signers=self.collect(leader))

    def _leader(self, view: int, entered_by: EnteredBy) -> int:
        leader = self.scheme.leader(view, entered_by, self.tree.ancestry(self.tip))
        self.led[leader] += 1
        return leader

    def share(self, members: Iterable[int]) -> float:
        return sum(self.led[member] for member in members) / self.led.total()


@pytest.mark.parametrize("size", [10, 32])
def test_r7_leaving_out_votes_gains_next_to_nothing(size: int) -> None:
    """Liars vote first and so are in every QC; the QCs that they collect leave out as many of the others as they may."""
    chance = Random(size)
    liars, honest = range(faults(size)), range(faults(size), size)

    def collect(leader: int) -> list[int]:
        room = quorum(size) - len(liars)
        return [*liars, *(honest[:room] if leader in liars else chance.sample(honest, room))]

    network = Network(CwaPlus(size), size, collect=collect).run(2000)
    assert network.share(liars) <= len(liars) / size + 0.03
    victims = honest[quorum(size) - len(liars) :]
    assert network.share(victims) >= len(victims) / size - 0.03


@pytest.mark.parametrize("size", [4, 7, 10])
def test_r6_a_slow_member_whose_votes_never_count_still_leads_in_every_period(size: int) -> None:
    slow = size - 1
    network = Network(CwaPlus(size), size, collect=lambda _leader: list(range(quorum(size))))
    for _ in range(3):
        before = network.led[slow]
        network.run(PERIOD * size)
        assert network.led[slow] - before >= PERIOD // 4


@pytest.mark.parametrize("size", [4, 10, 32])
def test_r9_dead_leaders_cost_few_views_and_are_tried_again(size: int) -> None:
    """Round-robin loses up to a third of its views to them."""
    dead = range(faults(size))
    network = Network(CwaPlus(size), size, dead=dead)
    for _ in range(4):
        before = network.led.copy()
        network.run(PERIOD * size)
        assert all(network.led[member] > before[member] for member in dead)
    assert network.share(dead) <= 0.05


def test_r8_what_a_block_contains_decides_no_draw() -> None:
    """A proposer may try as many blocks as it likes: who proposed, who voted and which views failed is all that counts."""
    honest, ground = Tree(7), Tree(7)
    first = wander(honest, Random(3), 200, gaps=0.1)
    second = [ground.genesis]
    for block in first[1:]:
        header = block.header
        second.append(
            ground.block(
                second[-1],
                header.view,
                proposer=header.proposer,
                signers=signers(header),
                time=header.time + 10**6,
            )
        )
    schemes = CwaPlus(7), CwaPlus(7)
    for one, other in zip(first, second, strict=True):
        leaders = {
            scheme.leader(one.view + 1, EnteredBy.QC, tree.ancestry(block))
            for scheme, tree, block in zip(schemes, (honest, ground), (one, other), strict=True)
        }
        assert len(leaders) == 1
    assert first[-1].header.history_root != second[-1].header.history_root


def test_nobody_leads_again_within_f_blocks() -> None:
    network = Network(CwaPlus(10), 10).run(DELAY + 1)
    proposers: list[int] = []
    for _ in range(300):
        network.step()
        assert network.tip.header.proposer not in proposers[-3:]
        proposers.append(network.tip.header.proposer)
