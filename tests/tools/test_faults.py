"""Faults written by hand stand for what they say, are replayed as promised, and are noticed or explained."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import faults, mutate

SOURCE = "def quorum(size):\n    return size - (size - 1) // 3\n"
TESTS = """
import asyncio
import subprocess
import sys

import sample


def test_four_members_need_three():
    assert sample.quorum(4) == 3

def test_a_process_of_its_own_needs_three():
    subprocess.run([sys.executable, "-c", "import sample; assert sample.quorum(4) == 3"], check=True)

def test_one_member_needs_itself():
    assert sample.quorum(1) == 1

def test_that_never_was_right():
    assert sample.quorum(4) == 4
"""
NOTICED, SURVIVED = "A quorum is one too few", "A quorum of one is counted otherwise"


def fault(name: str, became: str, *tests: str, was: str = "(size - 1) // 3", why: str = "") -> faults.Fault:
    named = tuple(f"tests/test_sample.py::test_{test}" for test in tests)
    return faults.Fault(name, "src/sample.py", was, became, named, why)


MISSED = fault(NOTICED, "(size + 2) // 3", "four_members_need_three")
HARMLESS = fault(SURVIVED, "size // 4", "one_member_needs_itself")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("src", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "sample.py").write_text(SOURCE)
    (tmp_path / "tests" / "test_sample.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long\n")
    return tmp_path


# -- entries ---------------------------------------------------------------------------------------------------------------


def test_every_fault_can_be_put_into_the_code_of_today() -> None:
    written = faults.read(faults.FOLDER)
    assert faults.mistakes(written, faults.ROOT) == []
    assert written
    assert all(len(one.why.split()) >= 5 for one in written if one.why)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (fault("f", "1", "one_member_needs_itself", was="size - 2"), "`was` occurs 0 times in src/sample.py"),
        (fault("f", "1", "one_member_needs_itself", was="size"), "`was` occurs 3 times in src/sample.py"),
        (
            fault("f", "(size", "one_member_needs_itself"),
            "src/sample.py does not compile: '(' was never closed",
        ),
        (fault("f", "((size - 1)) // 3", "one_member_needs_itself"), "it changes nothing"),
        (fault("f", "(size - one) // 3", "one_member_needs_itself"), "it uses names that do not exist: one"),
        (fault("f", "1"), "no tests are named"),
        (fault("f", "1", "nothing"), "tests/test_sample.py::test_nothing does not exist"),
        (faults.Fault("f", "src/gone.py", "1", "2", ("tests",)), "`was` occurs 0 times in src/gone.py"),
    ],
)
def test_an_entry_that_says_what_is_not_so_is_named(tree: Path, wrong: faults.Fault, mistake: str) -> None:
    assert faults.mistakes([wrong], tree)[0].startswith(f"f: {mistake}")
    assert faults.replay([wrong], tree, jobs=1)[0].startswith(f"f: {mistake}")


def test_no_two_faults_have_the_same_name(tree: Path) -> None:
    assert faults.mistakes([MISSED, MISSED], tree) == [f"Two faults have one name: {NOTICED}"]


def test_a_fault_is_read_as_its_file_says_it(tmp_path: Path) -> None:
    (tmp_path / "sample.toml").write_text(
        '[[fault]]\nname = "n"\nfile = "f"\nwas = """w"""\nbecame = """b"""\ntests = ["t"]\nwhy = "y"\n'
    )
    assert faults.read(tmp_path) == [faults.Fault("n", "f", "w", "b", ("t",), "y")]
    assert [one.name for one in faults.select(faults.read(tmp_path), "f: n")] == ["n"]
    assert faults.select(faults.read(tmp_path), "m") == []


# -- the replay ------------------------------------------------------------------------------------------------------------


def test_survivors_are_named_and_the_source_is_left_alone(tree: Path) -> None:
    assert faults.replay([MISSED, HARMLESS], tree, jobs=2) == [f"Survived, and is not explained: {SURVIVED}"]
    assert (tree / "src" / "sample.py").read_text() == SOURCE


def test_explained_survivors_must_survive(tree: Path) -> None:
    explained = fault(SURVIVED, "size // 4", "one_member_needs_itself", why="There is no such network.")
    wrong = fault(NOTICED, "(size + 2) // 3", "four_members_need_three", why="There is no such network.")
    (found,) = faults.replay([explained, wrong], tree, jobs=1)
    assert found.startswith(f"Explained, but a test fails: {NOTICED}\n")


def test_processes_that_tests_start_have_the_fault_as_well(tree: Path) -> None:
    outside = fault(NOTICED, "(size + 2) // 3", "a_process_of_its_own_needs_three")
    assert faults.replay([outside], tree, jobs=1) == []


def test_tests_that_fail_without_a_fault_notice_nothing(tree: Path) -> None:
    (found,) = faults.replay([fault("f", "1", "that_never_was_right")], tree, jobs=1)
    assert found.startswith(
        "Do not pass without a fault (NOTICED): tests/test_sample.py::test_that_never_was_right"
    )


def test_code_that_cannot_be_imported_is_not_a_fault_that_was_noticed(tree: Path) -> None:
    unusable = fault("f", "int('')\ndef", "one_member_needs_itself", was="def")
    (found,) = faults.replay([unusable], tree, jobs=1)
    assert found.startswith("No answer (NOT_RUN): f\n")


def test_a_fault_that_never_ends_gets_no_answer(tree: Path) -> None:
    endless = fault("f", "while size: pass\n    return", "one_member_needs_itself", was="return")
    (found,) = [
        faults.judge(task, outcome)
        for task, outcome in faults.run([faults.Task(endless.tests, endless)], tree, jobs=1, seconds=1)
    ]
    assert found is not None
    assert found.startswith("No answer (NEVER_ENDED): f")


def test_the_list_names_faults_and_runs_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate.main(["--by-hand", "--list", "--only", "own vote vouches"]) == 0
    assert "own vote vouches" in capsys.readouterr().out


@pytest.mark.long
def test_every_fault_written_by_hand_is_noticed_or_explained() -> None:
    command = [sys.executable, "tools/mutate.py", "--by-hand"]
    result = subprocess.run(command, cwd=faults.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
