"""Whatever a configuration says, it is either used as it is meant or refused with file, key and what is allowed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from parley.node.config import ConfigError, load
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import replica_config


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("config") / "net"
    provision_network(
        directory, organisations=("alpha", "beta"), network="test", start_time=int(time.time() * 1_000)
    )
    return directory


@pytest.fixture
def path(directory: Path) -> Iterator[Path]:
    """A configuration that may be written over."""
    path = broker_directory(directory, "alpha-1") / "broker.toml"
    text = path.read_text()
    yield path
    path.write_text(text)


def test_a_provisioned_configuration_is_complete(path: Path, directory: Path) -> None:
    config = load(path)
    assert (config.broker.name, config.index) == ("alpha-1", 0)
    assert config.genesis.network == "test"
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 7101)
    assert [address.port for address in config.addresses] == [7101, 7102]
    assert config.data == directory / "brokers/alpha-1/data"
    assert config.log_file == directory / "brokers/alpha-1/log.jsonl"
    assert config.consensus_key.public == config.genesis.brokers[0].key


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "[limits]\nconnections = 'many'",
            "broker.toml: limits.connections: expected an integer between 1 and 100000, got 'many'",
        ),
        ("[limits]\nconnections = 0", "limits.connections: expected an integer between 1 and 100000, got 0"),
        (
            "[limits]\nconnections = true",
            "limits.connections: expected an integer between 1 and 100000, got True",
        ),
        ("[limits]\nconections = 5", "limits: there is no 'conections'; did you mean 'connections'?"),
        ("[limit]\nx = 5", "broker.toml: there is no 'limit'; did you mean 'limits'?"),
        ("[storage]\nzzz = 5", "storage: there is no 'zzz'; expected one of 'cache_bytes'"),
        ("[limits]\nconnections = 5", "limits.connections_per_address: expected at most limits.connections"),
        (
            "[ordering]\nblock_interval_ms = -1",
            "ordering.block_interval_ms: expected an integer between 0 and 64, got -1",
        ),
        (
            "[ordering]\nblock_interval_ms = 65",
            "ordering.block_interval_ms: expected an integer between 0 and 64, got 65",
        ),
        (
            "[ordering]\nblock_interval_ms = 2.5",
            "ordering.block_interval_ms: expected an integer between 0 and 64, got 2.5",
        ),
        ("[ordering]\nblock_interval = 5", "did you mean 'block_interval_ms'?"),
        ("[peers]\nbeta-1 = 'nowhere'", "peers.beta-1: 'nowhere' is not an address"),
        ("[peers]\nbeta-2 = 'x:1'", "peers: there is no 'beta-2'; did you mean 'beta-1'?"),
        ("[peers]\nbeta-1 = 7", "peers: expected a table of broker"),
        ("[[storage]]", "storage: expected a table, got [{}]"),
        ("[limits]\nconnections = ", "is not TOML"),
        ("x = " + "[" * 20_000, "is not TOML"),
        ("# " + "x" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(path: Path, line: str, problem: str) -> None:
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("genesis", "nowhere.json", "nowhere.json cannot be read: No such file"),
        ("genesis", "tls.crt", "is not a genesis file"),
        ("broker", "gamma-1", "broker: expected one of 'alpha-1', 'beta-1', got 'gamma-1'"),
        ("broker", "beta-1", "consensus_key: is not the key that the genesis file names for beta-1"),
        ("listen", "127.0.0.1", "listen: '127.0.0.1' is not an address"),
        ("listen", "", "listen: expected a text that is not empty, got ''"),
        ("consensus_key", "tls.key", "is not a signing key"),
        ("consensus_key", "tls.crt", "chmod 600"),
        ("certificate_key", "nowhere", "cannot be read"),
        ("certificate", "consensus.key", "not in PEM form"),
        ("data", "a\\u0000b", "data: expected a path"),
    ],
)
def test_a_file_that_does_not_fit_is_named(path: Path, key: str, value: str, problem: str) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} ")]
    path.write_text("\n".join([f'{key} = "{value}"', *lines]))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert problem in str(caught.value)


def test_blocks_under_load_keep_the_configured_pace_of_38_ms_unless_told_otherwise(path: Path) -> None:
    assert replica_config(load(path)).pace == 38
    text = path.read_text()
    for interval in (0, 1, 64):
        path.write_text(f"{text}\n[ordering]\nblock_interval_ms = {interval}\n")
        assert replica_config(load(path)).pace == interval


def test_in_a_network_with_short_views_no_leader_waits_for_most_of_one(path: Path) -> None:
    path.write_text(f"{path.read_text()}\n[ordering]\nblock_interval_ms = 64\n")
    config = load(path)
    assert replica_config(config).pace == 64
    hasty = structs.replace(
        config.genesis, timeouts=structs.replace(config.genesis.timeouts, view=40, heartbeat=30)
    )
    assert replica_config(replace(config, genesis=hasty)).pace == 10


def test_a_missing_key_is_asked_for(path: Path) -> None:
    path.write_text(path.read_text().replace("listen =", "# listen ="))
    with pytest.raises(ConfigError, match=r"broker\.toml: listen: is missing; expected a text"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml: cannot be read: No such file"):
        load(tmp_path / "nothing.toml")


def test_port_zero_means_any_free_one(path: Path) -> None:
    path.write_text(path.read_text().replace("127.0.0.1:7101", "[::1]:0"))
    assert (load(path).listen.host, load(path).listen.port) == ("::1", 0)


def test_a_thousand_mangled_files_raise_nothing_but_config_errors(path: Path) -> None:
    text = path.read_bytes() + b'\n[limits]\nconnections = 100\n[peers]\nbeta-1 = "127.0.0.1:9"\n'
    pieces = [
        b"[",
        b"]]",
        b"\n",
        b'"""',
        b"= 1e999",
        b"1979-05-27",
        b"\\u0000",
        b"\xff",
        b"[a.b]\n",
        b"-0x1",
        b"{}",
    ]
    chance = Random(11)
    refused = 0
    for _ in range(1_000):
        data = bytearray(text)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 12)] = chance.choice([b"", *pieces])
        path.write_bytes(data)
        refused += not loads(path)
    assert refused > 500


def loads(path: Path) -> bool:
    """Whether the file is used; whatever is wrong with it must come as a ConfigError."""
    try:
        load(path)
    except ConfigError:
        return False
    return True
