"""Gaps and failed views are computed rightly, and brokers that fail come back. No test looks at how long it takes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.bench.errors import Unavailable
from parley.bench.failover import network as failing
from parley.bench.failover.gaps import (
    LEADER,
    OTHER,
    Fault,
    Round,
    Victim,
    choose,
    gap_on_return,
    longest_gap,
    summaries,
)
from parley.bench.failover.network import FailingNetwork, not_back
from parley.bench.failover.pace import steadily
from parley.bench.failover.plan import Plan, cases
from parley.bench.failover.rounds import Stage, Times, judge, leader
from parley.bench.measure import TOPIC
from parley.bench.peers.servers import Servers
from parley.bench.watch import view_changes
from parley.net.messages import PeerStatus, Status

SECONDS = 120.0  # longer than anything takes
NAMES = ["a", "b", "c", "d"]


def status(
    name: str,
    *,
    state: str = "ready",
    certified: int = 9,
    leads: str = "a",
    failed: tuple[int, ...] = (),
    lost: str = "",
) -> Status:
    return Status(
        0,
        broker=name,
        organisation=name,
        index=0,
        version="1",
        state=state,
        note="",
        shard=0,
        epoch=0,
        view=1,
        height=certified,
        certified=certified,
        leader=leads,
        time=0,
        clients=0,
        peers=tuple(PeerStatus(other, other != lost) for other in NAMES if other != name),
        misbehaviour=(),
        damage=(),
        failed_views=failed,
    )


# -- gaps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1.0, 2.0, 3.5, 4.0, 9.0], 1.5),  # what lies outside does not count
        ([0.0, 3.0, 4.0], 3.0),  # it began before the window, and counts from there
        ([1.0, 2.0, 3.0, 7.5], 4.5),  # it went on behind the window, and counts to its end
        ([1.0, 2.0], 6.0),  # it has not ended yet
        ([3.0, 5.0], 2.0),  # when it began is not known
        ([], 7.0),
    ],
)
def test_a_gap_counts_in_full_if_a_part_of_it_lies_in_the_window(times: list[float], gap: float) -> None:
    assert longest_gap(times, 1.0, 4.0, until=8.0) == pytest.approx(gap)


@given(st.lists(st.floats(0, 100), max_size=20).map(sorted), st.floats(0, 50), st.floats(1, 50))
def test_one_more_receipt_never_makes_a_gap_longer(times: list[float], begin: float, length: float) -> None:
    end = begin + length
    more = sorted([*times, begin + length / 2])
    assert longest_gap(more, begin, end, end) <= longest_gap(times, begin, end, end)


def test_what_a_fault_left_behind_is_not_charged_to_the_return() -> None:
    assert gap_on_return([1.0, 8.0, 8.5, 10.0], 5.0, 9.0) == 1.5
    assert gap_on_return([1.0, 2.0], 5.0, 9.0) == 0.0


def test_the_worst_client_of_the_other_brokers_decides_a_round() -> None:
    receipts = {"a": [0.0, 1.0, 9.0, 9.5], "b": [0.0, 3.0, 5.0, 8.5, 9.0], "c": [0.0, 1.0, 2.0, 5.0, 9.0]}
    found = judge(receipts, Times("a", 0.5, 4.5, 8.0, 2))
    assert found == Round("a", gap=3.0, own_client=8.0, on_return=4.0, failed_views=2)
    without = judge(receipts, Times("", 0.5, 4.5, 8.0, 0))
    assert without == Round("", gap=8.0, own_client=None, on_return=None, failed_views=0)


# -- who fails -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("leads", NAMES)
def test_the_leader_fails_or_each_of_the_others_in_turn(fault: Fault, leads: str) -> None:
    assert {choose(fault, LEADER, NAMES, leads, number).name for number in range(6)} == {leads}
    others = [choose(fault, OTHER, NAMES, leads, number).name for number in range(6)]
    assert others == 2 * [name for name in NAMES if name != leads]


@pytest.mark.parametrize("whom", [LEADER, OTHER])
def test_a_cut_link_leads_to_one_that_does_not_lead(whom: str) -> None:
    for number in range(12):
        victim = choose(Fault.CUT, whom, NAMES, "b", number)
        (far,) = victim.far_ends
        assert far not in {victim.name, "b"}
        assert choose(Fault.ISOLATE, whom, NAMES, "b", number).far_ends == tuple(
            name for name in NAMES if name != victim.name
        )
        assert choose(Fault.KILL, whom, NAMES, "b", number).far_ends == ()


def test_who_leads_is_said_by_the_broker_that_knows_most() -> None:
    answers = {"a": status("a", certified=7, leads="c"), "b": status("b", certified=8, leads="d")}
    assert leader(answers) == "d"
    with pytest.raises(Unavailable, match="No broker says"):
        leader({})


def test_proxies_stand_only_where_links_are_cut() -> None:
    plan = Plan(rounds=2, peers=("nats",))
    assert plan.groups == {"": [Fault.KILL, Fault.STOP], "proxies: ": [Fault.CUT]}
    assert plan.steps == 2 * (1 + 2 * 2 + 1 + 2 * 1 + 2)
    assert list(Plan(faults=(Fault.STOP,)).groups) == [""]
    assert [name for name, _, _ in cases([Fault.STOP])] == ["no fault", "stop leader", "stop other"]


# -- figures ---------------------------------------------------------------------------------------------------------


def test_a_case_is_its_median_by_the_median_without_a_fault() -> None:
    played = {
        "no fault": [Round("", 0.1, None, None, 0), Round("", 0.3, None, None, 1)],
        "kill leader": [Round("a", 1.0, 3.0, 0.2, 1), Round("b", 3.0, 4.0, 0.4, 2)],
    }
    normal, kill = summaries("x: ", played)
    assert (normal.case, normal.value, normal.baseline, normal.ratio) == ("x: no fault", 0.2, None, None)
    assert (kill.case, kill.value, kill.worst) == ("x: kill leader", 2.0, 3.0)
    assert (kill.baseline, kill.ratio, kill.spread) == (0.2, 10.0, 1.0)
    assert (kill.gaps, kill.own_client, kill.on_return) == ([1.0, 3.0], [3.0, 4.0], [0.2, 0.4])
    assert (kill.failed_views, kill.victims) == ([1, 2], ["a", "b"])
    assert (normal.failed_views, normal.victims) == ([0, 1], [])


def test_view_changes_are_those_of_the_broker_that_saw_most() -> None:
    before = {"a": status("a", failed=(1, 0)), "b": status("b", failed=(5, 5)), "c": status("c")}
    after = {"a": status("a", failed=(2, 2)), "b": status("b", failed=(5, 6))}
    assert view_changes(before, after) == 3
    assert view_changes(before, {}) is None


def test_a_broker_is_back_when_it_is_ready_connected_and_caught_up() -> None:
    answers = {
        "a": status("a"),
        "b": status("b", state="lagging"),
        "c": status("c", certified=3),
    }
    assert not_back(NAMES, answers, 9) == {
        "b": "is lagging",
        "c": "is at height 3, below 9,",
        "d": "does not answer",
    }
    answers = {name: status(name, lost="c" if name == "b" else "") for name in NAMES}
    assert not_back(NAMES, answers, 9) == {"b": "has no connection to c"}


# -- processes -------------------------------------------------------------------------------------------------------


def test_what_goes_wrong_while_something_is_done_steadily_is_not_lost() -> None:
    async def work() -> None:
        happened = asyncio.Event()

        def act() -> None:
            happened.set()
            raise KeyError

        async with steadily(100.0, act):
            await happened.wait()
            await asyncio.sleep(0)

    with pytest.raises(KeyError):
        asyncio.run(work())


def test_a_server_that_was_killed_starts_again_with_the_same_command(tmp_path: Path) -> None:
    async def work() -> None:
        async with Servers(tmp_path) as servers:
            servers.start("one", [sys.executable, "-c", "import signal; signal.pause()"])
            first = servers._processes["one"]
            servers.kill("one")
            assert first.returncode == -9
            servers.require_running()  # it was not missed
            servers.restart("one")
            second = servers._processes["one"]
            assert (second.args, second.poll()) == (first.args, None)

    asyncio.run(work())


def test_brokers_that_were_killed_stopped_or_cut_off_come_back(tmp_path: Path) -> None:
    plan = Plan(seconds=1.0, warm_up=0.2)
    network = FailingNetwork(tmp_path / "network", plan.brokers, {}, proxies=True)

    async def work() -> tuple[list[Round], list[int], list[int]]:
        async with asyncio.timeout(SECONDS), network.running(), network.watched() as watch:
            await network.create_topics([TOPIC])
            stage = Stage(network, watch, plan, await network.register("load", plan.brokers))
            before = list(network.pids.values())
            rounds = [
                await stage.play(fault, whom, 0)
                for fault, whom in ((Fault.KILL, LEADER), (Fault.STOP, OTHER), (Fault.CUT, LEADER))
            ]
            await network.returned(watch, Fault.CUT, 1)
            return rounds, before, list(network.pids.values())

    rounds, before, after = asyncio.run(work())
    assert all(one.victim in network.names for one in rounds)
    assert all(one.gap > 0 for one in rounds)
    assert all(one.own_client is not None and one.on_return is not None for one in rounds)
    assert all(one.failed_views is not None and one.failed_views >= 0 for one in rounds)
    assert len(set(after) - set(before)) == 1, "only the one that was killed is another process"


def test_a_broker_that_does_not_come_back_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "RETURN_SECONDS", 0.0)
    network = FailingNetwork(tmp_path / "network", 4, {}, proxies=False)
    victim = Victim(network.names[2])

    async def work() -> None:
        async with asyncio.timeout(SECONDS), network.running(), network.watched() as watch:
            await network.fail(Fault.KILL, victim)
            await network.returned(watch, Fault.KILL, 0)

    with pytest.raises(Unavailable, match=r"org-3-1 does not answer .* after the end of the fault \(kill\)"):
        asyncio.run(work())
    assert not network.pids
