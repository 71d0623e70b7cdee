"""The client and its commands need nothing that only a broker needs."""

from __future__ import annotations

import subprocess
import sys

NODE_ONLY = ("aiohttp", "cryptography", "prometheus_client", "rocksdict", "structlog", "uvloop")

WITHOUT = f"""
import sys
for name in {NODE_ONLY!r}:
    sys.modules[name] = None  # importing it fails as if it was not installed
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + program], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_library_is_there_without_the_extra() -> None:
    done = run("import parley; print(parley.connect, parley.connect_blocking); import parley.client")
    assert done.returncode == 0, done.stderr


def test_commands_of_a_client_run_without_the_extra() -> None:
    for words in (["--help"], ["pub", "--help"], ["verify", "--help"], ["sub", "--help"]):
        done = run(f"sys.argv = ['parley', *{words!r}]; from parley.cli.app import main; main()")
        assert done.returncode == 0, done.stderr


def test_what_needs_the_extra_says_so() -> None:
    done = run("sys.argv = ['parley', 'up', '--dir', 'nowhere']; from parley.cli.app import main; main()")
    assert done.returncode == 2
    assert 'pip install "parley[node]"' in done.stderr
