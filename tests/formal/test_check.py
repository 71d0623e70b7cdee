"""`formal/check.py` and the page about it, as far as they go without Spin."""

import re

import pytest
from formal.check import CHECKS, HERE, main
from formal.trace import Certified, Proposed, Trace, parse, resolve

CONSENSUS = HERE.parent / "src" / "parley" / "consensus"
PAGE = (HERE / "README.md").read_text(encoding="utf-8")
RULES = re.findall(r"\| `([a-z]+\.py)`: `([^`]+)` \|", PAGE)


def test_checks_have_names_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [check.name for check in CHECKS]
    assert len(set(listed)) == len(listed)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["--quick"]) == 2
    assert "apt-get install -y spin gcc" in capsys.readouterr().err


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["no-such-check"])


def test_exchanged_members_get_their_names_back() -> None:
    output = """
        timeout r=3 view=1 qc=0
        timeout r=0 view=1 qc=0
        swap r=0 with=1
        timeout r=0 view=1 qc=0
        swap r=1 with=2
        propose b=3 view=2 parent=0 tc=1 by=0
        vote r=2 b=3
        qc b=3
        commit b=1
        """
    assert resolve(output, {"V": "2"}, seed=7).splitlines() == [
        "# voting.pml V=2 seed=7",
        "timeout r=3 view=1 qc=0",
        "timeout r=0 view=1 qc=0",
        "timeout r=1 view=1 qc=0",
        "propose b=3 view=2 parent=0 tc=1 by=0,1,3",
        "vote r=0 b=3",
        "qc b=3",
        "commit b=1",
    ]


def test_a_trace_is_read_as_it_was_written() -> None:
    trace: Trace = parse(
        "# voting.pml V=3 BYZ=2 DEPTH=3\npropose b=1 view=1 parent=0 tc=0 by=-\nqc b=1\ncommit b=1\nend violated=4\n"
    )
    assert trace.steps == [Proposed(1, 1, 0, 0, ()), Certified(1, 1)]
    assert (trace.views, trace.depth, list(trace.honest), trace.violated) == (3, 3, [0, 1], 4)


@pytest.mark.parametrize(("module", "line"), RULES)
def test_every_rule_on_the_page_is_in_the_code(module: str, line: str) -> None:
    assert line in (CONSENSUS / module).read_text(encoding="utf-8")


def test_the_page_names_every_rule_of_the_model() -> None:
    assert len(RULES) == 10
    model = (HERE / "voting.pml").read_text(encoding="utf-8")
    for name in re.findall(r"^\| `([A-Za-z_]+)` \|", PAGE, re.MULTILINE):
        assert re.search(rf"^(#define|inline) {name}\(", model, re.MULTILINE)
