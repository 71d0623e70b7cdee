"""How a repetition of a batch is recognised: by the plan in the checkpoint, and by its rows (P23).

The first is exact, also if the upstream gives other rows at every attempt; but it can be read only if the checkpoint is an
option of the query and lies in a folder of the driver's machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parley.crypto.hashing import DIGEST_SIZE, digest
from parley.spark.rows import Publication

MAX_METADATA = 64 * 1024  # bytes of the file that names the query
_MODULUS = 2 ** (8 * DIGEST_SIZE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a checkpoint says of one batch: the id of the query, and the hash of the offsets that the batch takes."""

    query: str
    offsets: bytes


def plan_of(checkpoint: str | None, batch: int) -> Plan | None:
    """The plan of a batch, None if it cannot be read here. Spark writes it before the batch begins, and never again."""
    if checkpoint is None or (folder := _local(checkpoint)) is None:
        return None
    try:
        with (folder / "metadata").open("rb") as file:
            query = json.loads(file.read(MAX_METADATA))["id"]
        with (folder / "offsets" / str(batch)).open("rb") as file:
            return Plan(str(query), hashlib.file_digest(file, "sha256").digest())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _local(checkpoint: str) -> Path | None:
    """The path of a folder of this machine, from a path or a URL of a file; None for other file systems.

    `..` is resolved in the text of the path, as Spark does, also behind a symbolic link.
    """
    scheme, colon, rest = checkpoint.partition(":")
    if not colon or "/" in scheme:
        return Path(os.path.normpath(checkpoint))
    if scheme.lower() != "file":
        return None
    return Path(os.path.normpath("/" + rest.lstrip("/")))


@dataclass(slots=True)
class RowSum:
    """A digest of rows in any order, which tasks can add up: the number of rows, and the sum of their hashes.

    With XOR instead of a sum, equal rows would cancel. Each hash contains a secret key: if others could compute the hashes,
    they could look for rows with the sum of other rows, which lattice reduction finds. Who has the identity
    of the publisher has the key, too. The sum travels from the tasks to the driver, and the key does not.
    """

    count: int = 0
    total: int = 0

    def add(self, row: Publication, key: bytes) -> None:
        """Count what is published of a row, without the salt, which is drawn at every attempt, and the partition of its key.

        `key` is `Client.stage_row_key` of the stage.
        """
        message = row.message
        place = b"" if row.partition is None else str(row.partition).encode()
        hashed = digest("stage/row", key, place, message.header, message.rule.encode(), message.payload)
        self.count += 1
        self.total = (self.total + int.from_bytes(hashed, "big")) % _MODULUS


def rows_digest(sums: Iterable[RowSum]) -> bytes:
    """The digest of all rows of a stage, from the sums of its tasks: their number and the sum of their hashes."""
    count = total = 0
    for one in sums:
        count, total = count + one.count, (total + one.total) % _MODULUS
    return count.to_bytes(8, "big") + total.to_bytes(DIGEST_SIZE, "big")
