"""The messages of the admin socket, in JSON. Clients may rely on these fields."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from parley.node.faults.switches import MAX_FAULTS

MAX_BODY = 16 * 1024  # bytes of a question
MAX_LINE = 1024 * 1024  # bytes of an answer
JSON = "application/json"

BACKUP, RELOAD, FAULTS, STATUS = "backup", "reload", "faults", "status"


class SetFaults(Struct, frozen=True, forbid_unknown_fields=True):
    """These faults, and no others."""

    faults: Annotated[tuple[Annotated[str, Meta(max_length=4096)], ...], Meta(max_length=MAX_FAULTS)]


class Faults(Struct, frozen=True):
    allowed: bool  # by the genesis file
    faults: tuple[str, ...]


class Reloaded(Struct, frozen=True):
    """What the broker shows and does now, as its files say."""

    pid: int
    certificate_changed: bool
    certificate_ends: int  # ms since 1970
    faults: tuple[str, ...]


class Copied(Struct, frozen=True):
    """A copy of a store. It stays until the connection ends, and after that as long as a reader locks its folder."""

    data: str


class Failed(Struct, frozen=True):
    """Why an action was refused or failed, and what to do."""

    error: str
