"""A broker is up while it answers and is heard, down once it was silent for three seconds, and never because we slept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from parley.node.contact import MAX_PINGS, SILENCE_MS, Contact, Trouble
from parley.node.contacts import BURST_OF_LINES, LOOK_MS, Contacts

NAMES = {1: "beta-1", 2: "gamma-1", 3: "delta-1"}
SECOND, MINUTE = 1_000, 60_000


class World:
    """Other brokers that do what a test says, and the broker that watches them."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.contacts = Contacts(NAMES, structlog.get_logger(), lambda: self.now)
        self.changes: list[tuple[int, bool]] = []
        self.contacts.start(lambda index, up: self.changes.append((index, up)))
        self.silent: set[int] = set()  # neither answers nor speaks
        self.mute: set[int] = set()  # answers and does not speak
        self.round_trips = dict.fromkeys(NAMES, 1)

    def connect(self, *indexes: int) -> None:
        for index in indexes:
            self.contacts[index].opened()
            self._speak(index)

    def lose(self, index: int, problem: str = "Connection refused") -> None:
        self.contacts[index].closed(problem)
        self.contacts[index].left()

    def live(self, milliseconds: int) -> None:
        """As time goes by: everybody who is connected answers, once a second."""
        for passed in range(LOOK_MS, milliseconds + 1, LOOK_MS):
            self.now += LOOK_MS
            if passed % SECOND == 0:
                for index in NAMES:
                    if index not in self.silent and self.contacts[index].trouble() is not Trouble.UNREACHABLE:
                        self._speak(index)
            self.contacts.look()

    def _speak(self, index: int) -> None:
        contact = self.contacts[index]
        if index not in self.mute:
            contact.heard()
        number = contact.ping()
        self.now += self.round_trips[index]
        contact.answered(number)
        self.now -= self.round_trips[index]


@contextmanager
def logged() -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    with capture_logs() as lines:
        yield lambda: [(line["event"], line["peer"].partition(".")[0], line.get("why")) for line in lines]


def test_a_broker_is_up_only_if_it_answers_and_is_heard() -> None:
    now = 1_000
    contact = Contact(lambda: now, lambda _: None)
    assert contact.trouble() is Trouble.UNREACHABLE
    contact.opened()
    assert contact.trouble() is Trouble.NO_ANSWER
    contact.answered(contact.ping())
    assert contact.trouble() is Trouble.UNHEARD
    assert not contact.up
    contact.heard()
    assert (contact.trouble(), contact.up) == (None, True)


def test_answers_to_pings_that_were_never_sent_count_for_nothing() -> None:
    contact = Contact(lambda: 1_000, lambda _: None)
    contact.opened()
    contact.heard()
    for number in (0, contact.ping() + 1, 2**32 - 1):
        assert contact.answered(number) is None
    assert not contact.up


def test_an_answer_counts_once_and_for_all_pings_before_it() -> None:
    contact = Contact(lambda: 1_000, lambda _: None)
    contact.opened()
    numbers = [contact.ping() for _ in range(3 * MAX_PINGS)]
    assert contact.answered(numbers[-1]) == 0
    assert [contact.answered(number) for number in numbers] == [None] * len(numbers)
    assert not contact._pings


def test_who_stops_is_down_after_three_seconds_and_named_once() -> None:
    world = World()
    world.connect(1, 2, 3)
    world.live(10 * SECOND)
    with logged() as lines:
        world.silent = {3}
        world.live(SILENCE_MS - LOOK_MS)
        assert (world.contacts.up(3), lines()) == (True, [])
        world.live(2 * LOOK_MS)
        assert (world.contacts.up(3), lines()) == (False, [("peer_down", "delta-1", "does not answer")])
        world.live(MINUTE)
        world.silent = set()
        world.live(2 * SECOND)
        assert lines()[1:] == [("peer_up", "delta-1", None)]
    assert world.changes == [(1, True), (2, True), (3, True), (3, False), (3, True)]


def test_a_broken_connection_is_known_at_once_and_said_if_it_does_not_come_back() -> None:
    world = World()
    world.connect(1, 2, 3)
    with logged() as lines:
        world.lose(2)
        assert world.changes[-1] == (2, False)
        world.live(SILENCE_MS - LOOK_MS)
        assert lines() == []
        world.live(LOOK_MS)
        assert lines() == [("peer_down", "gamma-1", "cannot be reached")]


def test_who_is_never_reached_is_named_three_seconds_after_the_start() -> None:
    world = World()
    world.connect(1, 2)
    with logged() as lines:
        world.live(MINUTE)
        assert lines() == [("peer_down", "delta-1", "cannot be reached")]


def test_who_answers_but_is_not_heard_is_down() -> None:
    world = World()
    world.connect(1, 2, 3)
    world.live(SECOND)
    world.mute = {1}
    with logged() as lines:
        world.live(4 * SECOND)
        assert lines() == [("peer_down", "beta-1", "not heard from")]
    assert world.changes[-1] == (1, False)


def test_who_sends_garbage_is_down_as_long_as_it_is_cut_off() -> None:
    world = World()
    world.connect(1, 2, 3)
    with logged() as lines:
        world.contacts[1].banned(30 * SECOND)
        assert world.changes[-1] == (1, False)
        world.live(29 * SECOND)
        assert lines() == [("peer_down", "beta-1", "sends garbage")]
        world.live(2 * SECOND)
        assert world.changes[-1] == (1, True)


@pytest.mark.parametrize("asleep", [5 * SECOND, 100 * SECOND])
def test_a_broker_that_stood_still_itself_accuses_nobody(asleep: int) -> None:
    world = World()
    world.connect(1, 2, 3)
    world.live(10 * SECOND)
    with logged() as lines:
        world.now += asleep
        world.contacts.look()
        world.live(10 * SECOND)
        assert lines() == []
    assert world.changes == [(1, True), (2, True), (3, True)]
    assert world.contacts.round_trip_ms(1) == 1


def test_an_answer_that_waited_while_we_stood_still_is_not_measured() -> None:
    world = World()
    world.connect(1, 2, 3)
    number = world.contacts[1].ping()
    world.now += 100 * SECOND
    world.contacts.look()
    assert world.contacts[1].answered(number) is None
    assert world.contacts.round_trip_ms(1) == 1


def test_a_new_incident_is_not_hidden_by_an_old_one() -> None:
    world = World()
    world.connect(1, 2, 3)
    with logged() as lines:
        for _ in range(3):
            world.lose(1)
            world.live(5 * SECOND)
            world.connect(1)
            world.live(5 * SECOND)
        assert lines() == 3 * [("peer_down", "beta-1", "cannot be reached"), ("peer_up", "beta-1", None)]


def test_who_comes_and_goes_all_the_time_does_not_fill_the_log_and_is_named_after_a_quiet_minute() -> None:
    world = World()
    world.connect(1, 2, 3)
    with logged() as lines:
        for _ in range(20 * BURST_OF_LINES):
            world.lose(1)
            world.live(4 * SECOND)
            world.connect(1)
        spent = 20 * BURST_OF_LINES * 4 * SECOND // MINUTE
        assert [event for event, *_ in lines()].count("peer_down") <= BURST_OF_LINES + spent + 1
        before = len(lines())
        world.live(MINUTE)
        world.lose(1)
        world.live(4 * SECOND)
        assert lines()[before:] == [("peer_down", "beta-1", "cannot be reached")]


def test_a_slow_broker_is_named_within_ten_seconds_and_until_it_is_fast_again() -> None:
    world = World()
    world.connect(1, 2, 3)
    world.live(10 * SECOND)
    with logged() as lines:
        world.round_trips[2] = 300
        world.live(10 * SECOND)
        assert world.contacts.round_trip_ms(2) == 300
        assert [world.contacts.is_slow(index) for index in NAMES] == [False, True, False]
        world.round_trips[2] = 220  # not slow enough to be called so, and not fast enough to take it back
        world.live(10 * SECOND)
        assert world.contacts.is_slow(2)
        world.round_trips[2] = 20
        world.live(10 * SECOND)
        assert not world.contacts.is_slow(2)
        assert [event for event, *_ in lines()] == ["peer_slow", "peer_fast"]


def test_where_everybody_is_far_away_nobody_is_slow() -> None:
    world = World()
    world.round_trips = {1: 300, 2: 400, 3: 600}
    world.connect(1, 2, 3)
    world.live(10 * SECOND)
    assert not any(map(world.contacts.is_slow, NAMES))


def test_the_only_other_broker_is_not_slow() -> None:
    world = World()
    world.round_trips[1] = 900
    world.connect(1)
    world.live(10 * SECOND)
    assert not world.contacts.is_slow(1)


def test_one_late_answer_makes_nobody_slow() -> None:
    world = World()
    world.connect(1, 2, 3)
    world.live(10 * SECOND)
    world.round_trips[2] = 900
    world.live(SECOND)
    world.round_trips[2] = 1
    world.live(SECOND)
    assert world.contacts.round_trip_ms(2) == 1


def test_who_is_down_has_no_round_trip_and_is_not_slow() -> None:
    world = World()
    world.connect(1, 2, 3)
    world.round_trips[2] = 900
    world.live(10 * SECOND)
    assert world.contacts.is_slow(2)
    world.lose(2)
    assert (world.contacts.round_trip_ms(2), world.contacts.is_slow(2)) == (None, False)


def test_a_broker_is_no_contact_of_its_own() -> None:
    world = World()
    assert (world.contacts.up(0), world.contacts.round_trip_ms(0), world.contacts.is_slow(0)) == (
        False,
        None,
        False,
    )
