"""broker.toml as it is written: its keys and what they may be. What is wrong is named with file and key."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta, Struct, ValidationError, convert, inspect, structs

from parley.consensus.machine import SHORTEST_TIMEOUT

MAX_FILE = 64 * 1024
MAX_SHOWN = 60  # characters of a wrong value
MAX_INTERVAL_MS = SHORTEST_TIMEOUT // 5

S = TypeVar("S", bound=Struct)

Count = Annotated[int, Meta(ge=1, le=100_000)]
Rate = Annotated[int, Meta(ge=1, le=10_000_000)]
Bytes = Annotated[int, Meta(ge=64 * 1024, le=2**40)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]


class ConfigError(Exception):
    """The configuration cannot be used. `key` is empty if the file as a whole is wrong."""

    def __init__(self, path: Path, key: str, problem: str) -> None:
        super().__init__(f"{path.name}: {key}: {problem}" if key else f"{path}: {problem}")
        self.key = key
        self.problem = problem


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What strangers and clients may use of this broker. Rates hold for a client and for an address alike."""

    connections: Count = 2_000  # of clients; those of brokers are counted apart
    connections_per_address: Count = 256
    connections_per_client: Count = 32
    requests_per_second: Rate = 5_000
    bytes_per_second: Bytes = 128 * 1024 * 1024
    questions_in_flight: Count = 1_024  # of one connection
    unread_bytes: Bytes = 1024 * 1024  # that a connection may leave unread before it gets no more
    unread_seconds: Annotated[int, Meta(ge=1, le=3_600)] = 30  # after which it is ended then


class Storage(Struct, frozen=True, forbid_unknown_fields=True):
    cache_bytes: Annotated[int, Meta(ge=1024 * 1024, le=2**40)] = 64 * 1024 * 1024
    max_bytes: Annotated[int, Meta(ge=0, le=2**60)] = 0  # that the data directory may take; 0: all there is


class Ordering(Struct, frozen=True, forbid_unknown_fields=True):
    """How this broker leads. The size of a block is in the genesis file, that of a batch is its publisher's choice."""

    # Between blocks with batches, under load. With the longest execution of a block it is less than the shortest wait for
    # a leader, or it would cost views (P29).
    block_interval_ms: Annotated[int, Meta(ge=0, le=MAX_INTERVAL_MS)] = 38


class Workers(Struct, frozen=True, forbid_unknown_fields=True):
    """Processes besides the broker's own, for machines with cores to spare."""

    verify: Annotated[int, Meta(ge=0, le=32)] = 0  # that check batches; 0: the broker does that itself


class Metrics(Struct, frozen=True, forbid_unknown_fields=True):
    """`listen` empty: nowhere. A port alone is one of the loopback interface; another has to be named."""

    listen: Annotated[str, Meta(max_length=4096)] = ""
    topics: bool = False  # whether their names are told, and not only hashes


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`file` empty: standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"
    file: Annotated[str, Meta(max_length=4096)] = ""


class BrokerFile(Struct, frozen=True, forbid_unknown_fields=True):
    """broker.toml as it is written."""

    genesis: Text
    broker: Text
    listen: Text
    consensus_key: Text
    certificate: Text
    certificate_key: Text
    data: Text
    safety: Text
    faults: tuple[Text, ...] = ()
    peers: dict[str, Text] = {}
    limits: Limits = Limits()
    storage: Storage = Storage()
    ordering: Ordering = Ordering()
    workers: Workers = Workers()
    log: LogSettings = LogSettings()
    metrics: Metrics = Metrics()


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE:
        raise ConfigError(path, "", f"is larger than {MAX_FILE} bytes, so it is no configuration")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(path, "", f"is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, "", f"is not TOML: {error}") from error


def converted(path: Path, where: str, kind: type[S], table: dict[str, Any]) -> S:
    """A table as a struct. Raises `ConfigError`: field by field, so that it names the key, what is allowed and what was found."""
    fields = {field.name: field for field in structs.fields(kind)}
    for name in table:
        if name not in fields:
            raise ConfigError(path, where.removesuffix("."), unknown(name, list(fields)))
    values: dict[str, object] = {}
    for name, field in fields.items():
        key = where + name
        if name not in table:
            if field.required:
                raise ConfigError(path, key, f"is missing; expected {_expected(field.type)}")
        elif (
            isinstance(table[name], dict) and isinstance(field.type, type) and issubclass(field.type, Struct)
        ):
            values[name] = converted(path, f"{key}.", field.type, table[name])
        else:
            try:
                values[name] = convert(table[name], field.type)
            except ValidationError:
                raise ConfigError(
                    path, key, f"expected {_expected(field.type)}, got {quoted(table[name])}"
                ) from None
    return kind(**values)


def _expected(kind: object) -> str:
    match inspect.type_info(kind):
        case inspect.IntType(ge=low, le=high):
            return f"an integer between {low} and {high}"
        case inspect.StrType():
            return "a text that is not empty"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return one_of([str(value) for value in values])
        case inspect.VarTupleType():
            return "a list of texts"
        case inspect.DictType():
            return 'a table of broker = "host:port"'
        case _:
            return "a table"


def one_of(names: list[str]) -> str:
    """The allowed values, for an error."""
    return "one of " + ", ".join(repr(name) for name in names)


def unknown(name: str, names: list[str]) -> str:
    """Why there is no such key or name, and what may be meant."""
    near = get_close_matches(name[:MAX_SHOWN], names, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"expected {one_of(names)}"
    return f"there is no {quoted(name)}; {advice}"


def quoted(value: object) -> str:
    """A wrong value, cut if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
