"""Java is found where it is, a missing one is told before Spark starts, and every session is this machine's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.running import JOB_SECONDS

from parley.spark import java, session
from parley.spark.errors import BadOption, NoJava, ParleySparkError
from parley.spark.java import INSTALL, find_java, require_java
from parley.spark.pipeline.run import JAVA_OPTIONS
from parley.spark.session import LOGGING, prepare, settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java; the folder is where Debian's would be."""
    folders = tmp_path / "jvm"
    folders.mkdir()
    monkeypatch.setattr(java, "FOLDERS", folders)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folders


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "number"), [("17.0.19", 17), ("1.8.0_452", 8), ("25", 25), ("none", None)]
)
@pytest.mark.parametrize("release", [True, False])
def test_a_java_says_its_version_in_a_file_or_when_asked(
    version: str, number: int | None, release: bool, tmp_path: Path
) -> None:
    assert java.version(make_java(tmp_path / "home", version, release=release)) == number


def test_java_home_comes_first_then_the_path_then_the_oldest_that_will_do(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(nowhere / "old", "11.0.2")
    newer, fitting = make_java(nowhere / "a-newer", "25"), make_java(nowhere / "fitting", "17.0.1")
    assert find_java() == fitting
    on_path = make_java(tmp_path / "mine", "21")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(newer))
    assert find_java() == newer


def test_a_java_home_that_is_too_old_or_not_there_does_not_hide_a_good_one(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = make_java(nowhere / "good", "17")
    for home in (make_java(tmp_path / "old", "11"), tmp_path / "none"):
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert find_java() == good


def test_without_java_an_error_says_what_is_there_and_the_line_that_installs_it(nowhere: Path) -> None:
    with pytest.raises(
        NoJava, match=r"\[PARLEY_JAVA\] Spark needs Java 17 or newer; there is none"
    ) as caught:
        spark_session("never")
    assert INSTALL in str(caught.value)
    make_java(nowhere / "old", "11.0.2")
    with pytest.raises(NoJava, match=r"old has version 11\."):
        require_java()


def test_the_command_of_make_setup_prints_the_folder_or_the_line_that_installs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parley.spark.java"]
    good = make_java(tmp_path / "home", "17")
    found = subprocess.run(
        command, env={**os.environ, "JAVA_HOME": str(good)}, check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, f"{good}\n")


def test_make_setup_says_the_line_where_nothing_may_be_installed(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert java.main() == 1
    assert capsys.readouterr().out == f"{INSTALL}\n"


@pytest.mark.parametrize("master", ["localhost", "local(2)", "spark:/host:1", "http://host:4040", ""])
def test_what_is_no_address_of_a_spark_is_refused_before_anything_starts(master: str) -> None:
    with pytest.raises(BadOption, match="is not where a Spark runs"):
        prepare(master)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://cluster.example:7077", False),
        ("spark://127.0.0.1.example:7077", False),
        ("yarn", False),
    ],
)
def test_a_driver_listens_on_the_loopback_address_unless_workers_are_elsewhere(
    master: str, here: bool
) -> None:
    chosen = settings(master)
    assert ("spark.driver.bindAddress" in chosen, "spark.driver.host" in chosen) == (here, here)
    assert chosen["spark.pyspark.python"] == sys.executable
    assert chosen["spark.ui.enabled"] == "false"


def test_a_connect_client_needs_no_java(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "another")
    prepare("sc://cluster.example:15002")
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_spark_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda _name: None)
    with pytest.raises(BadOption, match=r'pip install "parley\[spark\]"'):
        prepare()


def test_workers_use_this_python_and_nothing_listens_elsewhere(spark: SparkSession) -> None:
    def look(batches: object) -> object:
        import pyarrow as pa  # noqa: PLC0415 - in the worker

        for _ in batches:  # type: ignore[attr-defined]
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    (row,) = spark.range(1).mapInArrow(look, "python string").collect()  # type: ignore[arg-type]
    assert row.python == sys.executable
    configured = spark.sparkContext.getConf()
    assert configured.get("spark.driver.host") == configured.get("spark.driver.bindAddress") == "127.0.0.1"
    assert configured.get("spark.master") == "local[2,4]"


def test_every_condition_has_a_name_of_its_own_and_survives_a_pickle() -> None:
    kinds = ParleySparkError.__subclasses__()
    assert len({kind.condition for kind in kinds}) == len(kinds) > 10
    for kind in kinds:
        rebuild, words = kind("what happened").__reduce__()
        assert str(rebuild(*words)) == f"[{kind.condition}] what happened"


NOISE = """
from parley.spark.session import spark_session
spark = spark_session("quiet")
spark.range(10).count()
"""


@pytest.mark.long
def test_a_job_that_goes_well_says_nothing_but_one_line_of_the_jvm(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JAVA_OPTIONS)  # of which it would tell
    done = subprocess.run(
        [sys.executable, "-c", NOISE],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
    )
    assert LOGGING.exists()
    lines = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert (done.stdout, lines) == ("", [])
