"""How long blocks take is counted for those who watch, in bounded memory and in the bucket where it belongs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.consensus.chains import Committee
from tests.replica.driver import Cluster, batches, done, submitted

from parley.consensus.types import Block
from parley.replica.commit_times import BOUNDS, MAX_SEEN, CommitTimes, Durations

COMMITTEE = Committee()


def block(view: int) -> Block:
    """One with a batch."""
    return COMMITTEE.block(view=view, batches=(bytes(32),))


@given(st.lists(st.integers(0, 200_000)))
def test_each_duration_is_counted_once_up_to_the_first_bound_that_it_does_not_exceed(
    found: list[int],
) -> None:
    durations = Durations()
    for ms in found:
        durations.add(ms)
    edges = (-1, *BOUNDS, 200_000)
    expected = [sum(low < ms <= high for ms in found) for low, high in pairwise(edges)]
    assert durations.counts == expected
    assert durations.total == sum(found)


def test_a_block_counts_from_its_proposal_to_its_commit_unless_it_is_abandoned_or_was_fetched() -> None:
    kept, left, fetched = map(block, (1, 2, 3))
    times = CommitTimes()
    times.proposed(kept, 100)
    times.proposed(left, 110)
    times.proposed(kept, 120)  # sent again
    times.abandoned([left.id, fetched.id])
    times.committed([kept, left, fetched], 130)
    assert (sum(times.took.counts), times.took.total) == (1, 30)


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    times, kept = CommitTimes(), block(1)
    times.proposed(kept, 100)
    times.committed([kept], 90)
    assert (times.took.counts[0], times.took.total) == (1, 0)


def test_an_empty_block_does_not_count() -> None:
    times, empty = CommitTimes(), COMMITTEE.block(view=1)
    times.proposed(empty, 100)
    times.committed([empty], 1_100)
    assert sum(times.took.counts) == 0


def test_proposals_that_come_to_nothing_are_forgotten_oldest_first() -> None:
    times = CommitTimes()
    blocks = list(map(block, range(1, MAX_SEEN + 2)))
    for one in blocks:
        times.proposed(one, 0)
    times.committed(blocks[:1], 10)
    assert sum(times.took.counts) == 0
    times.committed(blocks, 10)
    assert sum(times.took.counts) == MAX_SEEN


def test_a_replica_tells_how_long_commits_take_how_many_views_failed_what_waits_and_how_far_it_is_behind() -> (
    None
):
    cluster = Cluster().start()
    names = submitted(cluster)
    first = cluster.members[0].replica
    assert first.waiting == (6, 6 * len(batches(0, 1)[0]))
    cluster.run_until(lambda: done(cluster, names))
    cluster.run(50)
    assert first.waiting == (0, 0)
    assert first.waiting_since is None
    assert sum(first.commits.took.counts) > 0
    assert first.behind <= 1

    cluster.absent = {3}
    last = cluster.members[3].replica
    cluster.run_until(lambda: first.executed_height >= last.executed_height + 20)
    assert first.given_up > 0  # whenever the absent one leads
    assert last.behind <= 1  # it does not know better
    commits = sum(last.commits.took.counts)

    worst = 0

    def caught_up() -> bool:
        nonlocal worst
        worst = max(worst, last.behind)
        return last.executed_height >= first.executed_height

    cluster.absent = set()
    cluster.run_until(caught_up)
    assert worst >= 20
    assert sum(last.commits.took.counts) < commits + 20  # what it fetched was not proposed to it
