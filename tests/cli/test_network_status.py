"""What `parley status` makes of the brokers' answers, one of which may be a lie."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from rich.console import Console
from tests.cli.commands import start
from tests.cli.conftest import Network

from parley.cli import local_setup, status_table
from parley.cli.output import ExitCode
from parley.cli.status_summary import Member, Shard, summary
from parley.client.administration import BrokerStatus
from parley.client.client import Client
from parley.client.contexts import read_genesis
from parley.consensus.committee import committee_of
from parley.model.genesis import Genesis
from parley.net.messages import PeerStatus, Status

A, B, C, D = NAMES = ("alpha-1", "bravo-1", "charlie-1", "delta-1")


@pytest.fixture(scope="module")
def genesis(tmp_path_factory: pytest.TempPathFactory) -> Genesis:
    directory = tmp_path_factory.mktemp("status") / "net"
    local_setup.provision(directory, 4)
    return read_genesis(directory / "genesis.json")


def answer(name: str, *, down: Iterable[str] = (), slow: Iterable[str] = ()) -> Status:
    peers = tuple(PeerStatus(one, one not in down, one in slow, 2) for one in NAMES if one != name)
    index = NAMES.index(name)
    return Status(
        1, name, name[:-2], index, "0.9", "ready", "", 0, 0, 50, 40, 39, A, 0, 0, peers, (), (),
        blocks=100, votes=(90, 80, 70, 0), failed_views=(0, 0, 0, 3),
    )  # fmt: skip


def shown(genesis: Genesis, *answers: Status) -> Shard:
    """Of these brokers; those that say nothing are down."""
    said = {one.broker: one for one in answers}
    found = [
        BrokerStatus(name, name[:-2], "h:1", said.get(name), "" if name in said else "Connection refused")
        for name in NAMES
    ]
    return summary(found, {}, genesis, committee_of(genesis, None))


def text(shard: Shard) -> list[str]:
    console = Console(width=200, highlight=False, markup=False, color_system=None)
    with console.capture() as captured:
        console.print(status_table.page("test", shard, []))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_each_broker_has_its_version_votes_round_trip_and_failed_views(genesis: Genesis) -> None:
    shard = shown(genesis, *map(answer, NAMES))
    fourth = shard.brokers[3]
    assert (fourth.version, fourth.votes, fourth.blocks) == ("0.9", 0, 100)
    assert (fourth.round_trip_ms, fourth.failed_views) == (2, 3)
    assert f"{D} delta h:1 ready 40 0.9 0/100 2 ms 3 -" in text(shard)
    assert f"{A} alpha h:1 ready 40 0.9 90/100 2 ms 0 -" in text(shard)


def test_one_liar_changes_nothing_that_is_said_of_the_network_or_of_others(genesis: Genesis) -> None:
    honest = [answer(name) for name in NAMES[1:]]
    truth = shown(genesis, answer(A), *honest)
    low = replace(answer(A, down=NAMES, slow=NAMES), view=1, height=1, leader=D, blocks=1, votes=(0, 0, 0, 0))
    high = replace(
        answer(A, slow=NAMES), view=2**60, height=2**60, epoch=9, leader="zulu-1", failed_views=(99,) * 4,
        peers=tuple(PeerStatus(name, connected=True, slow=True, round_trip_ms=9_000) for name in NAMES[1:]),
    )  # fmt: skip
    short = replace(answer(A), votes=(), failed_views=(), peers=())
    for lie in (low, high, short):
        found = shown(genesis, lie, *honest)
        assert (found.epoch, found.view, found.height) == (truth.epoch, truth.view, truth.height)
        assert (found.leader, found.tolerable_failures) == (A, 1)
        for one, known in zip(found.brokers[1:], truth.brokers[1:], strict=True):
            assert (one.votes, one.blocks, one.failed_views, one.round_trip_ms) == (
                known.votes,
                known.blocks,
                known.failed_views,
                known.round_trip_ms,
            )
        assert not [line for line in text(found) if line.endswith(f"for {A}")]


@pytest.mark.parametrize(
    ("up", "failures", "words"),
    [
        (4, 1, "one more broker may fail: 4 of 4 brokers vote, 3 are needed"),
        (3, 0, "no more broker may fail: 3 of 4 brokers vote, 3 are needed"),
        (2, 0, "too few vote: nothing is ordered."),
        (0, 0, "too few vote: nothing is ordered."),
    ],
)
def test_it_says_how_many_more_brokers_may_fail(genesis: Genesis, up: int, failures: int, words: str) -> None:
    shard = shown(genesis, *map(answer, NAMES[:up]))
    assert (shard.tolerable_failures, shard.voting, shard.quorum) == (failures, up, up >= 3)
    assert any(line.startswith(words) for line in text(shard))


def test_brokers_that_wait_for_others_do_not_vote_and_are_named(genesis: Genesis) -> None:
    waiting = [replace(answer(name, down=(C, D)), state="waiting") for name in (A, B)]
    shard = shown(genesis, *waiting)
    assert not shard.quorum
    assert status_table.missing(shard) == (
        f"0 of 4 brokers vote, 3 are needed; not answering: {C}, {D}; waiting for others: {A}, {B}"
    )


def test_a_broker_that_answers_and_is_down_for_too_many_others_does_not_vote(genesis: Genesis) -> None:
    two = shown(genesis, answer(A, down=[D]), answer(B, down=[D]), answer(C), answer(D))
    assert (two.voting, two.tolerable_failures) == (3, 0)
    assert f"{D} is down for {A}, {B}" in text(two)
    one = shown(genesis, answer(A, down=[D]), answer(B), answer(C), answer(D, down=[A]))
    assert one.voting == 4  # a cut link, or a liar at one of its ends


def test_the_matrix_says_who_reaches_whom(genesis: Genesis) -> None:
    shard = shown(genesis, answer(A, slow=[C], down=[D]), answer(B, slow=[C], down=[D]), answer(C, down=[D]))
    lines = text(shard)
    at = lines.index(f"says of {A} {B} {C} {D}")
    assert lines[at + 1 : at + 5] == [
        f"{A} . + ~ x",
        f"{B} + . ~ x",
        f"{C} + + . x",
        f"{D} ? ? ? .",
    ]
    assert f"{C} is slow for {A}, {B}" in lines
    assert f"{D} is down for {A}, {B}, {C}" in lines


def test_a_note_that_several_brokers_have_in_common_is_said_once(genesis: Genesis) -> None:
    lines = text(shown(genesis, answer(A), replace(answer(B), note="The disk is full.")))
    assert f"{B}: The disk is full." in lines
    assert f"{C}, {D}: Connection refused" in lines


def test_a_broker_that_does_not_answer_is_not_shown_as_leader(genesis: Genesis) -> None:
    others = [answer(name) for name in NAMES[1:]]
    assert shown(genesis, *others).leader is None
    assert shown(genesis, answer(A), *others).leader == A
    assert any(line.endswith("view 50, leader -") for line in text(shown(genesis, *others)))


def test_the_leader_is_that_of_the_newest_view(genesis: Genesis) -> None:
    newer = [replace(answer(name), view=51, leader=C) for name in (B, C)]
    assert shown(genesis, answer(A), answer(D), *newer).leader == C


def test_a_matrix_of_many_brokers_is_headed_by_numbers() -> None:
    members = [Member(f"b-{number}", "o", "h", "down", None, None, "", [], []) for number in range(9)]
    shard = Shard(None, None, None, None, 0, False, 0, 7, 0, members)
    assert "says of 1 2 3 4 5 6 7 8 9" in text(shard)


def test_watching_prints_a_line_each_time_and_ends_with_ctrl_c(network: Network) -> None:
    process = start("status", "--watch", "--json", "--dir", network.directory, home=network.home)
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    for line in lines:
        assert line["layers"]["data"]["shards"]["0"]["tolerable_failures"] == 1


def test_watching_is_no_waiting(network: Network) -> None:
    assert "not both" in network.misuse("status", "--watch", "--wait", "1")


def test_fewer_voters_than_a_quorum_are_no_success(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Client.status

    async def status(client: Client) -> list[BrokerStatus]:
        return [one if one.status is None or one.name == A else _waiting(one) for one in await whole(client)]

    monkeypatch.setattr(Client, "status", status)
    ended = network.run("status", code=ExitCode.DOES_NOT_HOLD)
    assert "1 of 4 brokers vote, 3 are needed; waiting for others: bravo-1, charlie-1, delta-1" in ended.err


def _waiting(one: BrokerStatus) -> BrokerStatus:
    assert one.status is not None
    status = replace(one.status, state="waiting")
    return BrokerStatus(one.name, one.organisation, one.address, status, "")
