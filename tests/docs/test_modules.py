"""The page about modules shows the module that a test runs on real brokers, and names all that a module may declare."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

from parley.application.module import Module
from parley.applications import DATA_SHARD, VARIABLE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "tests" / "application" / "reservations.py").read_text(encoding="utf-8")
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_example_is_the_module_that_is_tested() -> None:
    blocks = FENCE.findall(section("A module of one's own"))
    assert blocks
    assert [block for block in blocks if block not in EXAMPLE] == []


def test_the_example_is_complete_but_for_its_imports() -> None:
    shown = "".join(FENCE.findall(section("A module of one's own")))
    declared = [
        node.name
        for node in ast.parse(EXAMPLE).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert "Reserve" in declared
    assert [name for name in declared if not re.search(rf"^(class|def) {name}\b", shown, re.MULTILINE)] == []


def test_everything_that_a_module_may_declare_is_named() -> None:
    first_cells = re.findall(r"^\| ([a-z_, ]+) \|", section("What a module declares"), re.MULTILINE)
    named = {name for cell in first_cells for name in cell.split(", ")}
    assert named == {field.name for field in fields(Module)} - {"name"}


def test_the_modules_and_the_variable_are_those_of_the_code() -> None:
    assert VARIABLE in section("Using it")
    listed = {module.name for module in DATA_SHARD.modules} - {"host"}
    assert {name for name in listed if f"`{name}`" not in section("The host, the modules, the list")} == set()
