"""A table of alerts as people and scripts want it: how much of each kind, what still goes on, and what happened when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from parley.model.text import unsteering
from parley.spark.detect_rules import Alert, Kind


class Episode(Struct):
    """Something that began, and ended or goes on. Times are block time in ms."""

    kind: Kind
    subject: str
    organisation: str
    severity: str
    start: int
    end: int
    ongoing: bool
    count: int
    words: str


class Report(Struct):
    """`kinds` counts episodes; `alerts` are the rows of the table in ledger order."""

    quiet: bool
    kinds: dict[str, int]
    ongoing: int
    critical: int
    episodes: list[Episode]
    alerts: list[Alert]
    table: str = ""


def report(alerts: Sequence[Alert], table: str = "") -> Report:
    """`alerts` are as `read_alerts` gives them."""
    episodes = _episodes(alerts)
    counts = Counter(episode.kind for episode in episodes)
    return Report(
        quiet=not alerts,
        kinds={kind.value: counts[kind] for kind in Kind if counts[kind]},
        ongoing=sum(episode.ongoing for episode in episodes),
        critical=sum(episode.severity == "critical" for episode in episodes),
        episodes=episodes,
        alerts=list(alerts),
        table=table,
    )


def moment(time: int) -> str:
    """Block time for people."""
    return datetime.fromtimestamp(time / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def markdown(found: Report, chart: str = "") -> str:
    """A page for those who were not there; `chart` is the name of a picture next to it."""
    lines = ["# Misbehaviour", "", _summary(found), ""]
    if chart:
        lines += [f"![When, who, what]({chart})", ""]
    if not found.quiet:
        lines += ["| block time (UTC) | heights | severity | kind | what |", "|---|---|---|---|---|"]
        lines += [
            f"| {moment(alert.time)} | {alert.height_from} to {alert.height_to} | {alert.severity} | {alert.kind} "
            f"| {_cell(alert.words)} |"
            for alert in found.alerts
        ]
        lines.append("")
    return "\n".join(lines)


def _summary(found: Report) -> str:
    if found.quiet:
        return "Nothing was noticed."
    kinds = ", ".join(f"{name} {count}" for name, count in found.kinds.items())
    return f"{len(found.episodes)} episodes ({kinds}), of which {found.critical} critical; {found.ongoing} go on."


def _cell(text: str) -> str:
    """Names of topics are anybody's words: they must not become markup."""
    plain = unsteering(text).replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("[", "\\[").replace("`", "\\`")


def _episodes(alerts: Sequence[Alert]) -> list[Episode]:
    """Rows of one kind and subject that begin at one height belong together; equivocation never ends."""
    found: dict[tuple[str, str, int, str], Episode] = {}
    for alert in alerts:
        once = alert.alert if alert.kind is Kind.EQUIVOCATION else ""
        key = (alert.kind, alert.subject, alert.height_from, once)
        known = found.get(key)
        if known is None:
            found[key] = Episode(
                alert.kind,
                alert.subject,
                alert.organisation,
                alert.severity,
                alert.time,
                alert.time,
                alert.phase != "ended" and not once,
                alert.count,
                alert.words,
            )
            continue
        known.end, known.count = max(known.end, alert.time), max(known.count, alert.count)
        if alert.phase == "ended":
            known.ongoing = False
        else:
            known.severity, known.words = alert.severity, alert.words
    return list(found.values())
