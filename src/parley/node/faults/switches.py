"""The faults that a broker can be told to show, and which of them it shows now."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from parley.model.names import is_name

EQUIVOCATE, WITHHOLD, DROP, FORGE = "equivocate", "withhold", "drop", "forge"
LIE, STALE, DELAY, CENSOR = "lie", "stale", "delay", "censor"
MAX_FAULTS = 32  # of one broker: every kind, and a few censored clients

# Every kind and what it does, for people.
FAULTS = {
    EQUIVOCATE: "as a leader it signs two proposals for its view and sends both to everybody",
    WITHHOLD: "streams and pages hold no messages",
    DROP: "every second block of streams and pages is left out",
    FORGE: "payloads are altered, and offsets in receipts",
    LIE: "entries and limits are false, and messages are hidden from those who may see them",
    STALE: "everything is answered as of the moment when this was switched on",
    DELAY: "every answer leaves later than is fresh",
    CENSOR: "batches of one client, censor:ORGANISATION/CLIENT, are taken and thrown away",
}


class FaultError(ValueError):
    """There is no such fault."""


def checked(faults: Iterable[str]) -> tuple[str, ...]:
    """The same, each once. Raises `FaultError`."""
    found = tuple(dict.fromkeys(faults))
    for fault in found:
        kind, colon, client = fault.partition(":")
        if kind not in FAULTS or (kind == CENSOR) != bool(colon):
            known = ", ".join(name for name in FAULTS if name != CENSOR)
            raise FaultError(f"{fault!r} is no fault; there are {known}, and {CENSOR}:ORGANISATION/CLIENT")
        if colon and not all(map(is_name, client.split("/", 1) if "/" in client else [""])):
            raise FaultError(f"{fault!r} names no client; write {CENSOR}:ORGANISATION/CLIENT")
    if len(found) > MAX_FAULTS:
        raise FaultError(f"{len(found)} faults are too many; a broker shows at most {MAX_FAULTS}")
    return found


class Switches:
    """`active` is false at every honest broker; looking at it is all that faults cost there."""

    def __init__(self, faults: Iterable[str] = ()) -> None:
        self.changed: Callable[[], None] = lambda: None
        self.set(faults)

    def set(self, faults: Iterable[str]) -> None:
        """These, and no others."""
        self.faults = checked(faults)
        self.active = bool(self.faults)
        self.censored = frozenset(
            fault.removeprefix(f"{CENSOR}:") for fault in self.faults if fault.startswith(f"{CENSOR}:")
        )
        self.changed()

    def has(self, fault: str) -> bool:
        return fault in self.faults
