"""Each alert fires for what it is about, at the time that it states, and stays silent while a network is well.

Prometheus' own tool plays hours of a network; where it is not installed, the rules are only compared with these tests.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.ops.rule_files import RULES, alerts
from tests.ops.watched import (
    BROKERS,
    DAY,
    FAULT,
    SCRAPES,
    STEP,
    Check,
    Expected,
    Series,
    Story,
    beginning,
    changing,
    ending,
    examined,
    growing,
    healthy,
    info,
    series,
    steady,
)
from tools.check_docs import anchors

from parley.node.peers import GARBAGE

ROOT = Path(__file__).parents[2]
KNOWN = {rule["alert"]: rule for rule in alerts()}
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": DAY}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)

ALL, OTHERS, LAST = BROKERS, BROKERS[:3], BROKERS[3]  # the last one is what the alerts are about
NETWORK = {"network": "wards"}
PEER = {**NETWORK, "peer": LAST}
INSTANCE = {"instance": f"{LAST}:9464", "job": "parley"}


@dataclass(frozen=True)
class Case:
    """What happens to a healthy network, and what follows. `since`: the scrape from which on the rule holds."""

    alert: str
    changes: Series
    labels: dict[str, str]
    value: str = ""
    since: int = FAULT


def seen(name: str, values: str, by: Iterable[str] = OTHERS, **labels: str) -> Series:
    """What these brokers tell."""
    return {series(name, one, **labels): values for one in by}


def own(name: str, values: str, **labels: str) -> Series:
    return seen(name, values, (LAST,), **labels)


CASES = (
    Case(
        "ParleyStalled",
        seen("parley_certified_age_seconds", changing(0.5, 20, 15), ALL, shard="0"),
        NETWORK,
        "35s",
    ),
    Case("ParleyNoQuorum", own("parley_peers_connected", changing(3, 1)), INSTANCE, "2"),
    Case("ParleyQuorumMarginLost", seen("parley_peers_connected", changing(3, 2), ALL), NETWORK),
    Case("ParleyBrokerDown", own("up", changing(1, 0)), INSTANCE),
    Case("ParleyNotReady", own("parley_ready", changing(1, 0)), INSTANCE),
    Case("ParleyLagging", own("parley_replica_lag_blocks", changing(1, 500), shard="0"), INSTANCE, "500"),
    Case("ParleyPeerDown", seen("parley_peer_up", changing(1, 0), peer=LAST), PEER),
    Case("ParleyPeerSlow", seen("parley_peer_slow", changing(0, 1), peer=LAST), PEER),
    Case(
        "ParleyPeerDoesNotVote",
        seen("parley_recent_votes_ratio", changing(0.9, 0), ALL, shard="0", peer=LAST),
        PEER,
    ),
    Case(
        "ParleyLeaderFailsViews",
        seen("parley_failed_views_total", changing(1, 2, 1), shard="0", peer=LAST),
        PEER,
        "8",
        since=FAULT + 3,
    ),
    Case(
        "ParleyViewChangesHigh",
        own("parley_view_changes_total", changing(2, 3, 1), shard="0"),
        INSTANCE,
        "4",
        since=FAULT + 30,
    ),
    Case(
        "ParleyMisbehaviour",
        seen("parley_byzantine_evidence_total", changing(7, 8), kind="votes", peer=LAST),
        {**PEER, "kind": "votes"},
    ),
    Case(
        "ParleyPeerSendsGarbage",
        seen("parley_messages_refused_total", changing(0, 1), reason="bad_signature", peer=LAST),
        {**PEER, "reason": "bad_signature"},
    ),
    Case(
        "ParleyVersionSkew",
        {info(LAST): ending(1), info(LAST, version="1.1"): beginning(1)},
        NETWORK,
        "2",
    ),
    Case(
        "ParleyBatchesWait",
        own("parley_mempool_oldest_seconds", changing(0, 301, 15), shard="0"),
        INSTANCE,
        "6m 1s",
    ),
    Case(
        "ParleySlowReceipts",
        own("parley_publish_latency_seconds_bucket", growing(0), le="0.1"),
        INSTANCE,
        "9.901s",
        since=1,
    ),
    Case(
        "ParleyRequestsRefused",
        own("parley_requests_refused_total", growing(300), reason="Busy"),
        INSTANCE,
        "20",
        since=11,
    ),
    Case("ParleyLoopLag", own("parley_loop_lag_seconds", changing(0.02, 2)), INSTANCE, "2s"),
    Case("ParleyWritesStopped", own("parley_rocksdb_write_stopped", changing(0, 1)), INSTANCE),
    Case("ParleyDamageUnmended", own("parley_damage_open", changing(0, 3)), INSTANCE, "3"),
    Case("ParleyDiskNearlyFull", own("parley_storage_free_bytes", changing(5e10, 1e9)), INSTANCE),
    Case("ParleyDiskFullInADay", own("parley_storage_free_bytes", growing(-2e7, 5e10)), INSTANCE, since=1),
    Case("ParleyClockOff", own("parley_clock_offset_seconds", changing(0.01, -1.5)), INSTANCE, "1.5"),
    Case(
        "ParleyCertificateEndsSoon",
        own("parley_certificate_expiry_seconds", steady(30 * DAY + FAULT * STEP - 1)),
        INSTANCE,
    ),
    Case(
        "ParleyCertificateEndsNow",
        own("parley_certificate_expiry_seconds", steady(7 * DAY + FAULT * STEP - 1)),
        INSTANCE,
    ),
    Case(
        "ParleyAuthorityEndsSoon",
        own("parley_authority_expiry_seconds", steady(365 * DAY + FAULT * STEP - 1)),
        {**NETWORK, "organisation": "delta"},
    ),
)


def waits(alert: str) -> int:
    """Scrapes between the moment from which on its rule holds and the moment at which it fires."""
    number, unit = re.fullmatch(r"(\d+)([smhd])", KNOWN[alert].get("for", "0s")).groups()  # type: ignore[union-attr]
    seconds = int(number) * SECONDS[unit]
    assert seconds % STEP == 0
    return seconds // STEP


def fires(alert: str, labels: dict[str, str], value: str = "", since: int = FAULT) -> list[Check]:
    """Not a scrape too early, and then this one alone."""
    at = since + waits(alert)
    return [Check(alert, at - 1), Check(alert, at, (Expected(alert, labels, value),))]


def changed(changes: Series) -> Series:
    before = healthy()
    told = {name for name in changes if not name.startswith("parley_info")}
    assert told <= before.keys(), "what is not told by a healthy broker proves nothing"
    return before | changes


def test_each_alert_has_a_case() -> None:
    assert [case.alert for case in CASES] == list(KNOWN)


def test_a_healthy_network_tells_all_that_the_rules_look_at() -> None:
    told = {re.split(r"[{]", name)[0] for name in healthy()}
    for alert, rule in KNOWN.items():
        named = set(re.findall(r"\b(?:parley_\w+|up\b)", re.sub(r'"[^"]*"', "", rule["expr"])))
        assert named, alert
        assert named <= told, alert


def test_the_words_for_garbage_are_those_of_the_broker() -> None:
    (named,) = re.findall(r'reason=~"([a-z_|]+)"', KNOWN["ParleyPeerSendsGarbage"]["expr"])
    assert set(named.split("|")) == {reason.name.lower() for reason in GARBAGE}


@pytest.mark.parametrize("alert", KNOWN)
def test_each_alert_leads_to_a_section_that_says_what_to_do(alert: str) -> None:
    place, _, anchor = KNOWN[alert]["annotations"]["runbook_url"].partition("#")
    assert place == "docs/alerts.md"
    assert anchor == alert.lower()
    assert anchor in anchors(ROOT / place)


def test_the_page_has_no_section_of_an_alert_that_is_gone() -> None:
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert sections == list(KNOWN)


# -- what promtool says --------------------------------------------------------------------------------------------------


def prove(folder: Path, changes: Series, *checks: Check) -> None:
    fault = examined(RULES, KNOWN, folder, Story(changed(changes), list(checks)))
    assert not fault, fault


@needs_promtool
def test_a_healthy_network_raises_no_alert(tmp_path: Path) -> None:
    times = (FAULT, SCRAPES // 2, SCRAPES)
    prove(tmp_path, {}, *(Check(alert, scrape) for alert in KNOWN for scrape in times))


@needs_promtool
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_at_the_time_that_it_states(case: Case, tmp_path: Path) -> None:
    prove(tmp_path, case.changes, *fires(case.alert, case.labels, case.value, case.since))


# What `tests/node/test_named.py` does to a real broker, as Prometheus sees it.


@needs_promtool
def test_a_killed_broker_is_named_once_and_the_margin_is_lost(tmp_path: Path) -> None:
    gone = {name: ending(1) for name in healthy() if f'instance="{LAST}:9464"' in name}
    killed = {
        **gone,
        series("up", LAST): changing(1, 0),
        **seen("parley_peer_up", changing(1, 0), peer=LAST),
        **seen("parley_peers_connected", changing(3, 2)),
        **seen("parley_failed_views_total", changing(1, 2, 1), shard="0", peer=LAST),
    }
    prove(
        tmp_path,
        killed,
        *fires("ParleyPeerDown", PEER),
        *fires("ParleyQuorumMarginLost", NETWORK),
        *fires("ParleyBrokerDown", INSTANCE),
        *(Check("ParleyLeaderFailsViews", scrape) for scrape in range(FAULT, FAULT + 40)),
        Check("ParleyStalled", SCRAPES),
    )


@needs_promtool
def test_a_stopped_broker_is_named_although_prometheus_still_knows_its_numbers(
    tmp_path: Path,
) -> None:
    """Until its scrapes time out, they are as before."""
    stopped = seen("parley_peer_up", changing(1, 0), peer=LAST)
    prove(tmp_path, stopped, *fires("ParleyPeerDown", PEER), Check("ParleyLeaderFailsViews", FAULT + 30))


@needs_promtool
def test_a_broker_slowed_by_300_ms_is_named_and_not_called_down(tmp_path: Path) -> None:
    """It finds all others equally slow, and so accuses none of them."""
    slowed = seen("parley_peer_slow", changing(0, 1), peer=LAST)
    prove(tmp_path, slowed, *fires("ParleyPeerSlow", PEER), Check("ParleyPeerDown", FAULT + 30))


@needs_promtool
def test_a_broker_that_equivocates_is_named_once_with_what_it_signed_twice(tmp_path: Path) -> None:
    """Also if it is the first time. It fails the views that it leads, until it leads no more."""
    caught = {
        **seen("parley_byzantine_evidence_total", changing(0, 1), kind="proposals", peer=LAST),
        **seen("parley_failed_views_total", changing(1, 2), shard="0", peer=LAST),
    }
    prove(
        tmp_path,
        caught,
        *fires("ParleyMisbehaviour", {**PEER, "kind": "proposals"}),
        Check("ParleyPeerDown", FAULT + 30),
        Check("ParleyLeaderFailsViews", FAULT + 30),
    )


@needs_promtool
@pytest.mark.parametrize("name", ["parley_peer_up", "parley_peer_slow"])
def test_one_cut_or_slow_link_accuses_neither_end(name: str, tmp_path: Path) -> None:
    values = changing(1, 0) if name == "parley_peer_up" else changing(0, 1)
    one_link = {series(name, OTHERS[0], peer=LAST): values, series(name, LAST, peer=OTHERS[0]): values}
    alert = "ParleyPeerDown" if name == "parley_peer_up" else "ParleyPeerSlow"
    prove(tmp_path, one_link, Check(alert, FAULT + 100))


@needs_promtool
def test_a_broker_that_is_cut_off_is_named_and_not_those_that_it_misses(tmp_path: Path) -> None:
    cut_off = seen("parley_peer_up", changing(1, 0), peer=LAST)
    for other in OTHERS:
        cut_off |= own("parley_peer_up", changing(1, 0), peer=other)
    prove(tmp_path, cut_off, *fires("ParleyPeerDown", PEER))


@needs_promtool
def test_damage_that_nobody_mends_does_not_heal_by_itself(tmp_path: Path) -> None:
    still = Expected("ParleyDamageUnmended", INSTANCE, "3")
    changes = own("parley_damage_open", changing(0, 3))
    prove(tmp_path, changes, *(Check(still.alert, scrape, (still,)) for scrape in range(200, SCRAPES, 100)))


@needs_promtool
def test_misbehaviour_is_news_for_an_hour_and_again_when_it_is_repeated(tmp_path: Path) -> None:
    name = series("parley_byzantine_evidence_total", OTHERS[0], kind="votes", peer=LAST)
    hour = 3_600 // STEP
    twice = f"{growing(0, 7, FAULT - 1)} {growing(0, 8, 2 * hour - 1)} {growing(0, 9, hour)}"
    news = (Expected("ParleyMisbehaviour", {**PEER, "kind": "votes"}),)
    prove(
        tmp_path,
        {name: twice},
        Check("ParleyMisbehaviour", FAULT, news),
        Check("ParleyMisbehaviour", FAULT + hour + 1),
        Check("ParleyMisbehaviour", FAULT + 2 * hour, news),
    )


@needs_promtool
def test_a_network_that_never_had_a_margin_has_lost_none(tmp_path: Path) -> None:
    alone = {
        info("solo-1"): steady(1),
        series("parley_peers_connected", "solo-1"): steady(0),
        series("parley_quorum_size", "solo-1", shard="0"): steady(1),
        series("parley_committee_size", "solo-1", shard="0"): steady(1),
    }
    story = Story(alone, [Check(alert, SCRAPES) for alert in KNOWN])
    fault = examined(RULES, KNOWN, tmp_path, story)
    assert not fault, fault


@needs_promtool
def test_two_networks_are_told_apart(tmp_path: Path) -> None:
    """In one of them a broker is down that is called like one of the other."""
    changes = {info(one): ending(1) for one in ALL} | {
        info(one, network="labs" if one in ALL[:2] else "wards"): beginning(1) for one in ALL
    }
    changes |= {series("parley_peer_up", ALL[0], peer=LAST): changing(1, 0)}
    changes |= {series("parley_peer_up", ALL[1], peer=LAST): changing(1, 0)}
    prove(tmp_path, changes, *fires("ParleyPeerDown", {"network": "labs", "peer": LAST}))
