import re
import shlex

import pytest
from tests.cli.conftest import Network

from parley.cli.output import ExitCode


def test_a_topic_is_created_described_altered_and_deleted(network: Network) -> None:
    made = network.run("topic", "create", "wards/er", "--publish", 'role=="nurse"', "--json").json()
    assert (made["name"], made["organisation"], made["partitions"]) == ("wards/er", "alpha", 1)
    assert made["publish"] == 'role == "nurse"'
    network.run(
        "topic", "alter", "wards/er", "--partitions", "2", "--publish", "", "--retention", "7d", code=0
    )
    described = network.run("topic", "describe", "wards/er", "--json").json()
    assert (described["partitions"], described["publish"], described["retention"]) == (2, "true", 604_800_000)
    assert "retention   7d" in network.run("topic", "describe", "wards/er", code=0).out
    listed = network.run("topic", "list", "--json").json()
    assert {"demo", "wards/er"} <= {topic["name"] for topic in listed["topics"]}
    assert described["offsets"] == [{"partition": number, "start": 0, "end": 0} for number in (0, 1)]
    assert all("offsets" not in topic for topic in listed["topics"]), "who lists does not ask for them"
    network.run("topic", "delete", "wards/er", code=0)
    listed = network.run("topic", "list", "--json").json()
    assert "wards/er" not in {topic["name"] for topic in listed["topics"]}


@pytest.mark.parametrize("option", ["--publish", "--subscribe"])
def test_a_rule_that_trusts_the_word_of_all_organisations_is_warned_of(option: str, network: Network) -> None:
    topic = f"warned{option}"
    wide, narrow = 'role == "nurse"', 'org in ["alpha"] and role == "nurse"'
    made = network.run("topic", "create", topic, option, wide, "--json")
    assert made.json()[option.strip("-")] == wide
    warning = f"{option} {wide} can be true for clients of any organisation"
    assert warning in made.err
    assert f'org in ["NAME", ...] and ({wide})' in made.err
    quoted = network.run("topic", "alter", topic, option, 'role == "o\'neil"', code=0).err
    assert shlex.split(quoted.partition("only: ")[2])[5] == 'org in ["NAME", ...] and (role == "o\'neil")'
    altered = network.run("topic", "alter", topic, option, narrow, code=0)
    assert "organisations" not in altered.err
    assert warning in network.run("topic", "alter", topic, option, wide, code=0).err
    for rule in ("", "true"):
        assert "organisations" not in network.run("topic", "alter", topic, option, rule, code=0).err
    assert "organisations" not in network.run("topic", "create", f"{topic}-2", option, narrow, code=0).err


def test_only_the_owner_s_administrators_change_a_topic(network: Network) -> None:
    topic = network.topic("owned")
    # An administrator's key that is no client's may not know of the topic.
    for who, told in (("bravo/admin", "UnknownTopic: "), ("alpha/alice", "PermissionDenied: ")):
        ended = network.run("topic", "delete", topic, who=who, code=ExitCode.DOES_NOT_HOLD)
        assert re.search(told, ended.err)


def test_a_name_is_taken_once(network: Network) -> None:
    topic = network.topic("taken")
    ended = network.run("topic", "create", topic, code=ExitCode.DOES_NOT_HOLD)
    assert "TopicExists" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["create", "x", "--publish", "role ="], "--publish"),
        (["create", "x", "--partitions", "1000"], "--partitions"),
        (["create", "x", "--retention", "soon"], "20s, 30m, 12h, 7d, or forever"),
        (["create", "x", "--retention", "0s"], "must be more than 0, or forever"),
        (["alter", "demo"], "say what to change"),
        (["create", "bad topic!"], "'bad topic!' is no name of a topic: use 1 to 128 letters"),
        (["describe", "bad topic!"], "no name of a topic"),
        (["delete", "bad/"], "no name of a topic"),
        (["crate", "x"], "Did you mean 'create'"),
        (["create", "x", "--partition", "2"], "--partitions"),
    ],
)
def test_wrong_use_says_what_was_meant(words: list[str], told: str, network: Network) -> None:
    assert told in network.misuse("topic", *words)
