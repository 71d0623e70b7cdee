"""`parley sub --resume FILE`: however a run ends, the next one goes on where the file says."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.commands import start
from tests.cli.conftest import Network

from parley.client.position import Position


def test_each_run_goes_on_where_the_one_before_ended(network: Network, tmp_path: Path) -> None:
    topic, file = network.topic("resumed"), tmp_path / "position.json"
    network.run("pub", topic, stdin=b"one\ntwo\nthree\n", code=0)
    words = ("sub", topic, "--resume", file, "--from", "earliest")
    assert network.run(*words, "-n", "2", code=0).out == "one\ntwo\n"
    assert [one.offset for one in Position.load(file).partitions] == [2]
    network.run("pub", topic, "four", code=0)
    # Killed in the middle, it has written down what it printed.
    killed = start(*words, "--dir", network.directory, home=network.home)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"three\n"
    assert killed.stdout.readline() == b"four\n"
    network.run("pub", topic, "five", code=0)
    assert killed.stdout.readline() == b"five\n"
    network.run("pub", topic, "six", code=0)
    assert killed.stdout.readline() == b"six\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    network.run("pub", topic, "seven", "eight", code=0)
    # The last lines may come again, because the file is written after them; what follows is never left out.
    found = [
        json.loads(line)["value"]
        for line in network.run(*words, "-n", "2", "--json", code=0).out.splitlines()
    ]
    assert found in (["six", "seven"], ["seven", "eight"])


def prune(network: Network, topic: str, end: int) -> None:
    """Have retention take all that was published, and nothing more."""
    network.run("topic", "alter", topic, "--retention", "1s", code=0)
    words = ("topic", "describe", topic, "--json")
    while network.run(*words, code=0).json()["offsets"][0]["start"] < end:
        pass
    network.run("topic", "alter", topic, "--retention", "forever", code=0)


def test_what_was_not_kept_meanwhile_is_told_once_and_the_run_goes_on_with_what_is_left(
    network: Network, tmp_path: Path
) -> None:
    topic, file = network.topic("short-lived"), tmp_path / "position.json"
    network.run("pub", topic, stdin=b"one\ntwo\nthree\n", code=0)
    words = ("sub", topic, "--resume", file, "--from", "earliest")
    assert network.run(*words, "-n", "1", code=0).out == "one\n"
    prune(network, topic, 3)
    network.run("pub", topic, "four", code=0)
    ended = network.run(*words, "-n", "1", code=0)
    assert ended.out == "four\n"
    assert ended.err.count("starts at offset 3") == ended.err.count("\n") == 1, ended.err
    assert [one.offset for one in Position.load(file).partitions] == [4]
    network.run("pub", topic, "five", code=0)
    again = network.run(*words, "-n", "1", code=0)
    assert (again.out, again.err) == ("five\n", "")


def test_the_position_moves_past_what_is_gone_before_anything_else_comes(
    network: Network, tmp_path: Path
) -> None:
    topic, file = network.topic("emptied"), tmp_path / "position.json"
    network.run("pub", topic, stdin=b"one\ntwo\n", code=0)
    words = ("sub", topic, "--resume", file, "--from", "earliest")
    network.run(*words, "-n", "1", code=0)
    prune(network, topic, 2)
    waiting = start(*words, "--dir", network.directory, home=network.home)
    assert waiting.stderr is not None
    assert b"starts at offset 2" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=30)
    assert [one.offset for one in Position.load(file).partitions] == [2]


def test_a_position_of_a_topic_that_was_made_again_is_refused_by_name(
    network: Network, tmp_path: Path
) -> None:
    topic, file = network.topic("made-again"), tmp_path / "position.json"
    network.run("pub", topic, "one", code=0)
    words = ("sub", topic, "--resume", file, "--from", "earliest", "-n", "1")
    network.run(*words, code=0)
    network.run("topic", "delete", topic, code=0)
    network.topic(topic)
    refused = network.run(*words)
    assert refused.code != 0
    assert "TopicReplaced: topic made-again was deleted and made again" in refused.err


def test_a_position_of_another_topic_or_no_position_at_all_is_refused(
    network: Network, tmp_path: Path
) -> None:
    topic, file = network.topic("elsewhere"), tmp_path / "position.json"
    network.run("pub", topic, "one", code=0)
    network.run("sub", topic, "--from", "earliest", "-n", "1", "--resume", file, code=0)
    refused = network.run("sub", "demo", "--resume", file)
    assert refused.code != 0
    assert f"one of topic {topic}" in refused.err
    assert "not both" in network.misuse("sub", topic, "--resume", str(file), "--exit")
    file.write_text("{}")
    assert "cannot be used" in network.misuse("sub", topic, "--resume", str(file))
    assert "cannot be written" in network.misuse("sub", topic, "--resume", str(tmp_path / "nowhere" / "file"))
