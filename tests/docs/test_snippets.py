"""What the pages tell a reader to type works: every `sh` and `python` block, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = ("README.md", "docs/quickstart.md")
PAGES = (*PROGRAMS, "docs/privacy.md")
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return [(kind, text) for kind, text in FENCE.findall((ROOT / page).read_text())]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Somewhere with a `./parley`, and a home of its own."""
    (tmp_path / "parley").symlink_to(ROOT / "parley")
    yield tmp_path
    if (tmp_path / ".parley").exists():
        subprocess.run(["./parley", "down"], cwd=tmp_path, env=environment(tmp_path), check=False)


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARLEY", "XDG_"))}
    return {**kept, "HOME": str(folder / "home"), "COLUMNS": "100"}


def run(kind: str, text: str, folder: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page: str, folder: Path) -> None:
    found = blocks(page)
    assert found, f"{page} has no block to run"
    for kind, text in found:
        run(kind, text, folder)


@pytest.mark.parametrize("page", PROGRAMS)
def test_a_page_with_a_program_says_how_to_run_it(page: str) -> None:
    assert "python" in {kind for kind, _ in blocks(page)}
    assert re.search(r"save this as `(.+\.py)` and run `\.venv/bin/python \1`", (ROOT / page).read_text())


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        name
        for page in pages
        for name in re.findall(r"(?:^|`|\$ )make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test", "setup"} <= named
    assert named <= targets
