"""The demo tells a true story, and it can be read on any terminal."""

import json
import re

from rich.console import Console
from typer.testing import CliRunner

from parley.cli import app as cli
from parley.cli import demo

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


def test_the_demo_holds_for_scripts_too() -> None:
    result = runner.invoke(cli.app, ["demo", "--json"])
    assert result.exit_code == 0
    outcome = json.loads(result.stdout)
    assert outcome["violations"] == []
    assert outcome["committed"] > 20
    assert outcome["evidence"]
