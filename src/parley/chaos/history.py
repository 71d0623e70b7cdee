"""What clients did and saw during a run, as plain records: all that the checker knows of a network.

Everything about publications comes from the public client API. What is said of brokers (their chains, how their stores
look, who ended by itself) was read after they had stopped. A history can be written as JSON lines and judged again later.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from parley.model.names import Value

MAX_RECORDS = 2_000_000
MAX_LINE = 16 * 1024 * 1024  # bytes; the longest lines are chains
MAX_SECONDS = 14 * 86_400  # twice the longest run, and everything after it
MAX_TROUBLES = 10_000
MAX_TEXT = 300  # characters of an error that are kept
UNRECOGNISED = "?"  # begins the id of a payload that nobody published


class HistoryError(Exception):
    """A file holds no history, or a run is longer than a history may be."""


_Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]


class _Record(Struct, frozen=True, forbid_unknown_fields=True, tag_field="record"):
    at: _Seconds  # seconds since the run began, by a clock that never goes back


class Began(_Record, frozen=True, tag=True):
    """What the run was asked for: enough to run it again. `seconds` are those of the faults."""

    seed: int
    faults: tuple[str, ...]
    brokers: int
    seconds: _Seconds


class Invoked(_Record, frozen=True, tag=True):
    """A publisher begins to publish. `id` is the payload's, unique in a run; `partition` None leaves it to the client."""

    id: str
    publisher: str
    topic: str
    partition: int | None
    tags: dict[str, Value]
    rule: str


class Acknowledged(_Record, frozen=True, tag=True):
    """A certified receipt says where the publication is."""

    id: str
    partition: int
    offset: int
    height: int


class Failed(_Record, frozen=True, tag=True):
    """A certified refusal: it was not published and never will be."""

    id: str
    reason: str


class Unknown(_Record, frozen=True, tag=True):
    """Waiting ended without an answer: it may have been published, or be published later."""

    id: str
    reason: str


class Subscribed(_Record, frozen=True, tag=True):
    """A subscriber begins: it wants all of the topic from the first offset on. `attributes` are what rules look at."""

    subscription: str
    subscriber: str
    topic: str
    where: str
    attributes: dict[str, Value]


class Resumed(_Record, frozen=True, tag=True):
    """The same subscription goes on in a new session, from where it was."""

    subscription: str


class Delivered(_Record, frozen=True, tag=True):
    """`ps` is None for what was read by offset; `id` is empty for an empty."""

    subscription: str
    partition: int
    ps: int | None
    offset: int
    height: int
    id: str
    publisher: str
    empty: bool


class Read(_Record, frozen=True, tag=True):
    """One message of a fetch. The `final` ones are the whole log, read when everything had ended."""

    reader: str
    topic: str
    partition: int
    offset: int
    height: int
    id: str
    publisher: str
    empty: bool
    final: bool


class Granted(_Record, frozen=True, tag=True):
    """A client may take part from this height on."""

    client: str
    height: int


class Revoked(_Record, frozen=True, tag=True):
    """The certified receipt of a revocation; in force for everything ordered above this height."""

    client: str
    height: int


class Healed(_Record, frozen=True, tag=True):
    """The last fault has ended: from now on everything has to get done within `bound` seconds."""

    bound: _Seconds


class Span(_Record, frozen=True, tag=True):
    """What was wrong with a broker, from `at` to `end`."""

    end: _Seconds
    broker: str
    state: str
    fault: str


class Full(_Record, frozen=True, tag=True):
    """A broker that was given too little room has stopped by itself, as it should."""

    broker: str


class Caught(_Record, frozen=True, tag=True):
    """A client says that a broker has lied to it."""

    client: str
    broker: str
    problem: str


class Died(_Record, frozen=True, tag=True):
    """A broker's process ended, and nobody had ended it; `words` are its last ones."""

    broker: str
    code: int
    words: str = ""


class Chain(_Record, frozen=True, tag=True):
    """A broker's committed blocks by height (empty where it has none), and its roots at the height common to all."""

    broker: str
    blocks: tuple[str, ...]
    common: int
    state_root: str
    history_root: str

    @property
    def height(self) -> int:
        return len(self.blocks) - 1


class Audited(_Record, frozen=True, tag=True):
    """What an audit says of a broker's store; no fault if it is empty."""

    broker: str
    heights: int
    fault: str


class Waited(_Record, frozen=True, tag=True):
    """How long a bystander of the attacks waited for one thing that it began `at`; less, if it was never `answered`."""

    what: str
    seconds: _Seconds
    answered: bool


class Attacked(_Record, frozen=True, tag=True):
    """What expensive clients did from `at` to `end`; `held` says whether the network passed what the attack looks for."""

    end: _Seconds
    attack: str
    outcome: str
    held: bool | None  # None: the attack was not over, or looks for nothing by itself


class Measured(_Record, frozen=True, tag=True):
    """The largest figures of a broker in the run; None: it does not tell."""

    broker: str
    memory_bytes: int | None
    execution_s: float | None
    loop_s: float | None
    receipts_bytes: int | None
    job: str = ""  # that held the loop so long


class Trouble(_Record, frozen=True, tag=True):
    """Something that a client met and lived with. It is not judged, but helps whoever looks for a cause."""

    who: str
    what: str


class Ended(_Record, frozen=True, tag=True):
    """The run went through all its phases; without this the history ends in the middle."""


Record = (
    Began
    | Invoked
    | Acknowledged
    | Failed
    | Unknown
    | Subscribed
    | Resumed
    | Delivered
    | Read
    | Granted
    | Revoked
    | Healed
    | Span
    | Full
    | Caught
    | Died
    | Chain
    | Audited
    | Waited
    | Attacked
    | Measured
    | Trouble
    | Ended
)


class History:
    """The records of a run, in the order in which they were made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._troubles = 0
        self.records: list[Record] = []

    @property
    def now(self) -> float:
        return round(self._clock() - self._begin, 4)

    def add(self, record: Record) -> None:
        if len(self.records) >= MAX_RECORDS:
            raise HistoryError(f"A history holds at most {MAX_RECORDS} records; run for a shorter time.")
        self.records.append(record)

    def trouble(self, who: str, what: object) -> None:
        """Only the first ones are kept: a network that is down causes very many."""
        if self._troubles < MAX_TROUBLES:
            self._troubles += 1
            self.add(Trouble(self.now, who, _short(what)))

    def failed(self, id_: str, error: object) -> None:
        self.add(Failed(self.now, id_, _short(error)))

    def unknown(self, id_: str, error: object) -> None:
        self.add(Unknown(self.now, id_, _short(error)))


def payload(id_: str, size: int = 0) -> bytes:
    """The bytes that are published under an id: nobody can change one of them and have it still recognised."""
    seal = hashlib.sha256(id_.encode()).hexdigest()[:16]
    return f"{id_}|{seal}".encode().ljust(size, b".")


def identify(value: bytes) -> str:
    """The id of a payload; of one that was never made here, something that is no id."""
    id_ = value.partition(b"|")[0].decode(errors="replace")
    if payload(id_, len(value)) == value:
        return id_
    return UNRECOGNISED + hashlib.sha256(value).hexdigest()[:16]


def write_history(path: Path, records: Iterable[Record]) -> None:
    with path.open("wb") as file:
        for record in records:
            file.write(_encoder.encode(record) + b"\n")


def read_history(path: Path) -> list[Record]:
    records: list[Record] = []
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if len(records) >= MAX_RECORDS:
                    raise HistoryError(
                        f"{path} has more than {MAX_RECORDS} records, so it was not written by a run."
                    )
                records.append(_decoder.decode(line))
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HistoryError(
            f"{path} is not a history: line {len(records) + 1} cannot be read: {error}."
        ) from None
    return records


def _short(what: object) -> str:
    text = f"{type(what).__name__}: {what}" if isinstance(what, BaseException) else str(what)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)
