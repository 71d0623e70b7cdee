"""Folders that other users may change, and safety records that they may read, are refused at the start with the cure."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.node.network import LocalNetwork
from tests.node.test_crashes import run_node

from parley.node import rights
from parley.node.assemble import run
from parley.node.config import Config, load
from parley.node.provision import broker_directory, provision_network
from parley.node.storage import StorageError, open_storage

NOBODYS_GID = 54_321
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def provisioned(directory: Path) -> Config:
    now = int(time.time() * 1_000)
    provision_network(directory, organisations=("solo",), network="n", start_time=now, clients=())
    return load(broker_directory(directory, "solo-1") / "broker.toml")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return provisioned(tmp_path / "a net")


def refusal(config: Config) -> str:
    with pytest.raises(StorageError) as caught:
        open_storage(config)
    return str(caught.value)


@pytest.mark.parametrize("bits", [0o777, 0o702, 0o1777])
@pytest.mark.parametrize("folder", ["data", "."])
def test_a_folder_in_which_everybody_may_swap_the_record_or_the_store_is_refused(
    folder: str, bits: int, config: Config
) -> None:
    path = (config.directory / folder).resolve()
    path.chmod(bits)
    why = refusal(config)
    assert f"run: chmod go-w {shlex.quote(str(path))}" in why
    path.chmod(0o755)
    open_storage(config).close()


def test_the_folder_of_a_record_that_lies_elsewhere_is_looked_at_too(config: Config, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    config.safety.rename(elsewhere / "safety.record")
    config.path.write_text(config.path.read_text().replace('"safety.record"', f'"{elsewhere}/safety.record"'))
    moved = load(config.path)
    open_storage(moved).close()
    elsewhere.chmod(0o777)
    assert f"chmod go-w {elsewhere}" in refusal(moved)


@AS_ROOT
def test_a_folder_that_a_group_of_strangers_may_change_is_refused(config: Config) -> None:
    os.chown(config.data, -1, NOBODYS_GID)
    config.data.chmod(0o770)
    assert "chmod go-w" in refusal(config)
    config.data.chmod(0o750)
    open_storage(config).close()


def test_who_is_alone_in_a_group_shares_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"me": (1_000, 100), "root": (0, 0), "other": (1_001, 101)}
    groups = {100: [], 101: [], 102: ["me", "root"], 103: ["me", "other"], 104: ["nobody-knows"]}

    def user(name: str) -> SimpleNamespace:
        uid, gid = users[name]
        return SimpleNamespace(pw_uid=uid, pw_gid=gid)

    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.setattr(os, "getgroups", lambda: [100, 200])
    monkeypatch.setattr(pwd, "getpwall", lambda: [user(name) for name in users])
    monkeypatch.setattr(pwd, "getpwnam", user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_mem=groups[gid]))
    found = {gid: rights.has_strangers(gid) for gid in (*groups, 200, 201)}
    assert found == {100: False, 101: True, 102: False, 103: True, 104: True, 200: False, 201: True}


@AS_ROOT
def test_a_folder_of_another_user_is_refused(config: Config) -> None:
    os.chown(config.data, 12_345, -1)
    assert "belongs to another user" in refusal(config)


def test_a_parent_that_everybody_may_change_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "open"
    parent.mkdir()
    config = provisioned(parent / "net")
    parent.chmod(0o777)
    assert f"chmod o-w {parent}" in refusal(config)
    parent.chmod(0o1777)  # like /tmp: there everybody removes and renames only what is their own
    open_storage(config).close()


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_safety_record_that_others_can_touch_is_refused(bits: int, config: Config) -> None:
    config.safety.chmod(bits)
    why = refusal(config)
    assert f"run: chmod 600 {shlex.quote(str(config.safety))}" in why
    config.safety.chmod(0o600)
    open_storage(config).close()


def test_a_configuration_that_everybody_may_change_is_refused(config: Config) -> None:
    config.path.chmod(0o666)
    assert f"run: chmod go-w {shlex.quote(str(config.path.resolve()))}" in refusal(config)


def test_a_broker_ends_with_one_sentence_if_its_data_folder_is_open_to_everybody(tmp_path: Path) -> None:
    network = LocalNetwork(tmp_path / "net", organisations=("solo",))
    data = broker_directory(network.directory, "solo-1") / "data"
    data.chmod(0o777)
    ended = run_node(network, "solo-1")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"run: chmod go-w {data}" in ended.stderr


def test_a_data_folder_that_everybody_may_read_is_warned_of(config: Config) -> None:
    async def start_and_stop() -> None:
        stop = asyncio.Event()
        stop.set()
        assert await run(config, stop) == 0

    def warned() -> bool:
        assert config.log_file is not None
        return b'"folder_readable"' in config.log_file.read_bytes()

    asyncio.run(start_and_stop())
    assert not warned()
    config.data.chmod(0o755)
    asyncio.run(start_and_stop())
    assert warned()
    assert f"chmod 700 {shlex.quote(str(config.data))}" in rights.warning(config)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o077])
def test_what_is_provisioned_can_be_started_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    with umask(mask):
        config = provisioned(tmp_path / "deep" / "net")
        open_storage(config).close()
    assert rights.objection(config) == rights.warning(config) == ""
