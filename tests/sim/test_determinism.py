"""One seed, one trace: in one process, in two, and whatever the hash seed of Python is."""

import json
import os
import subprocess
import sys
from itertools import product

import pytest

from parley.sim.scenario import APPLICATIONS, CRYPTO, run

LONG = bool(os.environ.get("PARLEY_LONG"))
SEEDS = (1, 2)
RUNS = list(product(CRYPTO, SEEDS) if LONG else zip(CRYPTO, SEEDS, strict=True))


@pytest.mark.parametrize("application", APPLICATIONS)
@pytest.mark.parametrize("crypto", CRYPTO)
def test_a_seed_gives_one_trace_in_one_process(application: str, crypto: str) -> None:
    first, second = (run(4, 1, 3, application=application, crypto=crypto) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("crypto", "seed"), RUNS)
def test_a_seed_gives_one_trace_whatever_the_hash_seed(crypto: str, seed: int) -> None:
    options = ("--nodes", "7", "--byzantine", "2", "--seed", str(seed), "--crypto", crypto)
    first, second = (_run_in_process(hash_seed, *options) for hash_seed in ("1", "2"))
    assert first["trace_hash"] == second["trace_hash"]
    assert first == second


@pytest.mark.parametrize("liars", [0, 1])
def test_pubsub_has_one_trace_whatever_the_hash_seed(liars: int) -> None:
    """Without a liar a disk is lost or damaged."""
    options = ("--application", "pubsub", "--nodes", "4", "--byzantine", str(liars), "--seed", "7")
    first, second = (_run_in_process(hash_seed, *options) for hash_seed in ("1", "2"))
    assert first["trace_hash"] == second["trace_hash"]
    assert first == second


@pytest.mark.parametrize("application", APPLICATIONS)
def test_different_seeds_give_different_traces(application: str) -> None:
    assert len({run(4, 1, seed, application=application).trace_hash for seed in range(5)}) == 5


def test_the_seed_chooses_the_liars_whatever_they_sign_with() -> None:
    simulated, real = (run(4, 1, 5, crypto=crypto) for crypto in CRYPTO)
    assert simulated.actors == real.actors
    assert simulated.trace_hash != real.trace_hash


def _run_in_process(hash_seed: str, *options: str) -> dict[str, object]:
    command = ["-c", "from parley.cli import main; main()", "sim", "run"]
    result = subprocess.run(
        [sys.executable, *command, *options, "--json"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, object] = json.loads(result.stdout)
    return report
