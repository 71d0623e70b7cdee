"""What `parley chaos` tells of expensive clients: how long a bystander waited, and what brokers took."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.chaos.bars import Expense, Waiting


def told(found: Expense) -> RenderableType:
    outcomes = [Text(f"  {one.attack}, {one.seconds:.0f} s: {one.outcome}") for one in found.attacks]
    return Group(Text(""), _waiting(found), Text(""), *outcomes, Text(""), _brokers(found))


def _waiting(found: Expense) -> Table:
    """A line for the quiet time, one for each attack, and one for all of them."""
    kinds = sorted({*found.quiet, *found.attacked})
    heads = [f"{kind} {figure}" for kind in kinds for figure in ("p50", "p99")]
    table = _table("a bystander's", *heads, "unanswered")
    rows = [("quiet", found.quiet), *((one.attack, one.waiting) for one in found.attacks)]
    for name, waiting in [*rows, ("all attacks", found.attacked)]:
        times = [cell for kind in kinds for cell in _times(waiting.get(kind))]
        unanswered = sum(one.unanswered for one in waiting.values())
        table.add_row(name, *times, str(unanswered))
    return table


def _times(waiting: Waiting | None) -> tuple[str, str]:
    return ("-", "-") if waiting is None else (_milliseconds(waiting.p50), _milliseconds(waiting.p99))


def _brokers(found: Expense) -> Table:
    table = _table("largest of each broker", "memory", "execution of a block", "hold of the loop", "receipts")
    for name, one in found.brokers.items():
        table.add_row(
            name,
            "not measured" if one.memory_bytes is None else f"{one.memory_bytes / 1e6:.0f} MB",
            _milliseconds(one.execution_s),
            f"{_milliseconds(one.loop_s)} {one.job}".rstrip(),
            _mebibytes(one.receipts_bytes),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 2), pad_edge=False)
    table.add_column(first)
    for other in others:
        table.add_column(other)
    return table


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1_000:.0f} ms"


def _mebibytes(size: float | None) -> str:
    return "not measured" if size is None else f"{size / 2**20:.1f} MiB"
