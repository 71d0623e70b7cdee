"""`parley audit watch`: who misbehaves, told from the ledger by a streaming job on Spark, with a table, a report and a chart."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from parley.cli import output, plots, watch_plot
from parley.cli.contexts import As, Chosen, ContextName, Directory, find
from parley.cli.network import INTERRUPTED, handling
from parley.cli.on_spark import ending, network_of, require_spark
from parley.client.contexts import read_genesis
from parley.spark import session
from parley.spark.auditing import Ledger
from parley.spark.detect_report import Report, markdown, moment, report
from parley.spark.detect_rules import MAX_DISTINCT, Alert, Thresholds
from parley.spark.options import table_options

if TYPE_CHECKING:
    from parley.spark.detect import Watch

LOCAL = "local[2]"
CHECKPOINT, LOG = (
    "_checkpoint",
    "_spark.log",
)  # in the folder of the table; Spark passes over names like these
MAX_SHOWN = 40
MAX_COUNT = 1_000_000_000
COLOURS = {"notice": "dim", "warning": "yellow", "critical": "bold red"}
DEFAULTS = Thresholds()

PANEL = "From where on it is told"


def _from(most: int, words: str) -> Any:  # noqa: ANN401 - as typer says
    """A threshold."""
    return typer.Option(min=1, max=most, help=words, rich_help_panel=PANEL)


_Refusals = Annotated[int, _from(MAX_COUNT, "Refused operations of a client within the window.")]
_Probed = Annotated[int, _from(MAX_DISTINCT, "Topics, unknown or forbidden, that a client tries within it.")]
_Replays = Annotated[
    int, _from(MAX_COUNT, "Batches of a client that come again, too late, or after its end.")
]
_Reused = Annotated[int, _from(MAX_DISTINCT, "Batches whose sequence another one has used.")]
_Window = Annotated[int, _from(86_400, "The window, in seconds of block time.")]
_Blocks = Annotated[int, _from(MAX_COUNT, "Certified blocks in a row without a broker's vote,")]
_Seconds = Annotated[int, _from(MAX_COUNT, "and seconds of block time that these take at least.")]


def watch(
    *,
    table: Annotated[
        Path, typer.Option(metavar="DIR", help="The table of alerts, and how far the job has come.")
    ] = Path("parley-alerts"),
    once: Annotated[
        bool, typer.Option("--once", help="Look at what is certified now, report, and end.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Report what the table has; start nothing.")] = False,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw who did what when as a PNG file.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write the report as a Markdown file.")
    ] = None,
    delta: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the alerts as a Delta table, too.")
    ] = None,
    spark: Annotated[
        str, typer.Option(metavar="URL", help="Where Spark runs: local[2], spark://HOST:PORT.")
    ] = LOCAL,
    refusals: _Refusals = DEFAULTS.refusals,
    probed: _Probed = DEFAULTS.probed,
    replays: _Replays = DEFAULTS.replays,
    reused: _Reused = DEFAULTS.reused,
    window: _Window = DEFAULTS.window // 1_000,
    silent_blocks: _Blocks = DEFAULTS.silent_blocks,
    silent_seconds: _Seconds = DEFAULTS.silent_time // 1_000,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.JsonLines = False,
) -> None:
    """Watch the ledger for misbehaviour of clients and brokers.

    Bursts of refused operations, topics that are probed, replays, reused sequences, brokers whose votes fall silent, and
    brokers that contradict themselves. It needs an identity with the right auditor. Without --once it goes on until
    Ctrl-C. Started again with the same table it goes on where it ended. With --once or --check the exit code is 1 if
    there is any alert.
    """
    require_spark()
    plots.check(chart, "--chart")
    if page is not None and not page.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {page.parent}.", param_hint="--report")
    if once and check:
        raise typer.BadParameter("say --once or --check, not both.", param_hint="--check")
    if check:
        _require_table(table)
    else:
        limits = Thresholds(
            refusals, probed, replays, reused, window * 1_000, silent_blocks, silent_seconds * 1_000
        )
        _run(find(directory, context), who, spark, (table, delta), limits, once=once, as_json=json)
    found = _read(table)
    if chart is not None:
        watch_plot.draw(found, chart)
    if page is not None:
        page.write_text(markdown(found, _beside(chart, page)))
    if once or check:
        output.emit(found, lambda: _told(found), as_json=json)
        raise typer.Exit(output.ExitCode.HOLDS if found.quiet else output.ExitCode.DOES_NOT_HOLD)
    raise typer.Exit(INTERRUPTED)


def _require_table(table: Path) -> None:
    """That nothing was noticed is good news only where somebody looked."""
    if not (table / CHECKPOINT).is_dir() and not any(table.glob("*.parquet")):
        output.fail(
            f"no watch has written to {table} yet; check the name, or run: parley audit watch --once --table {table}",
            output.ExitCode.WRONG_USE,
        )


def _beside(chart: Path | None, page: Path) -> str:
    """How the page names the chart."""
    if chart is None:
        return ""
    near = chart.absolute().parent == page.absolute().parent
    return chart.name if near else str(chart.absolute())


def _read(table: Path) -> Report:
    from parley.spark.detect_table import AlertTableError, read_alerts  # noqa: PLC0415 - an extra

    try:
        return report(read_alerts(table), str(table))
    except AlertTableError as error:
        output.fail(str(error), output.ExitCode.WRONG_USE)


# -- the job ---------------------------------------------------------------------------------------------------------


def _run(
    chosen: Chosen,
    who: str | None,
    master: str,
    tables: tuple[Path, Path | None],
    limits: Thresholds,
    *,
    once: bool,
    as_json: bool,
) -> None:
    from parley.spark.detect import Watch  # noqa: PLC0415 - an extra

    # Spark runs elsewhere: paths must not depend on where this command is.
    table, delta = tables[0].absolute(), None if tables[1] is None else tables[1].absolute()
    options = {**network_of(chosen), "identity": str(chosen.speaker(who).absolute())}
    watched = Watch(read_genesis(chosen.file.genesis), options, table, table / CHECKPOINT, limits, delta)
    tell = (lambda _: None) if once and as_json else _teller(as_json=as_json)
    with ending(f" (see {table / LOG})", chosen):
        _watch(watched, master, tell, once=once)


def _watch(watch: Watch, master: str, tell: Callable[[Sequence[Alert]], None], *, once: bool) -> None:
    """To the end, or to Ctrl-C."""
    from parley.spark.detect import Job  # noqa: PLC0415 - an extra

    job = Job(watch, tell)
    ledger = Ledger(table_options({**watch.options, "table": "evidence"}).network)
    job.ask(ledger)  # who may not read the ledger hears of it before Spark starts
    ended = Event()
    # Who is interrupted while Spark starts would leave it behind.
    with _noise_to(watch.table / LOG), _asking_to_end(ended):
        spark = session.spark_session("parley audit watch", master)
    try:
        with _asking_to_end(ended):  # again: Spark has put its own answer to Ctrl-C in the place of ours
            job.run(spark, ledger, once=once, ended=ended)
        if once and ended.is_set():
            raise typer.Exit(INTERRUPTED)
    finally:
        spark.stop()


def _asking_to_end(ended: Event) -> AbstractContextManager[None]:
    """Ctrl-C and a polite kill set it; they must not come between the two halves of a word with Spark."""
    return handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: ended.set()))


@contextmanager
def _noise_to(path: Path) -> Iterator[None]:
    """What a process that is started meanwhile writes to stderr goes there: Spark tells of every step of a stateful query."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# -- what is shown ---------------------------------------------------------------------------------------------------


def _teller(*, as_json: bool) -> Callable[[Sequence[Alert]], None]:
    def tell(alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            output.emit(alert, _line(alert), as_json=as_json)

    return tell


def _line(alert: Alert) -> Text:
    return Text.assemble(
        moment(alert.time), "  ", (f"{alert.severity:<8}", COLOURS[alert.severity]), "  ", alert.words
    )


def _told(found: Report) -> RenderableType:
    if found.quiet:
        return f"Nothing was noticed. Table {found.table}"
    return output.table(
        ("kind", "who", "since", "until", "how many", "severity"),
        (
            (
                one.kind,
                one.subject,
                moment(one.start),
                "goes on" if one.ongoing else moment(one.end),
                str(one.count),
                Text(one.severity, style=COLOURS[one.severity]),
            )
            for one in found.episodes[-MAX_SHOWN:]
        ),
    )
