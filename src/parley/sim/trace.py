"""One hash over everything that happened, in order: two runs of a seed are the same run or they are not."""

from __future__ import annotations

import hashlib


class Trace:
    """SHA-256 over the events of a run."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, time: int, replica: int, kind: bytes, data: bytes) -> None:
        self._hash.update(b"%d %d %b %d " % (time, replica, kind, len(data)))
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
