"""Mutants are found, named and run as promised, and the rules of consensus let none of them live unexplained."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutate

RULE = '''
def safe(view, state):
    """Whether to vote."""
    if view <= state.voted or view <= state.gave_up:
        return False
    return view == state.justify + 1
'''


def found(source: str) -> set[tuple[str, str]]:
    return {(mutant.was, mutant.became) for mutant in mutate.mutants(ast.parse(source), "rule.py")}


def became(line: str) -> set[str]:
    """What one line of a function may become."""
    return {after for _, after in found(f"def rule():\n    {line}\n")}


# -- the operators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a < b", {"return a <= b", "return a >= b", "return None", "pass"}),
        ("return a == b", {"return a != b", "return a <= b", "return a >= b", "return None", "pass"}),
        ("return a is None", {"return a is not None", "return None", "pass"}),
        ("return a not in b", {"return a in b", "return None", "pass"}),
        ("return not a", {"return a", "return None", "pass"}),
        ("return None", {"pass"}),
        ("return True", {"return False", "pass"}),
        ("a = b or c", {"a = b and c", "a = b", "a = c", "pass"}),
        ("a = b and c and d", {"a = b or c or d", "a = c and d", "a = b and d", "a = b and c", "pass"}),
        ("a = b + 1", {"a = b - 1", "a = b + 2", "a = b + 0", "pass"}),
        ("a = 0", {"a = 1", "pass"}),
        ("a = max(b, c)", {"a = min(b, c)", "a = b", "a = c", "pass"}),
        ("a = sorted(b)", {"a = b", "pass"}),
        ("a = b if c else d", {"a = b", "a = d", "pass"}),
        ("a = b[:c]", {"a = b[c:]", "a = b[:]", "pass"}),
        ("a = [b, *c]", {"a = [b]", "a = [*c]", "pass"}),
        ("a = b in (c, d)", {"a = b not in (c, d)", "a = b in (c,)", "a = b in (d,)", "pass"}),
        ("a, b = c", {"pass"}),
        ("a = [b for b in c if d]", {"a = [b for b in c]", "pass"}),
        ("a = replace(b, c=d)", {"replace(…)", "pass"}),
        ("a = replace(b, c=True)", {"replace(…)", "replace(…, c=False)", "pass"}),
        ("raise Wrong", {"pass"}),
        ("assert a", {"pass"}),
        ("del a", {"pass"}),
        ("a()", {"pass"}),
        ("if a: pass", {"if not a:"}),
        ("while a.b: pass", {"while not a.b:"}),
        ("'Words about the rule.'", set()),
        ("a: b | None = c", {"pass"}),
    ],
)
def test_a_line_becomes_each_of_its_small_faults(line: str, expected: set[str]) -> None:
    assert became(line) == expected


@pytest.mark.parametrize(
    "source", ["'''Words.'''", "import a", "from a import b", "__all__ = ['a']", "a: int"]
)
def test_words_and_imports_are_not_mutated(source: str) -> None:
    assert {after for _, after in found(source)} <= {"pass"}
    assert found("def rule(a: int | None) -> int | None: ...") == found("def rule(a): ...")


def test_defaults_of_arguments_are_mutated() -> None:
    assert ("def rule(a=0):", "def rule(a=1):") in found("def rule(a=0): ...")


def test_a_mutant_is_its_module_with_one_change() -> None:
    for at, mutant in enumerate(mutate.mutants(ast.parse(RULE), "rule.py")):
        tree = ast.parse(RULE)
        mutate.mutants(tree, "rule.py")[at].apply()
        lines = zip(ast.unparse(ast.parse(RULE)).split("\n"), ast.unparse(tree).split("\n"), strict=True)
        assert [(was.strip(), now.strip()) for was, now in lines if was != now] == [
            (mutant.was, mutant.became)
        ]


# -- the names ------------------------------------------------------------------------------------------------------------


def test_a_name_tells_the_function_the_line_and_what_it_became() -> None:
    names = [
        mutant.name for mutant in mutate.mutants(ast.parse(f"class Rules:\n{_indented(RULE)}"), "rule.py")
    ]
    assert "rule.py Rules.safe: return view == state.justify + 1 → return view >= state.justify + 1" in names


def test_names_do_not_change_with_lines_and_functions_elsewhere() -> None:
    alone = mutate.mutants(ast.parse(RULE), "rule.py")
    moved = mutate.mutants(
        ast.parse(f"def other():\n    return 1\n\n\n# why\n{RULE}\nLIMIT = 2\n"), "rule.py"
    )
    assert [mutant for mutant in moved if mutant.where == "rule.py safe"] == alone


def test_no_two_mutants_have_the_same_name() -> None:
    twice = mutate.mutants(
        ast.parse("def rule():\n    if a: return None\n    if b: return None\n"), "rule.py"
    )
    assert [mutant.where for mutant in twice if mutant.became == "pass"] == [
        "rule.py rule",
        "rule.py rule #2",
    ]
    for target in mutate.TARGETS:
        every = mutate.read(target)[1]
        assert len(set(every)) == len(every) > 100


# -- the explanations -----------------------------------------------------------------------------------------------------


def test_every_explained_mutant_exists_and_has_a_reason() -> None:
    explained = mutate.explanations(mutate.EXPLAINED)
    existing = {mutant.key for target in mutate.TARGETS for mutant in mutate.read(target)[1]}
    assert explained.keys() <= existing
    assert all(len(why.split()) >= 5 for why in explained.values())


def test_survivors_and_explanations_must_agree() -> None:
    first, second, third, *_ = mutate.mutants(ast.parse(RULE), "rule.py")
    verdicts = {
        first: mutate.Verdict.SURVIVED,
        second: mutate.Verdict.KILLED,
        third: mutate.Verdict.NEVER_ENDED,
    }
    every = [mutant.key for mutant in verdicts]
    gone = ("rule.py unsafe", "return 1", "return 2")

    def faults(*explained: mutate.Key) -> list[str]:
        return mutate.faults(dict.fromkeys(explained, "It cannot matter."), every, verdicts)

    assert faults(first.key) == []
    assert faults() == [f"Survived, and is not explained:\n{mutate.stanza(first.key)}"]
    assert faults(first.key, gone) == [f"Explained, but does not exist:\n{mutate.stanza(gone)}"]
    assert faults(first.key, second.key) == [f"Explained, but a test fails:\n{mutate.stanza(second.key)}"]
    assert faults(first.key, third.key) == [f"Explained, but a test fails:\n{mutate.stanza(third.key)}"]


def test_a_survivor_is_printed_as_the_file_wants_it(tmp_path: Path) -> None:
    mutant = mutate.mutants(ast.parse('def rule():\n    say("no", "never")\n'), "rule.py")[0]
    file = tmp_path / "mutants.toml"
    file.write_text(mutate.stanza(mutant.key) + 'why = "Nobody listens."\n', encoding="utf-8")
    assert mutate.explanations(file) == {mutant.key: "Nobody listens."}


# -- the campaign ---------------------------------------------------------------------------------------------------------

SAMPLE = """
def count(limit):
    at = 0
    while at < limit:
        at += 1
    return at
"""
SAMPLE_TEST = """
import sample

assert sample.count(3) == 3
"""


def run_sample(here: Path, *arguments: str, test: str = SAMPLE_TEST) -> subprocess.CompletedProcess[str]:
    """The tool against a module with a test of its own, in a process of its own since it forks."""
    (here / "sample.py").write_text(SAMPLE)
    (here / "sample_test.py").write_text(test)
    (here / "mutants.toml").write_text("survivor = []\n")
    program = (
        "import sys\nfrom pathlib import Path\nfrom tools.mutate import Killer, Target, main\n"
        "here = Path(sys.argv[1])\nsys.path.insert(0, str(here))\n"
        "target = Target('sample', here / 'sample.py', (Killer(('sample_test',), seconds=1),))\n"
        "sys.exit(main(sys.argv[2:], [target], here / 'mutants.toml'))\n"
    )
    command = [sys.executable, "-c", program, str(here), *arguments]
    return subprocess.run(command, cwd=mutate.ROOT, capture_output=True, text=True, check=False)


def test_a_campaign_names_what_no_test_noticed_and_leaves_the_source_alone(tmp_path: Path) -> None:
    result = run_sample(tmp_path, "--only", "* at [=+]*")
    survivor = mutate.stanza(("sample.py count", "at = 0", "at = 1"))
    assert result.stdout == (
        f"Survived, and is not explained:\n{survivor}\n"
        "5 mutants: 4 killed (2 by the time limit), 1 survived; 1 faults\n"
    )
    assert (result.returncode, result.stderr) == (1, "")
    assert (tmp_path / "sample.py").read_text() == SAMPLE


def test_tests_that_fail_without_a_mutant_are_no_killers(tmp_path: Path) -> None:
    result = run_sample(tmp_path, "--only", "return", test="import sample\nassert sample.count(3) == 4\n")
    assert result.returncode == 1
    assert "fail without any mutant" in result.stderr


def test_tests_that_never_import_the_module_are_no_killers(tmp_path: Path) -> None:
    result = run_sample(tmp_path, "--only", "return", test="")
    assert result.returncode == 1
    assert "fail without any mutant" in result.stderr


def test_the_list_names_mutants_and_runs_none(tmp_path: Path) -> None:
    result = run_sample(tmp_path, "--list", "--only", "return")
    assert result.stdout.splitlines() == [
        "sample.py count: return at → return None",
        "sample.py count: return at → pass",
    ]


@pytest.mark.long
def test_every_mutant_of_the_rules_is_killed_or_explained() -> None:
    command = [sys.executable, "tools/mutate.py"]
    result = subprocess.run(command, cwd=mutate.ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def _indented(source: str) -> str:
    return "\n".join(f"    {line}" for line in source.splitlines())
