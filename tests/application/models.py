"""What modules add to random histories and to the reference model: `model.py` in the folder of a module's tests.

Modules that others build on are part of the reference model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol, cast

from parley.application.operations import Operation

if TYPE_CHECKING:
    from tests.application.reference import Reference
    from tests.application.world import World


class Model(Protocol):
    """What one module should have in the state."""

    def begin_block(self, ending: set[str], leaving: set[bytes]) -> None: ...

    def operate(self, key: bytes, operation: Operation) -> bool: ...

    def compare(self, world: World) -> None: ...


class ModelFile(Protocol):
    """What a `model.py` holds."""

    EXAMPLE: Operation

    def random_operation(self, random: Random, topic: str) -> Operation: ...

    def Model(self, reference: Reference) -> Model: ...  # noqa: N802 - a class there


def _files() -> Sequence[ModelFile]:
    folder = Path(__file__).parents[1] / "modules"
    names = sorted(path.parent.name for path in folder.glob("*/model.py"))
    return [cast("ModelFile", import_module(f"tests.modules.{name}.model")) for name in names]


FILES = _files()
