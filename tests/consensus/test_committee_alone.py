"""No module but the committee's own knows who is a member, or how members' signatures are checked (P28)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "parley"
COMMITTEE = "consensus/committee.py"
MADE_HERE = {"Instance", "Ed25519List", "Ed25519Signer"}
# The ceremony makes the list of brokers, and the genesis file's own module checks it.
LISTS_BROKERS = {COMMITTEE, "model/genesis.py", "cli/ceremony.py", "cli/ceremony_commands.py"}


def knowledge(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where an instance or a scheme is made, and where the brokers of a genesis file are looked at."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in MADE_HERE:
                yield node.lineno, f"{name}("
            case ast.Attribute(attr="brokers", value=ast.Name(id="genesis") | ast.Attribute(attr="genesis")):
                yield node.lineno, "genesis.brokers"
            case ast.Attribute(attr="brokers", value=ast.Call(func=ast.Name(id="read_genesis"))):
                yield node.lineno, "genesis.brokers"
            case _:
                pass


def allowed(path: str, what: str) -> bool:
    return path == COMMITTEE or (what == "genesis.brokers" and path in LISTS_BROKERS)


def test_only_the_committees_module_makes_instances_and_schemes_and_lists_members() -> None:
    found = {
        f"{name}:{line}: {what}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, what in knowledge(ast.parse(path.read_text()))
        if not allowed(name := path.relative_to(SOURCE).as_posix(), what)
    }
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "Instance(chain, 0, 0, 4, 1)",
        "types.Instance(chain, 0, 0, 4, 1)",
        "qc.Ed25519List(keys)",
        "Ed25519Signer(0, key)",
        "len(genesis.brokers)",
        "self._config.genesis.brokers[0]",
        "read_genesis(path).brokers",
    ],
)
def test_what_is_looked_for_is_found(text: str) -> None:
    assert len(list(knowledge(ast.parse(text)))) == 1
