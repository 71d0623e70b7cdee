import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley, shell, start
from tests.cli.conftest import Network

from parley.cli.contexts import Chosen
from parley.cli.local_setup import CLIENTS, ORGANISATIONS, provision
from parley.cli.network import starting
from parley.cli.output import ExitCode
from parley.client.administration import BrokerStatus
from parley.client.client import Client, connect
from parley.client.contexts import ContextFile
from parley.client.errors import Stalled
from parley.model.genesis import MAX_BROKERS
from parley.model.names import is_name
from parley.node.config import load
from parley.node.processes import HOST, LocalBroker, free_addresses, is_free, stop
from parley.node.storage import open_storage


def test_up_makes_four_organisations_with_a_client_each(network: Network) -> None:
    assert [broker["name"] for broker in network.started["brokers"]] == [
        "alpha-1",
        "bravo-1",
        "charlie-1",
        "delta-1",
    ]
    names = {path.stem for path in (network.directory / "identities").iterdir()}
    assert {"alpha-alice", "bravo-bob", "charlie-carol", "delta-dave", "delta-admin"} <= names


def test_secrets_are_for_their_owner_alone(network: Network) -> None:
    assert stat.S_IMODE(network.directory.stat().st_mode) == 0o700
    secrets = [*network.directory.glob("**/*.key"), *network.directory.glob("identities/*.json")]
    assert len(secrets) >= 4 * 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_folders_that_are_made_for_a_network_are_not_for_others_to_change_whatever_the_umask(
    tmp_path: Path,
) -> None:
    before = os.umask(0)
    try:
        assert provision(tmp_path / "deep" / "deeper" / "net", 1)
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "deep", *tmp_path.rglob("*")) if path.is_dir()]
    assert [path for path in folders if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []
    (broker,) = (tmp_path / "deep").rglob("broker.toml")
    open_storage(load(broker)).close()


def test_up_elsewhere_leaves_the_user_s_contexts_alone(network: Network) -> None:
    assert network.started["context"] is None
    assert not (network.home / ".config").exists()


def test_a_second_up_changes_nothing(network: Network) -> None:
    again = network.run("up", "--detach", "--json").json()
    assert (again["created"], again["started"]) == (False, [])
    assert again["brokers"] == network.started["brokers"]


def test_up_does_not_change_how_many_organisations_there_are(network: Network) -> None:
    ended = network.run("up", "--orgs", "7", "--detach", code=ExitCode.WRONG_USE)
    assert "holds a network of 4 organisations already" in ended.err


def test_status_tells_of_every_broker(network: Network) -> None:
    shard = network.run("status", "--json").json()["layers"]["data"]["shards"]["0"]
    assert set(shard) >= {"epoch", "view", "height", "leader", "governance_pin", "brokers"}
    assert shard["height"] > 0
    assert shard["leader"] in {"alpha-1", "bravo-1", "charlie-1", "delta-1"}
    pids = {broker["name"]: broker["pid"] for broker in network.started["brokers"]}
    for broker in shard["brokers"]:
        assert set(broker) >= {"name", "org", "address", "state", "height", "pid"}
        assert (broker["state"], broker["pid"]) == ("ready", pids[broker["name"]])
    assert "leader" in network.run("status", code=0).out


def test_status_tells_how_far_readers_are_by_their_own_word(network: Network) -> None:
    topic = network.topic("read-along")

    async def advise() -> None:
        async with connect(directory=network.directory) as alice:
            await alice.advise("vitals per ward", topic, {0: (3, 5)}, run="r1")

    asyncio.run(advise())
    for who, seen in (("alpha/alice", True), ("alpha/admin", True), ("bravo/bob", False)):
        found = network.run("status", "--json", who=who).json()["readers"]
        assert [(one["reader"], one["query"], one["topic"], one["lag"]) for one in found] == (
            [("alpha/alice", "vitals per ward", topic, 2)] if seen else []
        )
    shown = network.run("status", code=0).out
    assert "Readers, by their own word:" in shown
    assert "vitals per ward" in shown


def test_status_without_a_quorum_is_no_success(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Client.status

    async def status(client: Client) -> list[BrokerStatus]:
        *others, third, fourth = await whole(client)
        return [*others, *(replace(one, status=None, problem="cut off") for one in (third, fourth))]

    monkeypatch.setattr(Client, "status", status)
    ended = network.run("status", "--json", code=ExitCode.DOES_NOT_HOLD)
    assert not json.loads(ended.out)["layers"]["data"]["shards"]["0"]["quorum"]
    assert ended.err == (
        "parley: no quorum: 2 of 4 brokers vote, 3 are needed; not answering: charlie-1, delta-1\n"
    )
    waited = network.run("status", "--wait", "0.1", code=ExitCode.UNREACHABLE)
    assert "not ready within 0.1 s: charlie-1 (down), delta-1 (down)\n" in waited.err


def test_a_network_that_stalls_is_told_of_in_short_and_then_in_full(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = Stalled("looking at the state", {"alpha-1": "its newest header is old"})

    async def topics(client: Client) -> None:
        for _round in range(3):
            client._quorum.report(stalled)
        raise stalled

    monkeypatch.setattr(Client, "topics", topics)
    monkeypatch.setattr(LocalBroker, "pid", lambda broker: None if broker.name == "bravo-1" else 1)
    ended = network.run("topic", "list", code=ExitCode.UNREACHABLE)
    assert ended.err.splitlines() == [
        "parley: looking at the state: no fresh result yet; giving up after 30 s at most",
        f"parley: {stalled}",
        f"parley: not running here: bravo-1; start with `parley up --detach --dir {network.directory}`",
    ]


def test_in_one_organisation_s_part_only_its_own_broker_is_started(network: Network, tmp_path: Path) -> None:
    shutil.copy(network.directory / "genesis.json", tmp_path)
    shutil.copytree(
        network.directory / "brokers" / "delta-1",
        tmp_path / "brokers" / "delta-1",
        ignore=shutil.ignore_patterns("data", "pid", "*.sock"),
    )
    identity = network.directory / "identities" / "delta-dave.json"
    file = ContextFile(tmp_path / "context.toml", tmp_path / "genesis.json", identity, None, {})
    assert starting(Chosen("here", file)).endswith(f"start with `parley up delta-1 --dir {tmp_path}`")
    (tmp_path / "brokers" / "delta-1" / "broker.toml").unlink()
    assert starting(Chosen("here", file)) == ""


def test_logs_are_merged_by_time_and_readable(network: Network) -> None:
    entries = network.run("logs", "--json", "-n", "1000").lines()
    times = [entry["time"] for entry in entries]
    assert times == sorted(times)
    assert {entry["broker"] for entry in entries} == {"alpha-1", "bravo-1", "charlie-1", "delta-1"}
    text = network.run("logs", "bravo-1", "-n", "1000", code=0).out
    assert "started" in text
    assert "alpha-1" not in {line.split()[1] for line in text.splitlines()}
    assert len(network.run("logs", "-n", "2", code=0).out.splitlines()) == 2


def test_logs_of_nobody_say_whose_there_are(network: Network) -> None:
    ended = network.run("logs", "bravo1", code=ExitCode.WRONG_USE)
    assert "did you mean bravo-1?" in ended.err


@pytest.mark.parametrize(
    "words", [["up", "--org", "3"], ["staus"], ["up", "--orgs", "33"], ["up", "--orgs", "0"]]
)
def test_wrong_use_says_what_was_meant(words: list[str], network: Network) -> None:
    told = network.misuse(*words)
    assert "--orgs" in told or "'status'" in told


def test_a_network_comes_and_goes(tmp_path: Path) -> None:
    """One story, because every start takes seconds: the default folder, both ways of running, loss and the end."""
    up = shell("up", "--orgs", "1", "--detach", home=tmp_path, code=0)
    assert "secret keys of all 1 organisations" in up.err
    current = tmp_path / ".config" / "parley" / "current"
    assert current.read_text() == "local\n"
    assert parley("pub", "demo", "kept", home=tmp_path, code=0).out
    # What runs can be stopped, whatever has become of the genesis file.
    genesis = tmp_path / ".parley" / "genesis.json"
    signed = genesis.read_bytes()
    genesis.write_bytes(b"broken")
    stopped = parley("down", "--json", home=tmp_path).json()
    assert (stopped["stopped"], stopped["killed"]) == (["alpha-1"], [])
    genesis.write_bytes(signed)
    assert parley("down", home=tmp_path, code=0).out == "nothing was running\n"
    # Everything is down: a status that can be read, and the exit code of an unreachable network.
    status = parley("status", "--json", home=tmp_path, code=ExitCode.UNREACHABLE)
    shard = json.loads(status.out)["layers"]["data"]["shards"]["0"]
    assert {shard[key] for key in ("epoch", "view", "height", "leader")} == {None}
    (broker,) = shard["brokers"]
    assert (broker["state"], broker["height"], broker["pid"]) == ("down", None, None)
    unreachable = parley("pub", "demo", "nobody hears", home=tmp_path, code=ExitCode.UNREACHABLE)
    assert broker["address"] in unreachable.err
    error, remedy = unreachable.err.splitlines()
    assert "alpha-1 at " in error
    assert error.endswith("cannot be reached: Connection refused).")
    assert remedy == "parley: not running here: alpha-1; start with `parley up --detach`"
    assert remedy in status.err
    assert "height -, view -, leader -" in parley("status", home=tmp_path, code=ExitCode.UNREACHABLE).out
    # Its port is taken by somebody else.
    with socket.socket() as taken:
        host, _, port = broker["address"].rpartition(":")
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, int(port)))
        taken.listen()
        refused = parley("up", "--detach", home=tmp_path, code=ExitCode.UNREACHABLE)
    assert f"another program listens at {broker['address']}" in refused.err
    # In the foreground, from another folder by the saved context; Ctrl-C stops it; the data is still there.
    running = start("up", "--json", home=tmp_path)
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["started"] == ["alpha-1"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = parley("fetch", "demo", home=tmp_path, where=elsewhere, code=0)
    assert kept.out == "kept\n"
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130
    running.communicate()
    assert is_free(broker["address"])
    # Asked and refused, then wiped.
    parley("down", "--wipe", home=tmp_path, stdin=b"n\n", code=ExitCode.WRONG_USE)
    assert (tmp_path / ".parley").is_dir()
    parley("down", "--wipe", "--yes", home=tmp_path, code=0)
    assert not (tmp_path / ".parley").exists()
    assert not current.exists()
    assert "parley up" in parley("sub", "demo", home=tmp_path, code=ExitCode.WRONG_USE).err


def test_a_broker_that_cannot_start_shows_its_last_words(tmp_path: Path) -> None:
    provision(tmp_path / ".parley", 1)
    config = tmp_path / ".parley" / "brokers" / "alpha-1" / "broker.toml"
    config.write_text(config.read_text().replace("listen", "lisen"))
    ended = shell("up", "--detach", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "did you mean 'listen'?" in ended.err


def test_up_does_not_touch_a_folder_with_other_things(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    ended = parley("up", "--detach", "--dir", "full", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "holds other files" in ended.err
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_no_process_is_stopped_because_of_its_number_alone(tmp_path: Path) -> None:
    broker = LocalBroker("alpha-1", "alpha", tmp_path, f"{HOST}:1")
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert broker.pid() is None
    assert stop([broker]) == ([], [])


@pytest.mark.parametrize("text", ["", "none", "-1", "999999999"])
def test_a_pid_file_that_makes_no_sense_is_nobody_s(text: str, tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(text)
    assert LocalBroker("alpha-1", "alpha", tmp_path, f"{HOST}:1").pid() is None


def test_free_addresses_are_distinct_and_free(tmp_path: Path) -> None:
    found = free_addresses(5, tmp_path)
    assert len(set(found)) == 5
    assert all(is_free(address) for address in found)


def test_there_are_names_for_the_largest_network() -> None:
    for names in (ORGANISATIONS, CLIENTS):
        assert len(set(names)) == MAX_BROKERS
        assert all(is_name(name) for name in names)


def test_a_command_without_a_network_says_how_to_get_one(tmp_path: Path) -> None:
    ended = parley("status", home=tmp_path, code=ExitCode.WRONG_USE)
    assert "parley up" in flat(ended.err)


def test_a_broker_has_stopped_when_its_process_is_gone_not_when_its_pid_file_is(tmp_path: Path) -> None:
    broker = LocalBroker("alpha-1", "alpha", tmp_path, f"{HOST}:1")
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: None); print(flush=True); time.sleep(600)"
    words = [sys.executable, "-c", program, str(broker.config.resolve())]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (tmp_path / "pid").write_text(f"{process.pid}\n")
        assert stop([broker], seconds=0.2) == (["alpha-1"], ["alpha-1"])
        assert process.wait() == -signal.SIGKILL


def test_output_is_not_written_where_a_link_leads(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "output.log").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        LocalBroker("alpha-1", "alpha", tmp_path, f"{HOST}:1").start()
    assert victim.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / ".parley").mkdir()
    (tmp_path / ".parley" / "context.toml").touch()
    os.chown(tmp_path / ".parley", 12_345, -1)
    for words in (("up", "--detach"), ("status",)):
        assert "belongs to another user" in flat(parley(*words, home=tmp_path, code=ExitCode.WRONG_USE).err)
