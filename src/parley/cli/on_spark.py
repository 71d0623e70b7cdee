"""What the commands that run on Spark share: the same network by names and paths, and how they end when it goes wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NoReturn

from parley.cli.contexts import FILE, Chosen
from parley.cli.network import starting
from parley.cli.output import ExitCode, fail
from parley.spark.errors import ParleySparkError

_CODES = {
    "PARLEY_UNREACHABLE": ExitCode.UNREACHABLE,
    "PARLEY_OPTION": ExitCode.WRONG_USE,
    "PARLEY_IDENTITY": ExitCode.WRONG_USE,
    "PARLEY_JAVA": ExitCode.WRONG_USE,
}
_SAID = re.compile(r"\[(PARLEY_[A-Z_]+)\] (.+)")


def require_spark() -> None:
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        fail('this needs Spark, which is not installed; run: pip install "parley[spark]"', ExitCode.WRONG_USE)


def network_of(chosen: Chosen) -> dict[str, str]:
    """For the source's options. Workers are elsewhere, so paths must not depend on where this command is."""
    path = chosen.file.path.absolute()
    return {"directory": str(path.parent)} if path.name == FILE else {"context": path.stem}


def code_of(condition: str) -> ExitCode:
    return _CODES.get(condition, ExitCode.DOES_NOT_HOLD)


@contextmanager
def ending(see: str = "", chosen: Chosen | None = None) -> Iterator[None]:
    """A condition of ours ends the command with its sentence, also out of what Spark wrapped it in.

    `see` tells where more is to be read of what Spark itself says; of `chosen`, which brokers have not been started.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        yield
    except ParleySparkError as error:
        _end(error.condition, error.message, chosen)
    except PySparkException as error:
        said = _SAID.search(str(error))
        _end(*((said[1], said[2]) if said else ("", f"{str(error).strip()}{see}")), chosen)


def _end(condition: str, message: str, chosen: Chosen | None) -> NoReturn:
    code = code_of(condition)
    remedy = starting(chosen) if chosen is not None and code == ExitCode.UNREACHABLE else ""
    words = f"[{condition}] {message}" if condition else message
    fail(f"{words}\nparley: {remedy}" if remedy else words, code)
