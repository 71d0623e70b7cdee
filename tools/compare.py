"""Compare CPU per publication with an earlier commit: both measured in turns, before-after-after-before, on one machine.

    .venv/bin/python tools/compare.py 15a576b --rounds 5
    .venv/bin/python tools/compare.py 15a576b --rounds 5 --batch 1

A machine's speed drifts; what is compared are pairs of neighbouring runs. The median of their ratios is printed with the
interval that holds the median of such ratios with 95 % certainty (from the order of the values alone).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import comb
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 600  # for one run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=5, help="of before, after, after, before")
    parser.add_argument("--seconds", type=int, default=10, help="of load in one run")
    asked, bench = parser.parse_known_args()  # the rest are options for `parley bench pub`
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", before, asked.commit], check=True)
        try:
            ratios = measure(before, ROOT, asked.rounds, ["--seconds", str(asked.seconds), *bench])
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", before], check=True)
    low, high = interval(ratios)
    print(
        f"CPU per publication, after by before: median {statistics.median(ratios):.3f}, {low:.3f} to {high:.3f}"
    )


def measure(before: Path, after: Path, rounds: int, options: Sequence[str]) -> list[float]:
    """The ratios of neighbouring runs."""
    ratios = []
    for number in range(rounds):
        first, second = cost(before, options), cost(after, options)
        third, fourth = cost(after, options), cost(before, options)
        ratios += [second / first, third / fourth]
        print(
            f"round {number + 1}: before {first:.1f} and {fourth:.1f} us, after {second:.1f} and {third:.1f} us",
            flush=True,
        )
    return ratios


def cost(tree: Path, options: Sequence[str]) -> float:
    """CPU microseconds of a publication with the sources of a tree and the libraries of this environment."""
    parley = "from parley.cli import main; main()"
    command = [sys.executable, "-c", parley, "bench", "pub", "--runs", "1", "--json", *options]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, timeout=SECONDS, check=True
    )
    return float(json.loads(done.stdout)["cpu_us_per_publication"])


def interval(values: Sequence[float], certainty: float = 0.95) -> tuple[float, float]:
    """Between which values of the sample the median lies: as many are left out on both sides as the certainty allows."""
    ordered, count = sorted(values), len(values)
    left_out, outside = 0, 2 * 0.5**count
    while left_out < count // 2 and outside <= 1 - certainty:
        left_out += 1
        outside += 2 * comb(count, left_out) * 0.5**count
    at = max(left_out - 1, 0)
    return ordered[at], ordered[-1 - at]


if __name__ == "__main__":
    main()
