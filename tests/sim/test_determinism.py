"""One seed, one trace: in one process, in two, and whatever the hash seed of Python is."""

import json
import os
import subprocess
import sys

import pytest

from parley.sim.scenario import CRYPTO, run


@pytest.mark.parametrize("crypto", CRYPTO)
def test_a_seed_gives_one_trace_in_one_process(crypto: str) -> None:
    first, second = (run(4, 1, 3, crypto=crypto) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("crypto", CRYPTO)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_gives_one_trace_whatever_the_hash_seed(crypto: str, seed: int) -> None:
    first, second = (_run_in_process(hash_seed, crypto, seed) for hash_seed in ("1", "2"))
    assert first["trace_hash"] == second["trace_hash"]
    assert first == second


def test_different_seeds_give_different_traces() -> None:
    assert len({run(4, 1, seed).trace_hash for seed in range(5)}) == 5


def test_the_seed_chooses_the_liars_whatever_they_sign_with() -> None:
    simulated, real = (run(4, 1, 5, crypto=crypto) for crypto in CRYPTO)
    assert simulated.actors == real.actors
    assert simulated.trace_hash != real.trace_hash


def _run_in_process(hash_seed: str, crypto: str, seed: int) -> dict[str, object]:
    command = ["-c", "from parley.cli import main; main()", "sim", "run", "--nodes", "7", "--byzantine", "2"]
    result = subprocess.run(
        [sys.executable, *command, "--seed", str(seed), "--crypto", crypto, "--json"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, object] = json.loads(result.stdout)
    return report
