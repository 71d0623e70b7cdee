"""ops/systemd/parley@.service fits the broker that it runs: its exit codes, its limits, and the folder that it writes to."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.ops.guides import ROOT, section
from tests.ops.units import read_unit

from parley.model.genesis import MAX_BROKERS
from parley.node.config import Limits
from parley.node.descriptors import needed
from parley.node.processes import LocalBroker

UNIT = ROOT / "ops" / "systemd" / "parley@.service"


def value(key: str) -> str:
    (found,) = read_unit(UNIT.read_text(), "alpha-1")[key]
    return found


def test_it_allows_the_open_files_that_a_broker_of_the_largest_network_needs() -> None:
    config = SimpleNamespace(
        limits=Limits(), brokers=range(MAX_BROKERS), shards=(0,), metrics_listen="127.0.0.1:9464"
    )
    want = needed(cast("Any", config))
    assert f"in a network of {MAX_BROKERS} brokers needs {want};" in UNIT.read_text()
    assert int(value("LimitNOFILE")) >= want


def test_a_broker_that_cannot_start_is_not_started_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "broker.toml").write_text("broker = 1\n")
    for name in ("broker.toml", "none.toml"):
        command = [sys.executable, "-m", "parley.node", str(tmp_path / name)]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert ended.returncode == int(value("RestartPreventExitStatus")), ended
    assert value("Restart") == "on-failure"
    assert int(value("StartLimitBurst")) * int(value("RestartSec")) < int(value("StartLimitIntervalSec"))


def test_a_reload_is_a_command_that_the_broker_answers() -> None:
    """A signal would have no answer, and systemd could not tell whether the certificate is in use."""
    assert value("ExecReload") == f"{value('ExecStart').replace(' node ', ' node reload ')}"
    assert "SIGHUP" not in UNIT.read_text()
    told = section("docs/deploy.md", "Start the brokers")
    assert "parley node reload" in told


def test_a_broker_takes_no_module_from_the_folder_in_which_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "uvloop.py").write_text("raise SystemExit(77)")
    (tmp_path / "none.toml").touch()
    command = [sys.executable, "-P", "-c", "from parley.cli import main; main()", "node", "none.toml"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 2, ended
    brokers = LocalBroker("alpha-1", "alpha", tmp_path, "")
    brokers.config.touch()
    assert brokers.start().wait(timeout=60) == 2


def test_the_broker_may_write_to_its_folder_only_and_cannot_see_the_keys_of_its_organisation() -> None:
    folder = "/var/lib/parley/network"
    assert value("ExecStart") == f"/opt/parley/bin/parley node {folder}/brokers/alpha-1/broker.toml"
    assert value("ReadWritePaths") == f"{folder}/brokers/alpha-1"
    assert value("InaccessiblePaths").split() == [f"-{folder}/organisations", f"-{folder}/identities"]
    assert (value("ProtectSystem"), value("NoNewPrivileges"), value("UMask")) == ("strict", "yes", "0077")


def test_the_guide_names_the_user_and_every_exit_code_that_the_unit_knows() -> None:
    told = section("docs/deploy.md", "Start the brokers")
    for code in (0, 1, int(value("RestartPreventExitStatus"))):
        assert f"| exit code {code}" in told
    assert f" {value('User')}\n" in section("docs/deploy.md", "Install")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    # The broker need not be installed here.
    absent = "Command /opt/parley/bin/parley is not executable"
    assert [line for line in complaints(UNIT.read_text(), tmp_path) if absent not in line] == []
    misspelt = UNIT.read_text().replace("ProtectSystem", "ProtectSytem")
    assert any("ProtectSytem" in line for line in complaints(misspelt, tmp_path))


def complaints(unit: str, folder: Path) -> list[str]:
    """What systemd has to say of this unit; of others on this machine it may say more."""
    (folder / UNIT.name).write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", "./parley@alpha-1.service"]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return [line for line in checked.stderr.splitlines() if "parley@" in line]
