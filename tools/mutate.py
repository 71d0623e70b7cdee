"""Mutation testing of the rules that safety rests on: every small fault put into them must fail a test, or be explained.

A mutant is the syntax tree of one module with one node changed. It is never written to disk: a forked process puts it in
the place of the module when the tests import it. A survivor is a missing test, unless `tests/mutants.toml` says why the
change cannot matter. Names hold no line numbers, so an explanation outlives edits elsewhere.

With `--by-hand` the faults of `tests/faults/` are replayed instead: see `faults.py`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import enum
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import CodeType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools import faults as hand_written

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "tests" / "mutants.toml"

MEMORY = 4 * 2**30  # bytes; an endless loop that collects something ends here


# -- what is mutated, and what must notice --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killer:
    """A command that fails when it notices a mutant: what follows `python -m`, and the CPU seconds after which it loops."""

    command: tuple[str, ...]
    seconds: int = 20


@dataclass(frozen=True)
class Target:
    """A module, and its killers: the quickest to notice first, for the first that fails is the last to run."""

    module: str
    source: Path
    killers: tuple[Killer, ...]


def tests(*files: str) -> Killer:
    already_imported = "ignore::pytest.PytestAssertRewriteWarning"
    return Killer(
        ("pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", "-W", already_imported, *files)
    )


# The ordering core is held by its own tests. A campaign that attacks whole networks is one more killer at the end.
TARGETS = tuple(
    Target(
        f"parley.consensus.{name}",
        ROOT / "src" / "parley" / "consensus" / f"{name}.py",
        tuple(
            tests(*(f"tests/consensus/test_{part}.py" for part in parts))
            for parts in ([name], ["machine"], ["traps"], ["proposer", "record", "bad_input"])
        ),
    )
    for name in ("safety", "forest")
)


# -- mutants --------------------------------------------------------------------------------------------------------------


Key = tuple[str, str, str]


@dataclass(frozen=True)
class Mutant:
    """One change: `became` instead of `was`, made by giving a field of one node another value."""

    where: str
    was: str
    became: str
    holder: ast.AST = field(compare=False, repr=False)
    attribute: str = field(compare=False, repr=False)
    value: object = field(compare=False, repr=False)

    @property
    def key(self) -> Key:
        return self.where, self.was, self.became

    @property
    def name(self) -> str:
        return f"{self.where}: {self.was} → {self.became}"

    def apply(self) -> None:
        """Change the tree that the mutant was found in."""
        setattr(self.holder, self.attribute, self.value)


def mutants(tree: ast.Module, file: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    found: list[Mutant] = []
    times: Counter[Key] = Counter()
    for place in _places(tree, _Clause(tree), ""):
        for variant in _variants(place.node):
            was, became = place.describe(variant)
            key = (f"{file} {place.scope}".strip(), was, became)
            times[key] += 1
            where = key[0] if times[key] == 1 else f"{key[0]} #{times[key]}"
            found.append(Mutant(where, was, became, place.holder, place.attribute, place.holding(variant)))
    return found


_SWAPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq, ast.Lt, ast.Gt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}


def _variants(node: ast.AST) -> Iterator[ast.AST | None]:
    """What may stand in place of a node; None: nothing."""
    match node:
        case ast.stmt():
            yield from _statements(node)
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp():
            yield from _conditions(node)
        case ast.keyword(arg=str()):
            yield None
        case ast.comprehension(ifs=conditions):
            for rest in _without_one(conditions):
                yield _with(node, ifs=rest)
        case _:
            yield from _values(node)


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=value):
            if not isinstance(value, ast.Constant | None):
                yield _with(node, value=ast.Constant(None))
            yield ast.Pass()
        case ast.If() | ast.While() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.FunctionDef() | ast.ClassDef() | ast.If() | ast.For() | ast.While() | ast.Pass():
            return
        case _:
            yield ast.Pass()


def _conditions(node: ast.Compare | ast.BoolOp | ast.UnaryOp) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                for other in _SWAPS[type(op)]:
                    yield _with(node, ops=[*ops[:at], other(), *ops[at + 1 :]])
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for rest in _without_one(values):
                yield rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case _:
            return


def _values(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield _with(node, value=not value)
        case ast.Constant(value=int() as value):
            yield _with(node, value=value + 1)
            if value > 0:
                yield _with(node, value=value - 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            yield _with(node, op=ast.Sub() if isinstance(op, ast.Add) else ast.Add())
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Slice(lower=lower, upper=upper):
            yield _with(node, lower=upper, upper=lower)
            yield _with(node, lower=None, upper=None)
        case ast.List(elts=elements) | ast.Set(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()):
            for rest in _without_one(elements) if len(elements) > 1 else ():
                yield _with(node, elts=rest)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            yield _with(node, func=ast.Name("max" if name == "min" else "min", ast.Load()))
            yield from args if len(args) > 1 else ()
        case ast.Call(func=ast.Name(id="sorted"), args=[unsorted, *_]):
            yield unsorted
        case _:
            return


def _without_one(values: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for at in range(len(values)):
        yield values[:at] + values[at + 1 :]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


# -- places in a tree, and their names ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Clause:
    """The part of the source that names a mutant: a statement without its body, or one keyword argument of a call."""

    node: ast.AST
    call: ast.Call | None = None

    def text(self, node: ast.AST | None) -> str:
        if self.call is not None:
            others = ["…"] if len(self.call.args + self.call.keywords) > 1 else []
            arguments = others if node is None else [*others, ast.unparse(node)]
            return f"{ast.unparse(self.call.func)}({', '.join(arguments)})"
        assert node is not None, "only a keyword argument is replaced by nothing"
        if isinstance(node, ast.stmt) and hasattr(node, "body"):
            node = _with(node, body=[ast.Pass()], **({"orelse": []} if hasattr(node, "orelse") else {}))
        return " ".join(ast.unparse(ast.fix_missing_locations(node)).removesuffix("pass").split()) or "pass"


@dataclass(frozen=True)
class _Place:
    node: ast.AST
    holder: ast.AST
    attribute: str
    index: int | None
    clause: _Clause
    scope: str

    def holding(self, variant: ast.AST | None) -> object:
        """The value of the holder's field with the variant in place of the node."""
        if self.index is None:
            return variant
        values = list(getattr(self.holder, self.attribute))
        values[self.index : self.index + 1] = [] if variant is None else [variant]
        return values

    def describe(self, variant: ast.AST | None) -> tuple[str, str]:
        was = self.clause.text(self.clause.node)
        if self.clause.node is self.node:
            return was, self.clause.text(variant)
        original = getattr(self.holder, self.attribute)
        setattr(self.holder, self.attribute, self.holding(variant))
        became = self.clause.text(self.clause.node)
        setattr(self.holder, self.attribute, original)
        return was, became


def _places(holder: ast.AST, clause: _Clause, scope: str) -> Iterator[_Place]:
    for name, value in ast.iter_fields(holder):
        if name in ("annotation", "returns"):
            continue
        for at, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or _says_nothing(node):
                continue
            inner, inner_scope = clause, scope
            if isinstance(node, ast.stmt):
                inner = _Clause(node)
            elif isinstance(node, ast.keyword) and isinstance(holder, ast.Call):
                inner = _Clause(node, holder)
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                inner_scope = f"{scope}.{node.name}".removeprefix(".")
            yield _Place(node, holder, name, at if isinstance(value, list) else None, inner, inner_scope)
            yield from _places(node, inner, inner_scope)


def _says_nothing(node: ast.AST) -> bool:
    """Docstrings, imports and lists of names: without a rule in them."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case _:
            return False


# -- running them ---------------------------------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """How the killers ended."""

    KILLED = enum.auto()
    NEVER_ENDED = enum.auto()
    SURVIVED = enum.auto()


class _Substitute(importlib.machinery.SourceFileLoader):
    """Finds one module, and loads it from a tree in memory."""

    def __init__(self, target: Target, tree: ast.Module) -> None:
        super().__init__(target.module, str(target.source))
        self._code = compile(ast.fix_missing_locations(tree), str(target.source), "exec", dont_inherit=True)

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def get_code(self, _name: str) -> CodeType:
        return self._code


def start(target: Target, tree: ast.Module, mutant: Mutant | None, output: int) -> int:
    """Fork a process that runs the killers against the mutant; returns its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = _attack(target, tree, mutant)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def verdict(status: int) -> Verdict:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        return Verdict.NEVER_ENDED
    return Verdict.KILLED if code else Verdict.SURVIVED


def _attack(target: Target, tree: ast.Module, mutant: Mutant | None) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if mutant is not None:
        mutant.apply()
    substitute = _Substitute(target, tree)
    sys.meta_path.insert(0, substitute)
    for killer in target.killers:
        limit = int(time.process_time()) + killer.seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        if code := _run(killer):
            return code
    return 0 if getattr(sys.modules.get(target.module), "__loader__", None) is substitute else 1


def _run(killer: Killer) -> int:
    sys.argv = list(killer.command)
    try:
        runpy.run_module(killer.command[0], run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return int(ending.code or 0)
    return 0


def prepare() -> None:
    """Import once what every mutant needs, and let properties stop at the first counterexample, the same each time."""
    os.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith(("COV_", "PARLEY_", "PYTEST_"))]:
        del os.environ[name]
    for module in ("hypothesis.stateful", "msgspec", "pytest"):
        importlib.import_module(module)
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        deadline=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")


def require_success(target: Target, tree: ast.Module) -> None:
    """Killers that fail without any mutant would kill them all. Asked before and after: files may change meanwhile."""
    with tempfile.TemporaryFile() as output:
        _, status = os.waitpid(start(target, tree, None, output.fileno()), 0)
        if verdict(status) is not Verdict.SURVIVED:
            output.seek(0)
            print(output.read().decode(), file=sys.stderr)
            sys.exit(f"The killers of {target.module} fail without any mutant: make them pass first.")


def campaign(target: Target, only: str, jobs: int) -> dict[Mutant, Verdict]:
    """The verdicts on the selected mutants of one module, in the order of its text."""
    tree, selected = read(target, only)
    if not selected:
        return {}
    require_success(target, tree)
    silence = os.open(os.devnull, os.O_WRONLY)
    waiting, running = selected[::-1], dict[int, Mutant]()
    verdicts: dict[Mutant, Verdict] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            running[start(target, tree, mutant, silence)] = mutant
        pid, status = os.wait()
        verdicts[running.pop(pid)] = verdict(status)
        if sys.stderr.isatty():
            survived = list(verdicts.values()).count(Verdict.SURVIVED)
            progress = f"{target.source.name}: {len(verdicts)} of {len(selected)}, {survived} survived"
            print(f"\r{progress}", end="" if waiting or running else "\n", file=sys.stderr, flush=True)
    require_success(target, tree)
    return {mutant: verdicts[mutant] for mutant in selected}


def read(target: Target, only: str = "*") -> tuple[ast.Module, list[Mutant]]:
    """The tree of a module, and those of its mutants whose names match."""
    tree = ast.parse(target.source.read_text(encoding="utf-8"))
    return tree, [m for m in mutants(tree, target.source.name) if only in m.name or fnmatchcase(m.name, only)]


# -- what survived, and what is said about it -----------------------------------------------------------------------------


def explanations(file: Path) -> dict[Key, str]:
    """The reasons why survivors do not matter."""
    survivors = tomllib.loads(file.read_text(encoding="utf-8"))["survivor"]
    return {(entry["where"], entry["was"], entry["became"]): entry["why"] for entry in survivors}


def faults(
    explained: Mapping[Key, str], existing: Collection[Key], verdicts: Mapping[Mutant, Verdict]
) -> list[str]:
    """Survivors that nobody explained, and explanations that explain nothing any more."""
    judged = {mutant.key: outcome for mutant, outcome in verdicts.items()}
    survivors = [key for key, outcome in judged.items() if outcome is Verdict.SURVIVED]
    return [
        *(f"Survived, and is not explained:\n{stanza(key)}" for key in survivors if not explained.get(key)),
        *(f"Explained, but does not exist:\n{stanza(key)}" for key in explained if key not in existing),
        *(
            f"Explained, but a test fails:\n{stanza(key)}"
            for key in explained
            if judged.get(key, Verdict.SURVIVED) is not Verdict.SURVIVED
        ),
    ]


def stanza(key: Key) -> str:
    """A mutant as the file of explanations names it."""
    where, was, became = (json.dumps(text, ensure_ascii=False) for text in key)
    return f"[[survivor]]\nwhere = {where}\nwas = {was}\nbecame = {became}\n"


def main(arguments: Sequence[str], targets: Sequence[Target] = TARGETS, file: Path = EXPLAINED) -> int:
    parser = argparse.ArgumentParser(
        description="Put small faults into the rules of consensus; the tests must notice."
    )
    parser.add_argument("--by-hand", action="store_true", help="replay the faults written in tests/faults")
    parser.add_argument("--list", action="store_true", help="name the mutants or faults and run none")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="those whose names contain or match this"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time (2)")
    options = parser.parse_args(arguments)
    if options.by_hand:
        return hand_written.main(options.only, options.jobs, listed=options.list)
    if options.list:
        for target in targets:
            print(*(mutant.name for mutant in read(target, options.only)[1]), sep="\n")
        return 0
    prepare()
    verdicts: dict[Mutant, Verdict] = {}
    for target in targets:
        verdicts |= campaign(target, options.only, options.jobs)
    existing = {mutant.key for target in targets for mutant in read(target)[1]}
    found = faults(explanations(file), existing, verdicts)
    print(*found, sep="\n", end="\n" if found else "")
    count = Counter(verdicts.values())
    print(
        f"{len(verdicts)} mutants: {count[Verdict.KILLED] + count[Verdict.NEVER_ENDED]} killed "
        f"({count[Verdict.NEVER_ENDED]} by the time limit), {count[Verdict.SURVIVED]} survived; {len(found)} faults"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
