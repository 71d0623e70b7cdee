"""The demo tells a true story, and it can be read on any terminal."""

import json
import re

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from parley.cli import app as cli
from parley.cli import demo, demo_liar, demo_records
from parley.spark.java import INSTALL

runner = CliRunner()


def told(width: int) -> str:
    story = demo._Story()
    report = story.play()
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(story.tell(report))
    return captured.get()


def test_the_crash_hits_a_write_of_the_safety_record_and_the_replica_comes_back() -> None:
    text = " ".join(told(120).split())
    assert "in the middle of writing down a vote" in text
    assert "has caught up" in text
    assert "no property was violated" in text


def test_the_leaders_stand_below_their_blocks_on_a_narrow_terminal() -> None:
    lines = told(80).splitlines()
    assert max(map(len, lines)) <= 80
    (blocks,) = [line for line in lines if line.startswith("  block")]
    (leaders,) = [line for line in lines if line.startswith("  leader")]
    assert [m.end() for m in re.finditer(r"[\dx]+", blocks)] == [
        m.end() for m in re.finditer(r"[A-G]", leaders)
    ]


def test_the_demo_holds_for_scripts_too_and_without_java_leaves_out_what_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # With it, the last chapter is told by tests/spark/test_pipeline.py.
    monkeypatch.setattr(demo, "find_java", lambda: None)
    result = runner.invoke(cli.app, ["demo", "--json"])
    assert result.exit_code == 0
    outcome = json.loads(result.stdout)
    assert INSTALL in outcome["pipeline"]["skipped"]
    assert outcome["violations"] == []
    assert outcome["committed"] > 20
    assert outcome["evidence"]
    records = outcome["records"]
    assert (records["lost"], records["doubled"], records["wrong_empties"]) == (0, 0, 0)
    assert records["equal_order"]
    assert records["proof_verified"]
    assert records["delivered"] == {"ben": 32, "eva": 24, "walter": 32}
    assert records["empties"] == {"ben": 0, "eva": 8, "walter": 0}
    liar = outcome["liar"]
    assert [(act["fault"], act["wrong"]) for act in liar["acts"]] == [
        ("forge", 0),
        ("withhold", 0),
        ("equivocate", 0),
    ]
    assert all(act["delivered"] == act["published"] for act in liar["acts"])
    assert all(liar["liar"] not in act["served_by"] for act in liar["acts"][:2])
    assert liar["proof"]["broker"] == liar["liar"]
    assert liar["proof"]["verified"]


def test_without_java_the_last_chapter_is_one_line_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "find_java", lambda: None)
    result = runner.invoke(cli.app, ["demo", "--chapter", "4"])
    assert result.exit_code == 0
    (line,) = result.stdout.split("\n")[1:-1]
    assert line.endswith(INSTALL)


def judged(**changes: object) -> demo_records.Outcome:
    fine = demo_records.Outcome(
        published=2,
        expected=1,
        delivered={"eva": 1},
        empties={"eva": 1},
        lost=0,
        doubled=0,
        equal_order=True,
        wrong_empties=0,
        proof_verified=True,
        caught_up=True,
        seconds=1.0,
    )
    return replace(fine, **changes)


@pytest.mark.parametrize(
    "change",
    [{"lost": 1}, {"doubled": 1}, {"wrong_empties": 1}, {"equal_order": False}, {"proof_verified": False}],
    ids=lambda change: next(iter(change)),
)
def test_a_story_that_went_wrong_is_not_told_as_one_that_holds(change: dict[str, object]) -> None:
    assert judged().holds
    assert not judged(**change).holds


def caught(**changes: object) -> demo_liar.Outcome:
    acts = [
        demo_liar.Act("forge", 3, 3, 0, "it is not the one that was published", "east-1", 0.1),
        demo_liar.Act("equivocate", 3, 3, 0, "", "south-1", 2.0),
    ]
    proof = demo_liar.Proof("south-1", 17, ["north-1", "east-1", "west-1"], verified=True)
    return replace(demo_liar.Outcome("south-1", acts, proof, 15.0), **changes)


@pytest.mark.parametrize(
    "change",
    [
        {"proof": None},
        {"proof": demo_liar.Proof("south-1", 17, ["north-1"], verified=False)},
        {"acts": [demo_liar.Act("forge", 3, 2, 0, "it is not", "east-1", 0.1)]},
        {"acts": [demo_liar.Act("forge", 3, 3, 1, "it is not", "east-1", 0.1)]},
        {"acts": [demo_liar.Act("forge", 3, 3, 0, "", "east-1", 0.1)]},
        {"acts": [demo_liar.Act("forge", 3, 3, 0, "it is not", "south-1", 0.1)]},
    ],
    ids=["no proof", "a false proof", "a lost message", "a wrong message", "not noticed", "not left"],
)
def test_a_liar_that_gets_away_with_it_is_no_story_that_holds(change: dict[str, object]) -> None:
    assert caught().holds
    assert not caught(**change).holds


@pytest.mark.parametrize("width", [80, 120])
def test_the_story_of_the_liar_says_who_lied_who_helped_and_what_the_proof_says(width: int) -> None:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(demo_liar.tell(caught()))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(captured.get().split())
    assert "it had the truth from east-1" in text
    assert "south-1 signed two proposals in view 17" in text
    assert "it holds" in text
    assert any("anna" in line and "north-1" in line for line in lines)
