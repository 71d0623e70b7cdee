"""Writes docs/reference.md: what the code declares, as tables. Without `--write` the page is printed."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Formatter
from textwrap import fill

from msgspec import Struct, inspect

from parley.application import tables
from parley.application.application import HOST, Application
from parley.application.module import Module
from parley.application.tables import AnyTable
from parley.applications import DATA_SHARD
from parley.client import texts as client_texts
from parley.model import refusals
from parley.model.batches import CONTROL
from parley.model.names import Pairs, Position
from parley.model.receipts import HOST_OUTCOMES, BatchReceipt, Outcome
from parley.model.refusals import Refused
from parley.net import texts as broker_texts
from parley.net.messages import EXCHANGES
from parley.node.services.table import TABLE
from parley.node.telemetry.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference.md"
WIDTH = 100

Row = Sequence[str]
_POSITION, _PAIRS = inspect.multi_type_info([Position, Pairs])

_HEAD = """# Reference

What clients may ask, what is kept, what is refused and what is counted, as the code declares it.

This page is generated: change the code, then run `.venv/bin/python tools/reference.py --write`. A test
compares the two."""

_MODULES = """The application is the {name}, version {version}. It is made of the `host`, which every application has, and of
the modules {modules}; [modules](modules.md) says how. Lengths of texts are in characters, all others in
bytes. A position is a height and a place within its block."""

_OPERATIONS = """What a client may ask the ledger to do besides publishing. The name is that of the class, written as one
word: `create_topic` is `CreateTopic`. Receipts, ledger tables and encodings use it."""

_BATCHES = """What a client signs is a batch of one of these kinds. A `control` batch holds one of the operations above.
"In sequence": a session's batches are applied one after the other."""

_OUTCOMES = """An outcome is what one ordered batch did; it stands in the receipt of the batch. A leaf is a certified statement
of a block: the receipt of a batch, or what else a module certifies."""

_TABLES = """Entries of the replicated state, and of the indices that brokers derive from receipts to serve from. "Bound": what
limits the number of entries. "Listed": how many parts of the key a client must name to ask for a list. "Expires": the
host looks at an entry again at a height."""

_REFUSALS = """A code is stable, and the same in receipts, in answers of brokers and in exceptions. Its properties:

- *not final*: the batch may still be applied when it is ordered again
- *waits*: brokers keep the batch for a while and order it again themselves
- *keeps its place*: of those that wait: its turn comes by itself, so it stays before younger ones
- *passing*: only this broker cannot answer now
- *without state*: every honest broker says the same, now and later
- *proved*: clients do not believe it from one broker, unless it proves it by entries of the state; else f+1 brokers have to say it
- *garbage*: no client sends this that means well
- *may repeat*: the batch may have been applied before, and come too late this time
- *counts as* refusal, probe, replay or reuse: for the [search for misbehaviour](misbehaviour.md)"""

_REASONS = """Within a code, the reason says which rule refused. Texts are for people and may be reworded at any time;
programs look at code, reason and fields. Names in braces are those of fields."""

_QUESTIONS = """What a client may ask a broker over its connection. Answers repeat the `id` of their question; `Failure`
may answer any. "Cost": what counts against the limit of the client's bytes besides the bytes of question and answers.
[Services](services.md) says how to add a question."""

_METRICS = (
    """What a broker tells Prometheus. [Metrics and health](metrics.md) says how to read the numbers."""
)

_LEDGER = """What modules add to the [ledger tables on Spark](audit.md): a row for each operation that took effect. Each row
begins with its place in the ledger, the client that asked, the name of the operation, and the organisation."""

_RETRY = {
    "later": "send the same again, later",
    "elsewhere": "ask another broker",
    "changed": "change something first",
    "never": "nothing: it stays refused",
}
_PARTS = {
    id(tables.TEXT): "text",
    id(tables.NUMBER): "number",
    id(tables.LARGE): "number",
    id(tables.POSITION): "position",
    id(tables.REST): "bytes",
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page instead of printing it")
    if parser.parse_args(arguments).write:
        PAGE.write_text(page(DATA_SHARD), encoding="utf-8")
    else:
        print(page(DATA_SHARD), end="")
    return 0


def page(application: Application) -> str:
    names = [f"`{module.name}`" for module in application.modules if module is not HOST]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    made_of = _MODULES.format(name=application.name, version=application.version, modules=listed)
    parts = [
        _wrapped(f"{_HEAD}\n\n{made_of}"),
        _section(
            "Operations", _OPERATIONS, ("operation", "module", "fields", "meaning"), _operations(application)
        ),
        _section(
            "Kinds of batches", _BATCHES, ("kind", "number", "module", "applied"), _batches(application)
        ),
        _section(
            "Outcomes and leaves",
            _OUTCOMES,
            ("name", "is", "class", "module", "fields", "meaning", "text"),
            _receipts(application),
        ),
        _section(
            "Tables",
            _TABLES,
            (
                "table",
                "module",
                "key",
                "record",
                "meaning",
                "bound",
                "shown to",
                "listed",
                "expires",
                "index",
            ),
            _tables(application),
        ),
        _section(
            "Refusals",
            _REFUSALS,
            ("code", "module", "meaning", "what to do", "HTTP", "properties"),
            _codes(application),
        ),
        _section("Reasons", _REASONS, ("code", "reason", "said by", "text"), _reasons(application), level=3),
        _section(
            "Questions of clients",
            _QUESTIONS,
            ("question", "answers", "who may ask", "cost", "fields", "meaning"),
            _questions(),
        ),
        _section("Metrics", _METRICS, ("metric", "kind", "labels", "public", "meaning"), _metrics()),
        _section("Ledger tables", _LEDGER, ("table", "module", "columns"), _ledger_tables(application)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, about: str, columns: Row, rows: Iterable[Row], *, level: int = 2) -> str:
    """Columns are not padded: a wider cell would change every line of the table."""
    ordered = sorted(rows, key=lambda row: [cell.replace("`", "") for cell in row])
    lines = [_line(columns), "|" + "---|" * len(columns), *map(_line, ordered)]
    return f"{'#' * level} {title}\n\n{_wrapped(about)}\n\n" + "\n".join(lines)


def _wrapped(text: str) -> str:
    """Paragraphs at 100 columns; lists stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(one if one.startswith(("-", "#")) else fill(one, WIDTH) for one in paragraphs)


def _line(cells: Row) -> str:
    return "|" + "".join(f" {escaped} |" if (escaped := cell.replace("|", "\\|")) else " |" for cell in cells)


# -- rows --------------------------------------------------------------------------------------------------------------


def _operations(application: Application) -> Iterator[Row]:
    for module in application.modules:
        for kind in module.operations:
            yield _code(kind.name_of()), module.name, _fields(kind), _sentence(kind)


def _batches(application: Application) -> Iterator[Row]:
    yield "`control`", str(CONTROL), HOST.name, "once, in sequence"
    for module in application.modules:
        for kind in module.batches:
            how = "once, in sequence" if kind.sequence else "once, in any order"
            late = "; its receipt may stand in a later block" if kind.late else ""
            yield _code(kind.name), str(kind.kind), module.name, how + late


def _receipts(application: Application) -> Iterator[Row]:
    yield _receipt(HOST, BatchReceipt)
    for kind in HOST_OUTCOMES:
        yield _receipt(HOST, kind)
    for module in application.modules:
        for declared in (*module.outcomes, *module.leaves):
            yield _receipt(module, declared)


def _receipt(module: Module, kind: type[Struct]) -> Row:
    is_outcome = issubclass(kind, Outcome)
    return (
        _code(str(kind.__struct_config__.tag)),
        "outcome" if is_outcome else "leaf",
        _code(kind.__name__),
        module.name,
        _fields(kind),
        _sentence(kind),
        _text(module.texts.get(kind.__name__, "")) if is_outcome else "",
    )


def _tables(application: Application) -> Iterator[Row]:
    for module in application.modules:
        for table in module.tables:
            yield (
                _code(table.name),
                module.name,
                ", ".join(_part(part) for part in table.parts) or "none: there is one entry",
                _record(table),
                table.about,
                "" if table.bound is None else table.bound.about,
                table.visible.about,
                _listed(table),
                "yes" if table.expires else "",
                "" if not table.index else "passing" if table.passing else "yes",
            )


def _part(part: tables.Part) -> str:
    return _PARTS.get(id(part)) or f"{part.size} bytes"


def _record(table: AnyTable) -> str:
    if issubclass(table.record, Struct):
        return _fields(table.record)
    return "a count" if table.record is int else "bytes"


def _listed(table: AnyTable) -> str:
    if table.listed is None:
        return "no"
    return (
        "under the first part"
        if table.listed == 1
        else f"under {table.listed} parts"
        if table.listed
        else "all"
    )


def _codes(application: Application) -> Iterator[Row]:
    for kind, module in _refusals(application):
        yield (
            _code(kind.code),
            module,
            _sentence(kind),
            _RETRY[kind.retry],
            str(kind.status),
            ", ".join(_properties(kind)),
        )


def _refusals(application: Application) -> Iterator[tuple[type[Refused], str]]:
    for kind in refusals.classes().values():
        if kind.__module__ == refusals.__name__:
            yield kind, HOST.name
    for module in application.modules:
        for kind in module.refusals:
            yield kind, module.name


def _properties(kind: type[Refused]) -> Iterator[str]:
    for holds, word in (
        (not kind.final, "not final"),
        (not kind.settles, "waits"),
        (kind.keeps_place, "keeps its place"),
        (kind.passing, "passing"),
        (kind.stateless, "without state"),
        (kind.provable, "proved"),
        (kind.garbage, "garbage"),
        (kind.repeats, "may repeat"),
        (bool(kind.suspicion), f"counts as {kind.suspicion}"),
    ):
        if holds:
            yield word


def _reasons(application: Application) -> Iterator[Row]:
    codes = {kind.code for kind, _ in _refusals(application)}
    catalogues = [(module.name, module.texts) for module in application.modules]
    for name, texts in (*catalogues, ("broker", broker_texts.TEXTS), ("client", client_texts.TEXTS)):
        for key, text in texts.items():
            code, _, reason = key.partition(".")
            if code in codes:
                yield _code(code), _code(reason) if reason else "", name, _text(text)


def _questions() -> Iterator[Row]:
    for service in TABLE:
        kind = service.question
        yield (
            _code(kind.__name__),
            ", ".join(_code(answer.__name__) for answer in EXCHANGES[kind]) or "none",
            service.right.about,
            service.cost.about,
            _fields(kind),
            _sentence(kind),
        )


def _metrics() -> Iterator[Row]:
    for entry in CATALOGUE:
        labels = ", ".join(_code(label) for label in entry.labels)
        yield _code(entry.name), entry.kind, labels, "yes" if entry.public else "", entry.help


def _ledger_tables(application: Application) -> Iterator[Row]:
    for module in application.modules:
        for table in module.changes:
            columns = ", ".join(f"{_code(name)} {kind}" for name, kind in table.columns.items())
            yield _code(table.name), module.name, columns


# -- cells -------------------------------------------------------------------------------------------------------------


def _code(text: str) -> str:
    return f"`{text}`"


def _sentence(kind: type) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((kind.__doc__ or "").split())
    first, end, _ = text.partition(". ")
    return first + end.strip()


def _text(template: str) -> str:
    """A text of the catalogue, with the names of its fields in braces and nothing of how they are cut."""
    parsed = Formatter().parse(template)
    return "".join(said + (f"{{{name}}}" if name is not None else "") for said, name, _, _ in parsed)


def _fields(kind: type[Struct]) -> str:
    declared = inspect.type_info(BatchReceipt[Outcome] if kind is BatchReceipt else kind)
    assert isinstance(declared, inspect.StructType)
    return ", ".join(f"{_code(field.name)} {_type(field.type)}" for field in declared.fields)


def _type(kind: inspect.Type) -> str:
    match kind:
        case inspect.StrType():
            return _up_to("text", kind.max_length)
        case inspect.BytesType():
            is_fixed = kind.min_length is not None and kind.min_length == kind.max_length
            return f"{kind.max_length} bytes" if is_fixed else _up_to("bytes", kind.max_length)
        case inspect.IntType():
            return _number(kind)
        case inspect.BoolType() | inspect.NoneType():
            return "yes or no" if isinstance(kind, inspect.BoolType) else "nothing"
        case inspect.LiteralType():
            return " or ".join(_code(str(value)) for value in kind.values)
        case inspect.UnionType():
            return " or ".join(_type(one) for one in kind.types)
        case inspect.StructType():
            return "outcome" if kind.cls is Outcome else f"({_fields(kind.cls)})"
        case _:
            return _series(kind)


def _series(kind: inspect.Type) -> str:
    if kind == _POSITION:
        return "position"
    if kind == _PAIRS:
        return "names with values"
    if isinstance(kind, inspect.TupleType):
        return f"({', '.join(_type(one) for one in kind.item_types)})"
    assert isinstance(kind, inspect.VarTupleType), f"there is no word for {kind} yet"
    return _up_to("list", kind.max_length) + f" of {_type(kind.item_type)}"


def _up_to(what: str, limit: int | None) -> str:
    return what if limit is None else f"{what} up to {limit}"


def _number(kind: inspect.IntType) -> str:
    """With its limits, unless they are only those of a machine's numbers."""
    highest = kind.le if kind.le is not None else None if kind.lt is None else kind.lt - 1
    if highest is None or highest >= 2**32 - 1:
        return "number"
    return f"number {kind.ge or 0} to {highest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
