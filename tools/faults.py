"""Replays the faults that were put into the code by hand: each must fail a test, or is explained.

`mutate.py` makes small changes of one node. Many mistakes are larger: a check left out, two things confused. So faults are
also written by hand, in `tests/faults/*.toml`, with the tests that must notice them. A fault is put into a
copy of `src/`, which stands first on the path of the tests and of the processes that they start.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import msgspec

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "faults"

SECONDS = 300  # for the tests of one fault, on a busy machine
MEMORY = 8 * 2**30  # bytes of addresses: an endless loop that collects something ends here
_SHOWN = 3_000  # characters of what a failing run printed
_FAILED = 1  # what pytest returns if tests ran and failed; more than that: they could not run


# -- faults, and what can be said of them without a run --------------------------------------------------------------------


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`became` instead of `was` in a file. The tests must notice, or `why` says why none can."""

    name: str
    file: str
    was: str
    became: str
    tests: tuple[str, ...]
    why: str = ""

    def put(self, tree: Path) -> None:
        """Write the fault into a copy of the source, which must hold `was` once."""
        path = tree / self.file
        path.write_text(self._changed(path.read_text(encoding="utf-8")), encoding="utf-8")

    def _changed(self, source: str) -> str:
        return source.replace(self.was, self.became)

    def mistakes(self, tree: Path) -> Iterator[str]:
        """What is wrong with the entry itself."""
        path = tree / self.file
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (times := source.count(self.was)) != 1:
            yield f"`was` occurs {times} times in {self.file}"
        else:
            yield from self._wrong_code(source)
        if not self.tests:
            yield "no tests are named"
        for test in self.tests:
            if not _exists(tree, test):
                yield f"{test} does not exist"

    def _wrong_code(self, source: str) -> Iterator[str]:
        try:
            changed = ast.parse(self._changed(source), self.file)
            compile(changed, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            yield f"{self.file} does not compile: {error}"
        else:
            if ast.dump(changed) == ast.dump(ast.parse(source)):
                yield "it changes nothing"
            if unknown := sorted(_undefined(changed)):  # a crash would be noticed, not the fault
                yield f"it uses names that do not exist: {', '.join(unknown)}"


def _undefined(tree: ast.Module) -> set[str]:
    """Names that are read and bound nowhere in the module."""
    used, bound = set[str](), set(dir(builtins)) | {"__file__", "__name__"}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.AsyncFunctionDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.split(".")[0])
            case (
                ast.ExceptHandler(name=str() as name)
                | ast.MatchAs(name=str() as name)
                | ast.MatchStar(name=str() as name)
            ):
                bound.add(name)
            case _:
                pass
    return used - bound


def read(folder: Path) -> list[Fault]:
    """All faults of a folder, in the order of its files."""

    class Faults(msgspec.Struct, forbid_unknown_fields=True):
        fault: list[Fault]

    files = sorted(folder.glob("*.toml"))
    return [fault for file in files for fault in msgspec.toml.decode(file.read_bytes(), type=Faults).fault]


def mistakes(faults: Sequence[Fault], tree: Path) -> list[str]:
    """Entries that cannot be replayed as they are written, before anything is run."""
    names = Counter(fault.name for fault in faults)
    return [
        *(f"Two faults have one name: {name}" for name, times in names.items() if times > 1),
        *(f"{fault.name}: {mistake}" for fault in faults for mistake in fault.mistakes(tree)),
    ]


def _exists(tree: Path, test: str) -> bool:
    file, *names = test.split("[", maxsplit=1)[0].split("::")
    path = tree / file
    if not path.is_file():
        return False
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        found = [
            node
            for node in body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        if not found:
            return False
        body = found[-1].body
    return True


# -- runs of tests ----------------------------------------------------------------------------------------------------------


class Verdict(enum.Enum):
    """How the tests ended."""

    NOTICED = enum.auto()
    SURVIVED = enum.auto()
    NOT_RUN = enum.auto()
    NEVER_ENDED = enum.auto()


@dataclass(frozen=True)
class Task:
    """Tests, and the fault that they run against; none: the source as it is, and all of them must pass."""

    tests: tuple[str, ...]
    fault: Fault | None = None


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    printed: str


class _Run:
    """A process that runs the tests of one task against a copy of the source."""

    def __init__(self, task: Task, tree: Path, seconds: int) -> None:
        self.task = task
        self._folder = Path(tempfile.mkdtemp(prefix="parley-fault-"))
        shutil.copytree(tree / "src", self._folder / "src")
        if task.fault is not None:
            task.fault.put(self._folder)
        self._output: BinaryIO = (self._folder / "output").open("w+b")
        self._until = time.monotonic() + seconds
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *_OPTIONS, *(["-x"] if task.fault else []), *task.tests],
            cwd=tree,
            env=self._environment(),
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if hasattr(resource, "prlimit"):
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (MEMORY, MEMORY))

    def _environment(self) -> Mapping[str, str]:
        ours = ("COV_", "PARLEY_", "PYTEST_", "PYTHON", "HYPOTHESIS_")
        others = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        examples = str(self._folder / "examples")  # a counterexample of a fault is none of the code's
        return others | {
            "PYTHONPATH": str(self._folder / "src"),
            "HYPOTHESIS_STORAGE_DIRECTORY": examples,
        }

    def outcome(self) -> Outcome | None:
        """How the tests ended; None: not yet."""
        code = self._process.poll()
        if code is None and time.monotonic() < self._until:
            return None
        verdicts = {None: Verdict.NEVER_ENDED, 0: Verdict.SURVIVED, _FAILED: Verdict.NOTICED}
        self._output.seek(0)
        printed = self._output.read().decode(errors="replace")
        return Outcome(verdicts.get(code, Verdict.NOT_RUN), printed[-_SHOWN:])

    def close(self) -> None:
        """End it with the processes that it started, and remove the copy."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)


# Properties try the same examples in each run: what is noticed once is always noticed.
_OPTIONS = ("-q", "-n", "0", "-m", "not long", "-p", "no:cacheprovider", "--hypothesis-seed=0")


def run(
    tasks: Sequence[Task], tree: Path, jobs: int, seconds: int = SECONDS
) -> Iterator[tuple[Task, Outcome]]:
    """Run the tasks, some at the same time; yields each with its outcome when it ends."""
    waiting, running = list(reversed(tasks)), list[_Run]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_Run(waiting.pop(), tree, seconds))
            for started in list(running):
                if (outcome := started.outcome()) is not None:
                    running.remove(started)
                    started.close()
                    yield started.task, outcome
            time.sleep(0.05)
    finally:
        for started in running:
            started.close()


# -- the replay -------------------------------------------------------------------------------------------------------------


def unchanged(faults: Iterable[Fault]) -> list[Task]:
    """Runs without a fault of all tests that are named, one for each file of tests."""
    named: dict[str, set[str]] = defaultdict(set)
    for fault in faults:
        for test in fault.tests:
            named[test.split("::")[0]].add(test)
    return [Task((file,) if file in tests else tuple(sorted(tests))) for file, tests in sorted(named.items())]


def judge(task: Task, outcome: Outcome) -> str | None:
    """What is wrong with how a task ended."""
    fault, verdict = task.fault, outcome.verdict
    if fault is None:
        if verdict is Verdict.SURVIVED:
            return None
        return f"Do not pass without a fault ({verdict.name}): {' '.join(task.tests)}\n{outcome.printed}"
    match verdict:
        case Verdict.NOT_RUN | Verdict.NEVER_ENDED:
            return f"No answer ({verdict.name}): {fault.name}\n{outcome.printed}"
        case Verdict.SURVIVED if not fault.why:
            return f"Survived, and is not explained: {fault.name}"
        case Verdict.NOTICED if fault.why:
            return f"Explained, but a test fails: {fault.name}\n{outcome.printed}"
        case _:
            return None


def select(faults: Iterable[Fault], only: str) -> list[Fault]:
    """Those whose file and name contain or match the pattern."""
    names = {f"{fault.file}: {fault.name}": fault for fault in faults}
    return [fault for name, fault in names.items() if only in name or fnmatchcase(name, only)]


def replay(faults: Sequence[Fault], tree: Path, jobs: int, seconds: int = SECONDS) -> list[str]:
    """What is wrong: with the entries themselves, or else with what the tests noticed."""
    if found := mistakes(faults, tree):
        return found
    tasks = [*unchanged(faults), *(Task(fault.tests, fault) for fault in faults)]
    for ended, (task, outcome) in enumerate(run(tasks, tree, jobs, seconds), start=1):
        if (wrong := judge(task, outcome)) is not None:
            found.append(wrong)
        if sys.stderr.isatty():
            progress = f"\r{ended} of {len(tasks)} runs, {len(found)} to look at"
            print(progress, end="\n" if ended == len(tasks) else "", file=sys.stderr, flush=True)
    return found


def main(only: str, jobs: int, *, listed: bool, tree: Path = ROOT, folder: Path = FOLDER) -> int:
    """List or replay the faults that match, and print what is wrong."""
    faults = select(read(folder), only)
    if listed:
        print(*(f"{fault.file}: {fault.name}" for fault in faults), sep="\n")
        return 0
    # So that `run` ends its processes and removes their folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = replay(faults, tree, jobs)
    print(*found, sep="\n", end="\n" if found else "")
    explained = sum(bool(fault.why) for fault in faults)
    print(f"{len(faults)} faults by hand, {explained} of them explained; {len(found)} to look at")
    return 1 if found else 0
