"""What an audit found: every damaged entry once, in the order in which the single-process verifier would meet them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from parley.ledger import layout
from parley.ledger.audit_blocks import NOT_IT, Check

MAX_FINDINGS = 10_000  # that a report lists; a piece of work tells no more either
SUFFIXES = (".parquet", ".json")


class Finding(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`entry` of a store is wrong; `height` is that of the block with which it was looked at, None: with none.

    No entry: the disk does not give back what was to be looked at.
    """

    check: int
    height: int | None
    entry: bytes
    what: str

    @property
    def text(self) -> str:
        """As the verifier of one process says it."""
        return f"entry {layout.name(self.entry)} {self.what}" if self.entry else self.what


class Report(msgspec.Struct, frozen=True):
    """`heights` blocks with `publications` were all looked at; `erased` bodies were not there, and need not be.

    `unlisted` findings are above the limit. `replayed`: every block was executed again.
    """

    valid: bool
    heights: int
    publications: int
    first_fault: str | None
    replayed: bool
    findings: tuple[Finding, ...]
    unlisted: int
    erased: int
    tasks: int
    seconds: float


def unreadable(what: str, entry: bytes = b"", seconds: float = 0.0) -> Report:
    """Of a store that cannot even be opened, or in which nothing else can be looked at."""
    finding = Finding(Check.WHOLE, None, entry, what)
    return Report(False, 0, 0, finding.text, False, (finding,), 0, 0, 0, seconds)


def merge(pieces: Iterable[Sequence[Finding]], executed: Sequence[Finding], reached: int) -> list[Finding]:
    """The findings of all pieces, which are in order, with those of executing the blocks again up to `reached`.

    Several tasks share out the indices of a store otherwise than by the order of their keys, which is that of the
    verifier. What executing a block confirmed is not to blame if block and receipts do not fit the history.
    """
    ordered = [_blamed(finding, reached) for piece in pieces for finding in piece]
    indices = [at for at, one in enumerate(ordered) if one.check == Check.INDICES and one.height is None]
    by_key = sorted((ordered[at] for at in indices), key=lambda one: one.entry)
    for at, finding in zip(indices, by_key, strict=True):
        ordered[at] = finding
    for late in executed:
        at = next((at for at, one in enumerate(ordered) if _is_later(one, late)), len(ordered))
        ordered.insert(at, late)
    unique: dict[bytes, Finding] = {}
    for finding in ordered:
        unique.setdefault(finding.entry, finding)
    return list(unique.values())


def _blamed(finding: Finding, reached: int) -> Finding:
    height = finding.height
    if finding.check != Check.HISTORY or height is None or height > reached:
        return finding
    right = finding.entry == layout.receipts(height) and finding.what == NOT_IT
    return replace(finding, entry=layout.committed(height)) if right else finding


def _is_later(one: Finding, late: Finding) -> bool:
    if one.height is None or late.height is None:
        return one.height is None
    return (one.height, one.check) > (late.height, late.check)


def write(report: Report, path: Path) -> None:
    """One table, as the ending of the name says: Parquet, or JSON with a line for each finding."""
    rows = [
        {
            "check": Check(finding.check).name.lower(),
            "height": finding.height,
            "entry": layout.name(finding.entry),
            "what": finding.what,
            "key": finding.entry,
        }
        for finding in report.findings
    ]
    if path.suffix == ".json":
        lines = [
            {**row, "key": finding.entry.hex()} for row, finding in zip(rows, report.findings, strict=True)
        ]
        path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        return
    import pyarrow as pa  # noqa: PLC0415 - only who writes it needs it
    from pyarrow import parquet  # noqa: PLC0415

    schema = pa.schema(
        [("check", pa.string()), ("height", pa.int64()), ("entry", pa.string()), ("what", pa.string())]
    ).append(pa.field("key", pa.binary()))
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)
