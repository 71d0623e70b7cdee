"""The table of alerts: Parquet files that are named after what they hold, and a Delta table of the same rows if wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from parley.spark.delta import append_rows
from parley.spark.detect_rules import Alert, Kind

MAX_FILES = 100_000  # that a report reads

SCHEMA = pa.schema(
    [
        ("alert", pa.string()),
        ("kind", pa.string()),
        ("subject", pa.string()),
        ("organisation", pa.string()),
        ("phase", pa.string()),
        ("severity", pa.string()),
        ("height_from", pa.int64()),
        ("height_to", pa.int64()),
        ("time", pa.timestamp("ms", tz="UTC")),
        ("count", pa.int64()),
        ("words", pa.string()),
        ("evidence", pa.list_(pa.int64())),
    ]
)


class AlertTableError(Exception):
    """What is there is not a table of alerts."""


class AlertTable:
    """Where one query writes. The same name twice is the same rows twice, and they are there once."""

    def __init__(self, folder: Path, delta: Path | None = None) -> None:
        self._folder = folder
        self._delta = delta

    def write(self, query: str, number: int, alerts: Sequence[Alert]) -> bool:
        """All rows of the `number`th part of a query, or none; whether they are new. A crash leaves no half of a file."""
        if not alerts:
            return False
        rows = _table(alerts)
        path = self._folder / f"{query}-{number:09}.parquet"
        is_new = not path.exists()
        if is_new:
            # What the ledger says of clients is for auditors (P22).
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.name}")  # readers pass over names like this
            pq.write_table(rows, unfinished)
            unfinished.replace(path)
        if self._delta is not None:
            append_rows(lambda: rows, number, str(self._delta), query)
        return is_new


def read_alerts(folder: Path) -> list[Alert]:
    """Every alert once, in ledger order, whatever queries wrote them."""
    paths = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    if len(paths) > MAX_FILES:
        raise AlertTableError(f"{folder} has {len(paths)} files; {MAX_FILES} can be read")
    found: dict[str, Alert] = {}
    for path in paths:
        try:
            rows = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise AlertTableError(f"{path} is not a part of a table of alerts: {error}") from None
        if not rows.schema.equals(SCHEMA):
            raise AlertTableError(f"{path} is not a part of a table of alerts: it has other columns")
        for alert in _alerts(rows):
            found.setdefault(alert.alert, alert)
    return sorted(found.values(), key=lambda one: (one.time, one.height_to, one.kind, one.subject, one.alert))


def _table(alerts: Iterable[Alert]) -> pa.Table:
    rows = [{name: getattr(alert, name) for name in SCHEMA.names} for alert in alerts]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _alerts(rows: pa.Table) -> list[Alert]:
    times = rows.column("time").cast(pa.int64()).to_pylist()
    return [
        Alert(**{**row, "kind": Kind(row["kind"]), "time": time, "evidence": tuple(row["evidence"])})
        for row, time in zip(rows.drop_columns(["time"]).to_pylist(), times, strict=True)
    ]
