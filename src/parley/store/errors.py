"""Why a store cannot be opened or used."""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do about `path`."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"The store in {path} {what}")
        self.path = path


class StoreInUse(StoreError):  # noqa: N818 - the condition, not an error of the caller
    """Another process has the store open."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, "is in use by another process. Stop that one first: a store has one user at a time."
        )


class StoreFailed(StoreError):  # noqa: N818 - what happened to the disk, not an error of the caller
    """The disk refused or returned something wrong. After a failed write the store takes no other."""
