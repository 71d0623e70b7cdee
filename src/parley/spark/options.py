"""What a job may say to `format("parley")`: every option, what it may hold, and the nearest right one for a wrong one.

Names are Kafka's where Kafka has them, and upper and lower case are the same, as everywhere in Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast, get_args

from parley.application.application import Application
from parley.application.rows import EVIDENCE, LEDGER_TABLES
from parley.applications import DATA_SHARD, ApplicationError, application_of
from parley.client.compose import MAX_CONTENT, canonical_rule, constraint
from parley.client.contexts import find_genesis
from parley.client.errors import ContextError, InvalidConstraint, InvalidRule
from parley.client.messages import Level
from parley.client.staging import MAX_VALID, VALID
from parley.model.batches import MAX_MESSAGES
from parley.model.names import is_topic
from parley.spark.errors import BadOption

EARLIEST, LATEST = -2, -1  # as Kafka writes them in JSON
TIMEOUT_SECONDS = 60
MAX_TIMEOUT = 3_600
MAX_TOPICS = 1_000
BATCH_SIZE = 1_000  # rows
BATCH_BYTES = 256 * 1024
IN_FLIGHT = 8  # batches of one task
MAX_IN_FLIGHT = 64
MAX_TEXT = 1024 * 1024  # characters of an option

NETWORK = ("context", "directory", "genesis", "identity", "brokers", "shard", "timeout")
READ = (
    *NETWORK,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "onUndecryptable",
    "includeHeaders",
    "includeProof",
    "payload",
    "where",
    "verify",
    "queryName",
)
WRITE = (
    *NETWORK,
    "topic",
    "rule",
    "runId",
    "onRepeat",
    "deadLetterTopic",
    "batchSize",
    "batchBytes",
    "batchesInFlight",
    "stageBlocks",
)
TABLE = (
    *NETWORK,
    "table",
    "startingHeight",
    "endingHeight",
    "maxBlocksPerTrigger",
    "minPartitions",
    "verify",
    "queryName",
)
CHECKPOINT = "checkpointlocation"
# Spark hands these on to every format, the name of a query to sinks only.
SPARKS = frozenset({"path", CHECKPOINT, "queryname", "recursivefilelookup"})
REPEATS: Mapping[str, bool] = {
    "fail": False,
    "keepFirst": True,
}  # what `onRepeat` may be; the first is the default
UNDECRYPTABLE: Mapping[str, bool] = {"skip": False, "fail": True}  # what `onUndecryptable` may be

_OF_TABLES = frozenset({"owner", "provider"})  # Spark adds them for CREATE TABLE, and only there
_NO_TABLE = (
    "Spark keeps the options of CREATE TABLE and does not hand them on when the table is read or written: use CREATE TEMPORARY "
    "VIEW ... USING parley OPTIONS (...), or the options of spark.read and df.write."
)

T = TypeVar("T")

Offsets = Mapping[str, Mapping[int, int]]  # by topic and partition


@dataclass(frozen=True, slots=True)
class Network:
    """Which network, and as whom: names and paths that mean the same on every machine, never a key itself."""

    context: str | None = None
    directory: str | None = None
    genesis: str | None = None
    identity: str | None = None
    brokers: tuple[str, ...] = ()
    shard: int | None = None
    timeout: int = TIMEOUT_SECONDS  # seconds after which a question that nobody answers is an error


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Topics by their names."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All topics that this client may read and whose whole names match."""

    text: str


@dataclass(frozen=True, slots=True)
class Assigned:
    """Single partitions."""

    partitions: tuple[tuple[str, tuple[int, ...]], ...]


Topics = Subscribed | Pattern | Assigned


@dataclass(frozen=True, slots=True)
class Start:
    """One end of a range: the same for all partitions, or an offset for each of these."""

    everywhere: int = EARLIEST
    offsets: Offsets | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    network: Network
    topics: Topics
    start: Start
    end: Start
    timestamp: int | None = None  # ms since 1970
    max_offsets: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    headers: bool = False
    proof: bool = False
    payload: bool = True
    where: str = ""
    verify: Level = "certified"
    query_name: str = ""
    fail_on_undecryptable: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """`topic` is where all rows go. `run` names a job's one run, so that its repetition is not a second one.

    `keep_first`: a repetition that differs from what was committed is accepted, its rows are dropped, and what was committed stands.
    """

    network: Network
    topic: str | None = None
    rule: str = ""  # of rows that have none
    run: str | None = None
    dead_letters: str | None = (
        None  # where it is said of rows that cannot be published; without it the job fails
    )
    batch_size: int = BATCH_SIZE
    batch_bytes: int = BATCH_BYTES
    in_flight: int = IN_FLIGHT  # batches of one task that wait for their receipts
    stage_blocks: int = VALID  # blocks for which what was staged waits for its commit
    keep_first: bool = False
    checkpoint: str | None = None  # a folder or URL; None if it is not among the options


@dataclass(frozen=True, slots=True)
class TableOptions:
    network: Network
    table: str
    first: int = 1
    last: int | None = None
    max_blocks: int | None = None
    min_partitions: int | None = None
    verify: Level = "certified"
    query_name: str = ""


def table_of(options: Mapping[str, str]) -> str | None:
    """The ledger table that is asked for, None if it is topics."""
    return next((value for key, value in options.items() if key.lower() == "table"), None)


def read_options(options: Mapping[str, str], *, stream: bool | None) -> ReadOptions:
    """`stream`: None where it is not known yet which of the two it will be."""
    given = _Given(options, READ)
    if stream and given.text("endingOffsets") is not None:
        raise BadOption("endingOffsets is for batch queries; a stream has no end.")
    start = given.start("startingOffsets", LATEST if stream else EARLIEST)
    end = given.start("endingOffsets", LATEST)
    if stream is False and LATEST in _all(start):
        raise BadOption("startingOffsets of a batch query cannot be 'latest' or -1: nothing would be read.")
    if EARLIEST in _all(end):
        raise BadOption("endingOffsets cannot be 'earliest' or -2: nothing would be read.")
    timestamp = given.number("startingTimestamp", least=0)
    if timestamp is not None and given.text("startingOffsets") is not None:
        raise BadOption("startingOffsets and startingTimestamp contradict each other; give one of them.")
    if stream is False and given.text("maxOffsetsPerTrigger") is not None:
        raise BadOption(
            "maxOffsetsPerTrigger is for streams; a batch query reads everything up to endingOffsets."
        )
    return ReadOptions(
        given.network(),
        given.topics(),
        start,
        end,
        timestamp,
        given.number("maxOffsetsPerTrigger"),
        given.number("minPartitions"),
        given.yes("failOnDataLoss", default=True),
        given.yes("includeHeaders", default=False),
        given.yes("includeProof", default=False),
        given.yes("payload", default=True),
        given.where(),
        given.level(),
        given.text("queryName") or "",
        given.choice("onUndecryptable", UNDECRYPTABLE),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. Raises `BadOption` if none but Spark's own are given.

    Spark writes to a table of the catalog without the options that the table was made with. The current context may be of
    another network than the table names.
    """
    given = _Given(options, WRITE)
    if not given.is_given():
        raise BadOption(
            f"No option is given, so nothing says which network is meant: give its `context` or `directory`. {_NO_TABLE}"
        )
    return WriteOptions(
        given.network(),
        given.topic("topic"),
        given.rule(),
        given.text("runId"),
        given.topic("deadLetterTopic"),
        given.number("batchSize", most=MAX_MESSAGES) or BATCH_SIZE,
        given.number("batchBytes", most=MAX_CONTENT) or BATCH_BYTES,
        given.number("batchesInFlight", most=MAX_IN_FLIGHT) or IN_FLIGHT,
        given.number("stageBlocks", most=MAX_VALID) or VALID,
        given.choice("onRepeat", REPEATS),
        given.checkpoint(),
    )


def table_options(options: Mapping[str, str]) -> TableOptions:
    given = _Given(options, TABLE)
    network, table = given.network(), given.text("table") or ""
    known = tables_of(application_at(network))
    if table not in known:
        raise BadOption(f"There is no table {table!r}; {_nearest(table, known)}.")
    return TableOptions(
        network,
        table,
        given.number("startingHeight") or 1,
        given.number("endingHeight"),
        given.number("maxBlocksPerTrigger"),
        given.number("minPartitions"),
        given.level(),
        given.text("queryName") or "",
    )


def tables_of(application: Application) -> tuple[str, ...]:
    """The values that the option `table` may have in a network with this application."""
    return (*LEDGER_TABLES, *application.changes, EVIDENCE)


def application_at(network: Network) -> Application:
    """The application of a network. Without a genesis file that can be read, which is said later, the one of Parley."""
    try:
        genesis = find_genesis(network.context, directory=network.directory, genesis=network.genesis)
    except ContextError:
        return DATA_SHARD
    try:
        return application_of(genesis)
    except ApplicationError as error:
        raise BadOption(f"{error}.") from None


class _Given:
    """The options of one query, each looked at by the name that the documentation gives it."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._known, self._all = tuple(known), options
        names = {name.lower(): name for name in self._known}
        self._values: dict[str, str] = {}
        if any(key.lower() in _OF_TABLES or key.lower().startswith("option.") for key in options):
            raise BadOption(f"The source cannot be a table of the catalog. {_NO_TABLE}")
        for key, value in options.items():
            name = names.get(key.lower())
            if name is None:
                if key.lower() not in SPARKS and key.lower() != "table":
                    raise BadOption(f"There is no option {key!r}; {_nearest(key, self._known)}.")
                continue
            if len(value) > MAX_TEXT:
                raise BadOption(f"Option {name} has {len(value)} characters; {MAX_TEXT} are allowed.")
            self._values[name] = value

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, *, least: int = 1, most: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < least:
            raise BadOption(f"Option {name} is a whole number from {least} on, not {value!r}.")
        if most is not None and int(value) > most:
            raise BadOption(f"Option {name} is at most {most}, not {int(value)}.")
        return int(value)

    def yes(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.strip().lower() not in {"true", "false"}:
            raise BadOption(f"Option {name} is true or false, not {value!r}.")
        return value.strip().lower() == "true"

    def choice(self, name: str, meanings: Mapping[str, bool]) -> bool:
        """What the word that is given means; the first one is the default."""
        value = (self.text(name) or next(iter(meanings))).strip()
        found = {word.lower(): meaning for word, meaning in meanings.items()}.get(value.lower())
        if found is None:
            raise BadOption(f"Option {name} is {' or '.join(meanings)}, not {value[:200]!r}.")
        return found

    def level(self) -> Level:
        value = (self.text("verify") or "certified").strip().lower()
        if value not in get_args(Level):
            raise BadOption(f"Option verify is {', '.join(get_args(Level))}, not {value!r}.")
        return cast("Level", value)

    def where(self) -> str:
        value = self.text("where")
        if not value:
            return ""
        try:
            return constraint(value).text
        except InvalidConstraint as error:
            raise BadOption(f"Option where: {error}.") from None

    def topic(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None and not is_topic(value):
            raise BadOption(f"Option {name}: {value!r} cannot be the name of a topic.")
        return value

    def rule(self) -> str:
        try:
            return canonical_rule(self.text("rule") or "")
        except InvalidRule as error:
            raise BadOption(f"Option rule: {error}.") from None

    def is_given(self) -> bool:
        """Whether there is any option but Spark's own."""
        return not all(key.lower() in SPARKS for key in self._all)

    def checkpoint(self) -> str | None:
        """The folder of the query's checkpoint, if it is set as an option."""
        return next((value for key, value in self._all.items() if key.lower() == CHECKPOINT), None)

    def network(self) -> Network:
        found = {name: self._path(name) for name in NETWORK[:4]}
        alone = found["directory"] is None and found["context"] is None and found["genesis"] is not None
        if alone and found["identity"] is None:
            raise BadOption("Beside genesis, identity is needed: the path of an identity file on every node.")
        brokers = tuple(part.strip() for part in (self.text("brokers") or "").split(",") if part.strip())
        timeout = self.number("timeout")
        if timeout is not None and timeout > MAX_TIMEOUT:
            raise BadOption(f"Option timeout is at most {MAX_TIMEOUT} seconds.")
        return Network(
            brokers=brokers, shard=self.number("shard", least=0), timeout=timeout or TIMEOUT_SECONDS, **found
        )

    def topics(self) -> Topics:
        names = ("subscribe", "subscribePattern", "assign")
        chosen = [name for name in names if self.text(name) is not None]
        if len(chosen) != 1:
            of_table = "" if self.is_given() else f" {_NO_TABLE}"
            problem = " and ".join(chosen) + " are given." if chosen else f"none is given.{of_table}"
            raise BadOption(f"Give exactly one of {', '.join(names)}; {problem}")
        text = self._values[chosen[0]]
        match chosen[0]:
            case "subscribe":
                topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
                if not 1 <= len(topics) <= MAX_TOPICS:
                    raise BadOption(f"subscribe names 1 to {MAX_TOPICS} topics, with commas between them.")
                return Subscribed(topics)
            case "subscribePattern":
                try:
                    re.compile(text)
                except re.error as error:
                    raise BadOption(f"subscribePattern cannot be read: {error}.") from None
                return Pattern(text)
            case _:
                return _assigned(text)

    def start(self, name: str, default: int) -> Start:
        text = self.text(name)
        if text is None:
            return Start(default)
        word = text.strip().lower()
        if word in {"earliest", "latest"}:
            return Start(EARLIEST if word == "earliest" else LATEST)
        shape = '"earliest", "latest" or JSON such as {"topic": {"0": 23, "1": -1}}, -2 for earliest and -1 for latest'
        return Start(default, _json(name, text, shape, _offsets))

    def _path(self, name: str) -> str | None:
        value = self.text(name)
        if value is None:
            return None
        # Options travel through plans and logs, so a key must never be among them.
        if "{" in value or "\n" in value or "-----" in value or re.fullmatch(r"[0-9a-fA-F]{64,}", value):
            raise BadOption(
                f"Option {name} looks like the contents of a file. Give the path of the file, or a context, as it is on "
                f"every node; what is secret must not travel through Spark."
            )
        return value


def _assigned(text: str) -> Assigned:
    def read(value: Any) -> tuple[tuple[str, tuple[int, ...]], ...]:  # noqa: ANN401 - JSON is anything
        return tuple(
            (str(topic), tuple(sorted({_whole(partition, 0) for partition in partitions})))
            for topic, partitions in sorted(value.items())
            if isinstance(partitions, list) or _wrong()
        )

    found = _json("assign", text, 'JSON such as {"topic": [0, 1]}', read)
    if not found or not all(partitions for _, partitions in found):
        raise BadOption('assign names no partition; give JSON such as {"topic": [0, 1]}.')
    return Assigned(found)


def _offsets(value: Any) -> Offsets:  # noqa: ANN401 - JSON is anything
    return {
        str(topic): {
            _whole(int(partition), 0): _whole(offset, EARLIEST) for partition, offset in offsets.items()
        }
        for topic, offsets in value.items()
    }


def _whole(value: object, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError
    return value


def _wrong() -> Literal[False]:
    raise ValueError


def _json(name: str, text: str, shape: str, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(text))
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise BadOption(f"Option {name} is {shape}, not {text[:200]!r}.") from None


def _all(start: Start) -> set[int]:
    if start.offsets is None:
        return {start.everywhere}
    return {offset for offsets in start.offsets.values() for offset in offsets.values()}


def _nearest(word: str, known: Iterable[str]) -> str:
    names = {name.lower(): name for name in known}
    every = ", ".join(names.values())
    close = get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    return f"did you mean {names[close[0]]!r}? Known are: {every}" if close else f"known are: {every}"
