"""Where a subscriber stands: receipts that come late lower no position."""

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


def test_a_partition_that_is_added_while_its_order_lives_has_the_order_from_the_start() -> None:
    state = ReadingState()
    state.begin((OLD,), {})
    state.adopt((OLD, PartitionStart(1, OLD.incarnation, 3, 10)))
    assert state.places[1] == Place(1, OLD.incarnation, 0, 0)
    assert not state.bridges


def test_a_partition_that_was_added_before_its_order_began_is_read_by_offset() -> None:
    state = ReadingState()
    state.begin((OLD,), {})
    state.adopt((NEW, replace(NEW, partition=1)))
    assert (1, 0, 17) in [(bridge.partition, bridge.offset, bridge.stop) for bridge in state.bridges]


def test_a_position_in_a_partition_that_the_topic_does_not_have_is_refused() -> None:
    with pytest.raises(Invalid, match="ahead of partition 1"):
        ReadingState().resume([PartitionPosition(0, 1), PartitionPosition(1, 0)], (OLD,))
