"""Take a module out of a copy of this tree, and run lint, types and every test but the module's own there.

    .venv/bin/python tools/without_module.py advertisements --word advertis

The module's folder, its part of the client, its command, its page and its tests go; besides that only the lines that
register it. What was recorded with the module (the golden chain, the corpus of codes) is a record of another application
then, and is left out.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
# Where a module is registered, besides its own files: lines that name it go.
REGISTERED = (
    "src/parley/applications.py",
    "src/parley/client/__init__.py",
    "src/parley/client/modules.py",
    "pyproject.toml",
)
OWN = (
    "src/parley/modules/{name}",
    "src/parley/client/{name}.py",
    "src/parley/cli/{name}.py",
    "docs/{name}.md",
    "tests/modules/{name}",
    "tests/client/test_{name}.py",
    "tests/cli/test_{name}.py",
)
RECORDED = ("tests/application/test_golden_chain.py", "tests/application/test_recorded_codes.py")
# Helpers of the recorded corpus alone.
CORPUS = ("almost", "asking", "codes", "corpus", "crowds", "stories")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("module")
    parser.add_argument("--word", help="that lines which register the module hold, if not its name")
    parser.add_argument("--quick", action="store_true", help="lint and types only")
    asked, pytest = parser.parse_known_args()  # the rest is for pytest
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "parley"
        tracked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, check=True)
        for name in tracked.stdout.decode().split("\0")[:-1]:
            if (ROOT / name).exists():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        (copy / ".venv").symlink_to(BIN.parent)  # for commands; the sources are those of the copy
        remove(copy, asked.module, asked.word or asked.module)
        return check(copy, [] if asked.quick else pytest or ["-n", "3", "tests"])


def remove(tree: Path, module: str, word: str) -> None:
    """What is left names the module nowhere but in prose."""
    for pattern in OWN:
        path = tree / pattern.format(name=module)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in (*RECORDED, *(f"tests/application/{name}.py" for name in CORPUS)):
        (tree / name).unlink()
    registers = re.compile(word, re.IGNORECASE)
    for name in REGISTERED:
        lines = (tree / name).read_text().splitlines(keepends=True)
        (tree / name).write_text("".join(line for line in lines if not registers.search(line)))


def check(tree: Path, tests: list[str]) -> int:
    """The first exit code that is not 0."""
    run(tree, [str(BIN / "python"), "tools/reference.py", "--write"])  # the page follows from the modules
    for command in (["ruff", "check"], ["mypy"], ["lint-imports"]):
        if code := run(tree, [str(BIN / command[0]), *command[1:]]):
            return code
    return run(tree, [str(BIN / "pytest"), "-q", "-m", "not long", *tests]) if tests else 0


def run(tree: Path, command: list[str]) -> int:
    print("$", " ".join(Path(part).name if part.startswith("/") else part for part in command), flush=True)
    paths = f"{tree / 'src'}:{tree}"
    return subprocess.run(
        command, cwd=tree, env={"PATH": f"{BIN}:/usr/bin:/bin", "PYTHONPATH": paths}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
