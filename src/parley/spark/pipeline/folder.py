"""The folder in which a pipeline keeps everything: tables, checkpoints, the catalog that remembers them, and its results."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(Exception):  # noqa: N818 - a condition, not a fault
    """Another run works in the same folder."""


class OtherNetwork(Exception):  # noqa: N818
    """What is in the folder did not come from this network."""


class Folder:
    """Whoever deletes it begins anew: what was published is still in the network."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables = path / "tables"
        self.checkpoints = path / "checkpoints"
        self.catalog = path / "catalog"
        self.delta = path / "delta"
        self.charts = path / "charts"
        self.graph = path / "pipeline"
        self.report = path / "report.json"
        self.log = path / "spark.log"
        self._mark = path / "network"  # names its chain

    @property
    def is_used(self) -> bool:
        """Whether a pipeline has worked here."""
        return self._mark.is_file()

    @contextmanager
    def held(self, chain: str) -> Iterator[None]:
        """For one run at a time, and for one network."""
        self.path.mkdir(
            parents=True, exist_ok=True, mode=0o700
        )  # what devices say of patients is nobody's business
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    f"another run works in {self.path}; wait for it, or choose another --out"
                ) from None
            self._belong(chain)
            yield
        finally:
            os.close(descriptor)

    def _belong(self, chain: str) -> None:
        if not self.is_used:
            if any(self.path.iterdir()):  # a run replaces some of what is there
                raise OtherNetwork(f"{self.path} holds other things; choose another --out")
            self.path.chmod(0o700)  # also if it was there
            self._mark.write_text(f"{chain}\n")
        elif self._mark.read_text().strip() != chain:
            raise OtherNetwork(
                f"{self.path} holds tables of another network; choose another --out, or delete it to begin anew"
            )
