"""What `parley examples` and `parley pipeline` say when they cannot begin: before any Spark is started."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import flat, parley

from parley.cli import local_setup
from parley.node.provision import create_identity
from parley.spark import java
from parley.spark.pipeline.tenants import TENANTS


@pytest.fixture
def quiet(tmp_path: Path) -> Path:
    """The folder of a network whose brokers do not run."""
    home = tmp_path / "net"
    local_setup.provision(home, 4)
    return home


def enrol(home: Path) -> None:
    until = time.time_ns() // 1_000_000 + 86_400_000
    for tenant, organisation in zip(TENANTS, ("alpha", "bravo"), strict=True):
        create_identity(home, organisation, tenant.reader, not_after=until)


def test_a_network_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    for command in (["pipeline", "run"], ["examples", "sensors"]):
        ended = parley(*command, home=tmp_path, code=2)
        assert "parley up" in ended.err
        assert ended.out == ""


def test_a_network_without_readings_is_told_how_to_get_some(quiet: Path, tmp_path: Path) -> None:
    ended = parley("pipeline", "run", "--dir", quiet, home=tmp_path, code=2)
    assert f"parley examples sensors --dir {quiet}" in ended.err


def test_a_network_of_one_organisation_has_no_room_for_two_tenants(tmp_path: Path) -> None:
    local_setup.provision(tmp_path / "one", 1)
    for command in (["pipeline", "run"], ["examples", "sensors"]):
        ended = parley(*command, "--dir", tmp_path / "one", home=tmp_path, code=2)
        assert "two tenants need one each" in ended.err


def test_a_network_that_does_not_answer_is_unreachable_and_leaves_nothing_behind(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.spark.session.require_java", lambda: Path(sys.prefix))
    enrol(quiet)
    ended = parley("pipeline", "run", "--dir", quiet, home=tmp_path, code=3)
    assert "parley up" in ended.err
    assert not (quiet / "pipeline").exists()


def test_without_java_there_is_one_line_that_installs_it(
    quiet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_homes", lambda: iter(()))
    enrol(quiet)
    ended = parley("pipeline", "run", "--dir", quiet, home=tmp_path, code=2)
    assert java.INSTALL in ended.err


def test_a_spark_that_cannot_be_is_wrong_use(quiet: Path, tmp_path: Path) -> None:
    enrol(quiet)
    for url in ("mesos://x", "sc://localhost:15002"):
        ended = parley("pipeline", "run", "--dir", quiet, "--spark", url, home=tmp_path, code=2)
        assert "spark://HOST:PORT" in ended.err


@pytest.mark.parametrize(
    "words",
    [
        ["--messages", "0"],
        ["--malformed", "1.5"],
        ["--seconds", "0"],
        ["--start", "yesterday"],
        ["--rate", "-1"],
    ],
    ids=" ".join,
)
def test_a_generator_without_bounds_is_wrong_use(words: list[str], tmp_path: Path) -> None:
    ended = parley("examples", "sensors", *words, home=tmp_path, code=2)
    assert words[0] in flat(ended.err)
