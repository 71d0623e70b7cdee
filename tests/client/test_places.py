"""Where a subscriber stands: receipts that come late, and topics that were made again, lower no position."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from parley.client.errors import Invalid
from parley.client.position import PartitionPosition
from parley.client.reading import ReadingState
from parley.client.verification import Place
from parley.modules.subscriptions.receipts import PartitionStart

OLD = PartitionStart(0, (3, 1), 4, 10)
NEW = PartitionStart(0, (9, 0), 0, 17)
HERE = Place(0, NEW.incarnation, 5, 22)


def reading(*places: Place) -> ReadingState:
    return ReadingState({place.partition: place for place in places})


def test_an_order_that_has_ended_is_no_news_and_is_not_gone_back_to() -> None:
    state = reading(HERE)
    assert not state.changes((OLD,))
    state.adopt((OLD,))
    assert state.places == {0: HERE}
    assert not state.bridges


def test_a_later_order_is_news_and_what_lies_before_it_is_read_by_offset() -> None:
    state = reading(Place(0, OLD.incarnation, 6, 12))
    assert state.changes((NEW,))
    state.adopt((NEW,))
    assert state.places[0].next_offset == NEW.next_offset
    assert [(bridge.offset, bridge.stop) for bridge in state.bridges] == [(12, 17)]


@pytest.mark.parametrize(
    "older",
    [
        (19, (NEW,)),  # an earlier block,
        (20, (OLD,)),  # or the same one, before the subscription was begun again there,
        (20, (replace(NEW, next_ps=0, next_offset=17),)),  # or before a publication.
    ],
)
def test_the_newest_receipt_counts_in_whatever_order_they_come(
    older: tuple[int, tuple[PartitionStart, ...]],
) -> None:
    newer = (replace(NEW, next_ps=1, next_offset=18),)
    state = ReadingState()
    assert state.newest(20, newer) == newer
    assert state.newest(*older) == newer
    state = ReadingState()
    assert state.newest(*older) == older[1]
    assert state.newest(20, newer) == newer


def test_a_position_in_an_order_that_has_not_begun_is_refused() -> None:
    saved = PartitionPosition(0, 10, NEW.incarnation, 0)
    with pytest.raises(Invalid, match="ahead of partition 0"):
        ReadingState().resume([saved], (OLD,))


def test_of_a_partition_that_is_gone_what_was_not_read_is_known_until_it_is_there_again() -> None:
    """The topic was made again with one partition, while history of the other one was read, and has two again later."""
    other = replace(NEW, partition=1)
    state = ReadingState()
    state.begin((OLD, replace(OLD, partition=1)), {1: 6}, {})
    state.adopt((NEW,))
    assert state.removed == {1: 6}
    assert [(bridge.partition, bridge.offset) for bridge in state.bridges] == [(0, OLD.next_offset)]
    assert PartitionPosition(1, 6) in state.positions()
    later = tuple(replace(start, incarnation=(12, 0)) for start in (NEW, other))
    state.adopt(later)
    assert state.removed == {}
    assert (1, 6, 17) in [(bridge.partition, bridge.offset, bridge.stop) for bridge in state.bridges]


def test_what_was_told_as_lost_is_not_read_when_the_partition_is_there_again() -> None:
    """The topic was made again with one partition, and again with two: nothing of the second comes twice, or after all."""
    state = ReadingState()
    state.begin((OLD, replace(OLD, partition=1)), {}, {})
    state.adopt((NEW,))
    assert state.settle({1: 13}) == {1: (OLD.next_offset, 13)}
    assert not state.unsettled
    assert state.settle({1: 13}) == {}
    assert PartitionPosition(1, 13) in state.positions()
    resumed = ReadingState()
    resumed.resume(state.positions(), (NEW,))
    for one in (state, resumed):
        one.adopt(tuple(replace(NEW, partition=partition, incarnation=(12, 0)) for partition in (0, 1)))
        assert [bridge.offset for bridge in one.bridges if bridge.partition == 1] == [13]
        assert one.removed == {}


def test_a_partition_that_is_added_while_its_order_lives_is_not_told_as_lost() -> None:
    state = ReadingState()
    state.begin((OLD, replace(OLD, partition=1)), {}, {})
    state.adopt((NEW,))
    assert state.settle({}) == {}
    state.adopt((NEW, PartitionStart(1, NEW.incarnation, 0, 10)))
    assert state.removed == {}
    assert state.places[1].next_offset == OLD.next_offset


def test_what_is_told_as_lost_lowers_no_position() -> None:
    state = ReadingState()
    state.begin((OLD, replace(OLD, partition=1)), {}, {})
    state.adopt((NEW,))
    assert state.settle({1: OLD.next_offset - 1}) == {}
    assert state.removed == {1: OLD.next_offset}


def test_a_loss_is_told_for_each_time_that_a_partition_is_removed() -> None:
    """Also of a partition that came and went between two renewals, and not of one that was gone before."""
    state = ReadingState()
    state.begin((OLD,), {}, {1: 4})
    state.adopt((NEW,))
    assert state.settle({1: 4, 2: 1}) == {2: (0, 1)}
    state.adopt((replace(NEW, incarnation=(12, 0)),))
    assert state.unsettled
    assert state.settle({1: 6, 2: 1}) == {1: (4, 6)}
