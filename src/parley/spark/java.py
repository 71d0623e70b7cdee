"""Spark runs on Java: where one is that is new enough, and what to do where there is none.

`python -m parley.spark.java` prints the folder, or the one line that installs it and ends with 1: `make setup` asks it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from parley.spark.errors import NoJava

OLDEST = 17
INSTALL = "sudo apt-get install -y openjdk-17-jre-headless"
FOLDERS = Path("/usr/lib/jvm")  # where Debian's packages go
SECONDS = 30.0  # for a Java to say its version


def find_java() -> Path | None:
    """The home of a Java that Spark can use: JAVA_HOME, else the one on the path, else the oldest of Debian's that will do."""
    return next((home for home in _homes() if (version(home) or 0) >= OLDEST), None)


def require_java() -> Path:
    found = find_java()
    if found is None:
        seen = [f"{home} has version {version(home) or 'unknown'}" for home in _homes()]
        raise NoJava(
            f"Spark needs Java {OLDEST} or newer; {'; '.join(seen) or 'there is none'}. On Debian and Ubuntu: {INSTALL}. "
            "Where it lies elsewhere, JAVA_HOME names its folder."
        )
    return found


def version(home: Path) -> int | None:
    """The first number of the version; 8 calls itself 1.8. Most homes have a file that says it, which starts no process."""
    try:
        said = (home / "release").read_text(errors="replace")
    except OSError:
        said = _asked(home / "bin" / "java")
    found = re.search(r'(?:JAVA_VERSION="|version ")(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def _asked(java: Path) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a Java of this machine
            [java, "-version"], check=False, capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _homes() -> Iterator[Path]:
    """Those that have a `bin/java`, in the order in which they are to be tried; each once."""
    named, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    found = [Path(named)] if named else []
    if on_path is not None:
        found.append(Path(on_path).resolve().parents[1])
    usual = {path.resolve() for path in FOLDERS.glob("*")} if FOLDERS.is_dir() else set()
    found += sorted(usual, key=lambda home: (version(home) or 0, home))
    for home in dict.fromkeys(found):
        if os.access(home / "bin" / "java", os.X_OK):
            yield home


def main() -> int:
    found = find_java()
    print(found or INSTALL)  # noqa: T201 - a command
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
