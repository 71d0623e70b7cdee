"""Refusals are data, and every text about them is in the catalogue: no sentence is part of what a quorum certifies (P27)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest
from tests.application.histories import History

from parley.application.application import HOST
from parley.applications import DATA_SHARD
from parley.ledger.application import Results
from parley.model import refusals
from parley.model.refusals import DUPLICATE, OK, Busy, Refusal, Refused, Retry, Suspicion, classes
from parley.model.texts import Texts, key_of, known_texts, render, swapped
from parley.modules.topics.access import ADMINISTRATORS_ACTS
from parley.sim.scenario import run

SOURCE = Path(refusals.__file__).parents[1]
CATALOGUES = sorted(path for path in SOURCE.rglob("texts.py") if path.parent.name != "model")
# What a quota refuses: the words before `_of_organisation` and `_of_network`, the code, and fields that are added.
QUOTAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "clients": ("LimitExceeded", ()),
    "topics": ("LimitExceeded", ()),
    "staged": ("LimitExceeded", ()),
    "staged_own": ("LimitExceeded", ("until",)),
    "writers": ("LimitExceeded", ()),
    "sequences": ("Busy", ("not_after",)),
    "chunks": ("Busy", ("not_after",)),
}
# Those of them that keys have a part of, too.
OF_KEYS = {"sequences", "chunks"}
# Fields that are added by name where a refusal is made.
ADDED = {"LimitExceeded.staged_bytes_own": {"until"}}
# Texts of outcomes, which are no refusals.
OUTCOMES = {DUPLICATE, "Staged"}
MAKERS = {*classes(), "malformed", "refusal", "require_administrator", "reason_not_to_administer"}


@dataclass(frozen=True)
class Made:
    """A refusal that is made somewhere in the source. The reason is None if it is not written there."""

    code: str
    reason: str | None
    fields: frozenset[str]
    where: str


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(), str(path))))


def name_of(called: ast.expr) -> str:
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def words(node: ast.expr | None) -> list[str | None]:
    """The texts that an expression may give; None: some other."""
    match node:
        case None:
            return [""]
        case ast.Constant(value=str(word)):
            return [word]
        case ast.IfExp():
            return [*words(node.body), *words(node.orelse)]
        case _:
            return [None]


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            yield node, f"{path.relative_to(SOURCE)}:{node.lineno}"


def made_by(call: ast.Call, where: str, foreign: frozenset[str]) -> Iterator[Made]:
    """The refusals that one call makes, by itself or through a function that gives them a class."""
    name, arguments = name_of(call.func), call.args
    if name not in MAKERS:
        return
    fields = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    if name == "malformed":
        yield from (Made("Malformed", word, frozenset({"fault"}), where) for word in words(arguments[0]))
    elif name == "require_administrator":
        yield from (
            Made("PermissionDenied", word, frozenset({"organisation"}), where) for word in words(arguments[0])
        )
    elif name == "reason_not_to_administer":
        given = frozenset({"organisation", *fields})
        yield from (Made("PermissionDenied", word, given, where) for word in words(arguments[1]))
    elif name not in foreign:
        for word in words(arguments[0] if arguments else None):
            yield Made(name, word, frozenset(fields), where)


@cache
def foreign_names(path: Path) -> frozenset[str]:
    """Classes of the same name as a refusal that a file has from elsewhere."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            known = (node.module or "").rpartition(".")[2] in {"refusals", "errors"}
            elsewhere = not known or node.module == "parley.consensus.errors"
            found |= {alias.asname or alias.name for alias in node.names if elsewhere}
        if isinstance(node, ast.ClassDef) and path.name not in {"refusals.py", "errors.py"}:
            found.add(node.name)
    return frozenset(found)


def all_made() -> list[Made]:
    return [
        one
        for path in sorted(SOURCE.rglob("*.py"))
        for call, where in calls(path)
        for one in made_by(call, where, foreign_names(path))
    ]


@cache
def written() -> list[Made]:
    """All that the source makes; where a reason follows from something else, with all that it can be."""
    found: list[Made] = []
    for one in all_made():
        if one.reason is not None:
            found.append(one)
        elif one.where.startswith("application/quotas.py:"):
            found += made_by_quotas(one)
        elif one.where.startswith("modules/topics/access.py:"):
            found += [Made(one.code, act, one.fields, one.where) for act in ADMINISTRATORS_ACTS.values()]
        else:  # these pass on a reason that their callers name
            assert one.where.startswith(("model/refusals.py:", "model/principals.py:")), one
    return found


def made_by_quotas(one: Made) -> Iterator[Made]:
    """What a call in `Quota` makes of each quota; which of the three it is shows in its fields."""
    whose = "key" if "held" in one.fields else "organisation" if "organisation" in one.fields else "network"
    for word, (code, added) in QUOTAS.items():
        if whose != "key" or word in OF_KEYS:
            yield Made(code, f"{word}_of_{whose}", one.fields | set(added), one.where)


def texts() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in CATALOGUES:
        module = import_module("parley." + ".".join(path.relative_to(SOURCE).with_suffix("").parts))
        catalogue: Texts = module.TEXTS
        assert not catalogue.keys() & found.keys(), f"{path} says again what another catalogue says"
        found |= catalogue
    return found


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


# -- codes ------------------------------------------------------------------------------------------------------------


def test_a_code_without_properties_cannot_be_written_down() -> None:
    with pytest.raises(TypeError, match="retry"):
        type("Unheard", (Refused,), {})
    with pytest.raises(TypeError, match="status"):
        type("Unheard", (Refused,), {}, retry="never")
    assert "Unheard" not in classes()


@pytest.mark.parametrize("code", sorted(classes()))
def test_a_code_says_what_it_means(code: str) -> None:
    kind = classes()[code]
    assert kind.code == kind.__name__ == code
    assert kind.retry in get_args(Retry)
    assert kind.suspicion in get_args(Suspicion)
    assert 400 <= kind.status < 600
    assert kind.__doc__
    assert kind.final or kind.retry in {"later", "changed"}, "what is not final may be applied yet"
    assert kind.settles or not kind.final, "what waits to be ordered again is not decided"


def test_a_code_belongs_to_the_model_or_to_one_module() -> None:
    declared = [kind for module in DATA_SHARD.modules for kind in module.refusals]
    assert len(set(declared)) == len(declared)
    ours = {kind for kind in classes().values() if kind.__module__.startswith("parley.")}
    assert {kind for kind in ours if kind.__module__ != refusals.__name__} == set(declared)


def test_a_code_travels_with_reason_and_fields() -> None:
    error = Busy("connections", limit=3, client="a/b", digest=b"\x01\xff")
    assert error.data == Refusal("Busy", "connections", (("client", "a/b"), ("digest", "01ff"), ("limit", 3)))
    again = error.data.error()
    assert type(again) is Busy
    assert (again.data, again.fields, str(again)) == (error.data, error.fields, str(error))


# -- texts ------------------------------------------------------------------------------------------------------------


def test_every_code_has_a_text() -> None:
    with_text = {key.partition(".")[0] for key in texts()}
    ours = {code for code, kind in classes().items() if kind.__module__.startswith("parley.")}
    assert with_text == ours | OUTCOMES


def test_every_refusal_that_is_made_has_a_text_with_its_fields() -> None:
    known, faults = texts(), []
    for one in written():
        assert one.reason is not None
        key = key_of(one.code, one.reason)
        if key not in known:
            faults.append(f"{one.where}: {key} has no text")
        elif missing := placeholders(known[key]) - one.fields - ADDED.get(key, set()):
            faults.append(f"{one.where}: the text of {key} names {sorted(missing)}, which are not given")
    assert not faults


def test_every_text_is_used() -> None:
    used = {key_of(one.code, one.reason or "") for one in written()} | OUTCOMES
    assert texts().keys() - used == set()


def test_texts_of_outcomes_have_their_fields() -> None:
    rendered = [
        (set(map(ast.unparse, fields.keys)), where)  # type: ignore[arg-type]
        for path in sorted(SOURCE.rglob("receipts.py"))
        for call, where in calls(path)
        for fields in call.args[2:]
        if name_of(call.func) == "render" and isinstance(fields, ast.Dict)
    ]
    assert len(rendered) == len(OUTCOMES)
    for code in OUTCOMES:
        names = {repr(name) for name in placeholders(texts()[code])}
        assert any(names <= given for given, _ in rendered)


def test_quotas_that_are_asked_are_those_that_have_texts() -> None:
    asked = [
        (words(call.args[-1])[0] or "")
        for folder in ("application", "modules")
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for call, _ in calls(path)
        if name_of(call.func) == "Quota" and call.args
    ]
    assert len(asked) == len(QUOTAS)
    assert set(asked) - {""} <= set(QUOTAS)


def test_the_applications_texts_are_known_and_those_of_its_modules() -> None:
    assert DATA_SHARD.texts.items() <= known_texts().items()
    for module in DATA_SHARD.modules:
        if module is not HOST:
            assert module.texts.items() <= texts().items()


def test_a_text_shows_as_much_of_a_field_as_it_says() -> None:
    with swapped({"Busy.test": "{key:.4} of {limit}, {what!r}"}):
        assert render("Busy", "test", {"key": "0123456789", "limit": 7, "what": "x"}) == "0123 of 7, 'x'"
        assert render("Busy", "test", {"limit": 7}) == "test (limit 7)"  # of another version
    assert render("Busy", "test", {}) == "test"
    assert render("Nothing", "", {}) == "refused"


# -- another language --------------------------------------------------------------------------------------------------


def in_another_language() -> dict[str, str]:
    return {
        key: f"übersetzt: {''.join(map('{{{}}}'.format, placeholders(text)))}"
        for key, text in texts().items()
    }


def results_of(seed: int) -> tuple[list[Results], list[str]]:
    """What a history gives, and what people read of it."""
    history = History(seed)
    for batches, time in history.blocks(30):
        history.world.apply(*batches, time=time)
    leaves = [DATA_SHARD.decode_leaf(leaf) for one in history.world.outcomes for leaf in one.leaves]
    details = [detail for leaf in leaves if (detail := leaf.row().get("detail")) is not None]
    return history.world.outcomes, [str(detail) for detail in details]


@pytest.mark.parametrize("seed", range(4))
def test_in_another_language_every_root_receipt_and_leaf_is_the_same(seed: int) -> None:
    results, details = results_of(seed)
    with swapped(in_another_language()):
        others, read = results_of(seed)
    assert others == results  # roots, writes, receipts and leaves, to the last bit
    assert {receipt.code for one in results for receipt in one.receipts} > {OK, DUPLICATE}
    assert len(read) == len(details) > 20
    assert all(one.startswith("übersetzt: ") for one in read)
    assert not any(one.startswith("übersetzt: ") for one in details)


@pytest.mark.parametrize("seed", [1, 2])
def test_in_another_language_a_simulated_network_has_the_same_trace(seed: int) -> None:
    """The hash is over every event of every broker: what is sent, stored, certified and reported."""
    expected = run(4, 1, seed, application="pubsub").trace_hash
    with swapped(in_another_language()):
        assert run(4, 1, seed, application="pubsub").trace_hash == expected
