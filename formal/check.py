"""Runs Spin on `voting.pml`: each check has an expected outcome, and the exit code says whether all were met.

python formal/check.py [--quick] [--list] [--record] [name ...]
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from formal.trace import resolve  # noqa: E402

__all__ = ["CHECKS", "Check", "Result", "main", "missing_tools", "simulate"]

MODEL = HERE / "voting.pml"
TRACES = HERE / "traces"
PATIENCE = 900  # seconds that one search may take
MEMORY = 6 * 2**30  # bytes of address space; Spin itself stops at 4 000 MiB of states

HOLDS, VIOLATED, UNFINISHED = "holds", "violated", "unfinished"


@dataclass(frozen=True)
class Check:
    """One search, exhaustive unless `minutes` are given: then a random one in hashed memory, for so long."""

    name: str
    macros: str
    expected: str
    quick: bool = False
    minutes: int = 0


@dataclass(frozen=True)
class Result:
    outcome: str
    states: int
    depth: int
    seconds: float
    trail: str = ""


CHECKS = (
    # One liar among four: what is promised.
    Check("free-4", "V=4", HOLDS, quick=True),
    Check("free-4-three-chain", "V=4 DEPTH=3", HOLDS, quick=True),
    Check("free-5", "V=5", HOLDS),
    Check("free-5-three-chain", "V=5 DEPTH=3", HOLDS),
    Check("free-8-sampled", "V=8", HOLDS, minutes=2),
    Check("ordered-7", "V=7 ORDERED", HOLDS, quick=True),
    Check("ordered-7-three-chain", "V=7 DEPTH=3 ORDERED", HOLDS, quick=True),
    Check("ordered-12", "V=12 ORDERED", HOLDS),
    Check("ordered-11-three-chain", "V=11 DEPTH=3 ORDERED", HOLDS),
    Check("literal-1", "V=1 LITERAL", HOLDS),
    # Two liars among four: beyond the promise, and the model must see it.
    Check("two-liars", "V=2 BYZ=2 SEEK=4", VIOLATED, quick=True),
    Check("two-liars-three-chain", "V=3 DEPTH=3 BYZ=2 SEEK=4", VIOLATED),
    # One rule less: the rules that safety rests on.
    Check("parent-only-commit", "V=4 PARENT_ONLY_COMMIT SEEK=4", VIOLATED, quick=True),
    Check("parent-only-commit-three-chain", "V=6 DEPTH=3 PARENT_ONLY_COMMIT SEEK=4 ORDERED", VIOLATED),
    Check("no-tc-check", "V=3 NO_TC_CHECK", VIOLATED, quick=True),
    Check("no-lock", "V=3 NO_LOCK", VIOLATED),
    Check("vote-after-timeout", "V=3 VOTE_AFTER_TIMEOUT", VIOLATED),
    Check("vote-twice", "V=1 VOTE_TWICE LITERAL", VIOLATED),
    # One rule less: the rules that only keep views in step.
    Check("timeout-behind-vote", "V=4 TIMEOUT_BEHIND_VOTE", HOLDS),
    Check("timeout-anywhere", "V=4 TIMEOUT_ANYWHERE", HOLDS),
)

# Random walks that stop early, midway and late, and walks that waste no step: (macros, seeds) of formal/traces.
WALKS = (
    ("V=5 LITERAL STEPS=12", range(1, 7)),
    ("V=5 LITERAL STEPS=25", range(11, 19)),
    ("V=6 LITERAL STEPS=80", range(21, 33)),
    ("V=6 DEPTH=3 LITERAL STEPS=80", range(41, 49)),
    ("V=6 LITERAL STEPS=50", range(77, 89)),
    ("V=7", range(51, 59)),
    ("V=7 DEPTH=3", range(61, 69)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.list:
        for check in CHECKS:
            print(f"{check.name:32} {check.macros:48} {check.expected}")
        return 0
    if missing := missing_tools():
        print(
            f"This needs {' and '.join(missing)}. On Debian and Ubuntu: apt-get install -y {' '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    if options.record:
        return _record()
    chosen = [check for check in CHECKS if check.name in options.names or not options.names]
    met = [_report(check) for check in chosen if check.quick or not options.quick]
    print(f"{sum(met)} of {len(met)} checks as expected")
    return 0 if all(met) else 1


def missing_tools() -> list[str]:
    """The Debian packages of what is not there."""
    return [
        package for package, program in (("spin", "spin"), ("gcc", "cc")) if shutil.which(program) is None
    ]


def simulate(macros: str, seed: int) -> str:
    """A random walk of the model, as a trace file."""
    output = _run(["spin", "-T", f"-n{seed}", *_flags(macros), str(MODEL)], HERE).stdout
    return resolve(output, _as_dict(macros), seed=seed)


def run(check: Check) -> Result:
    """Generate, compile and run the search; for a violation also the steps that led to it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(MODEL, folder)
        _require(_run(["spin", "-a", *_flags(check.macros), MODEL.name], folder))
        _require(_run(["cc", *_compiler_flags(check), "-o", "pan", "pan.c"], folder))
        depth = "-m200000" if "ORDERED" in check.macros else "-m20000"
        sample = ["-w32", "-k3", f"-Q{check.minutes}"] if check.minutes else []
        started = time.monotonic()
        output = _run(["./pan", "-E", depth, *sample], folder).stdout
        seconds = time.monotonic() - started
        outcome = _outcome(output, sampled=bool(check.minutes))
        trail = ""
        if outcome == VIOLATED:
            replay = _run(["spin", "-t", "-T", *_flags(check.macros), MODEL.name], folder).stdout
            trail = resolve(replay, _as_dict(check.macros), check=check.name)
        return Result(
            outcome,
            _number(r"(\d+) states, stored", output),
            _number(r"depth reached (\d+)", output),
            seconds,
            trail,
        )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the model of the voting rules.")
    parser.add_argument("names", nargs="*", metavar="name", help="checks to run; all if none is named")
    parser.add_argument("--quick", action="store_true", help="only those that take seconds")
    parser.add_argument("--list", action="store_true", help="list the checks and what is expected")
    parser.add_argument("--record", action="store_true", help="write formal/traces anew")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {check.name for check in CHECKS}:
        parser.error(f"there is no check named {', '.join(sorted(unknown))}; see --list")
    return options


def _report(check: Check) -> bool:
    result = run(check)
    met = result.outcome == check.expected
    print(
        f"{check.name:32} {result.outcome:10} {result.states:>12,} states  depth {result.depth:>7,}  {result.seconds:7.1f} s  "
        + ("as expected" if met else f"EXPECTED: {check.expected}"),
        flush=True,
    )
    if not met and result.trail:
        print(result.trail)
    return met


def _record() -> int:
    for old in TRACES.glob("*.trace"):
        old.unlink()
    for check in CHECKS:
        if check.expected == VIOLATED and "ORDERED" not in check.macros:
            (TRACES / f"{check.name}.trace").write_text(run(check).trail, encoding="utf-8")
    for macros, seeds in WALKS:
        for seed in seeds:
            (TRACES / f"walk-{seed:02}.trace").write_text(simulate(macros, seed), encoding="utf-8")
    print(f"{len(list(TRACES.glob('*.trace')))} traces in {TRACES.relative_to(HERE.parent)}")
    return 0


def _compiler_flags(check: Check) -> list[str]:
    flags = ["-w", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=4000"]
    if check.minutes:
        return [*flags, "-O2", "-DBITSTATE", "-DT_RAND"]
    if check.expected == VIOLATED:  # breadth first: the shortest way to it
        return [*flags, "-O0", "-DBFS"]
    return [*flags, "-O1" if check.quick else "-O2"]


def _outcome(output: str, *, sampled: bool) -> str:
    if "assertion violated" in output:
        return VIOLATED
    complete = "not completed" not in output and "depth too small" not in output
    return HOLDS if "errors: 0" in output and (complete or sampled) else UNFINISHED


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    return int(float(found[1])) if found else 0


def _flags(macros: str) -> list[str]:
    return [f"-D{macro}" for macro in macros.split()]


def _as_dict(macros: str) -> dict[str, str]:
    return {key: value or "1" for key, _, value in (macro.partition("=") for macro in macros.split())}


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    try:
        return subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "search not completed in time", "")


def _require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise SystemExit(f"{done.args[0]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
