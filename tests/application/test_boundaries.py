"""Knowledge has one place: what modules declare is not spelled out again elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.applications import DATA_SHARD
from parley.ledger import layout
from parley.model import receipts

SOURCE = Path(__file__).parents[2] / "src" / "parley"
# Packages that may look into operations, outcomes and leaves: those that declare them and those that run them.
INSIDE = ("modules", "application", "model/receipts.py")
KINDS = {
    kind.__name__ for kind in (*DATA_SHARD.operations.values(), *DATA_SHARD.outcomes, *DATA_SHARD.leaf_kinds)
} | {"BatchReceipt", "Operation", "Outcome", "Leaf"}
DECLARED_IN = ("parley.modules", "parley.application", "parley.model.receipts")
PREFIXES = tuple(f"{name}/".encode() for name in DATA_SHARD.tables)
MARKS = (layout.APPLICATION, layout.ENTRIES, layout.NODES, layout.INDICES)


def files() -> Iterator[Path]:
    for path in sorted(SOURCE.rglob("*.py")):
        if not path.relative_to(SOURCE).as_posix().startswith(INSIDE):
            yield path


def found_in(path: Path) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{line}: {what}" for line, what in faults(ast.parse(path.read_text()))
    ]


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    declared = _imported(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                for name in _names(kinds) & declared:
                    yield node.lineno, f"isinstance over {name}"
            case ast.MatchClass(cls=kind):
                for name in _names(kind) & declared:
                    yield kind.lineno, f"match over {name}"
            case ast.Constant(value=bytes() as value) if value.startswith(PREFIXES):
                yield node.lineno, f"prefix literal {value!r}"
            case ast.BinOp(left=ast.Constant(value=bytes() as mark), op=ast.Add()) if mark in MARKS:
                yield node.lineno, f"mark of the store's layout {mark!r}"
            case ast.Subscript(value=ast.Name(id="key"), slice=ast.Slice() as cut) if _is_counted(cut):
                yield node.lineno, "slice of a key"
            case _:
                pass


def _imported(tree: ast.Module) -> set[str]:
    """The names in this file that are operations, outcomes or leaves."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(DECLARED_IN)
        for alias in node.names
        if alias.name in KINDS
    }


def _names(node: ast.AST) -> set[str]:
    """All names in an expression: a class, a union or a tuple of classes, a class of a module."""
    found = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _is_counted(cut: ast.Slice) -> bool:
    """By a number of bytes, so that it knows how keys are packed."""
    bounds = [bound for bound in (cut.lower, cut.upper) if bound is not None]
    return any(isinstance(one, ast.Constant | ast.UnaryOp) for one in bounds)


def test_outside_modules_nothing_looks_into_operations_outcomes_leaves_or_keys() -> None:
    assert [found for path in files() for found in found_in(path)] == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (
            "from parley.modules.topics.operations import CreateTopic\nisinstance(x, CreateTopic | int)",
            "isinstance",
        ),
        ("from parley.modules.staging.receipts import Staged\nmatch x:\n  case Staged(): pass", "match"),
        ("from parley.model.receipts import BatchReceipt as R\nisinstance(x, (int, R))", "isinstance"),
        ('key = b"topic/" + name', "prefix"),
        ('store.get(b"s/" + key)', "mark"),
        ("client = key[-32:]", "slice"),
    ],
)
def test_the_search_finds_what_it_looks_for(source: str, what: str) -> None:
    assert any(what in found for _, found in faults(ast.parse(source)))


def test_the_names_of_what_is_looked_for_are_those_of_the_application() -> None:
    assert {"CreateTopic", "Published", "Match", "Closed", "Rejected", "BatchReceipt"} <= KINDS
    assert receipts.BatchReceipt.__name__ in KINDS
    assert b"topic/" in PREFIXES
