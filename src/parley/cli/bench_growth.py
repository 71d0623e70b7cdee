"""`parley bench growth`: CPU time per publication against everything that may grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from parley.cli import bench_home, bench_plot, output, plots
from parley.cli.contexts import nearest

if TYPE_CHECKING:
    from parley.bench.figures import Case
    from parley.bench.growth import Growth

NAMES = ("brokers", "size", "batch", "subscribers", "subscriptions", "topics", "ledger")
QUICK_SECONDS = 3.0
WARM_UP, QUICK_WARM_UP = 2.0, 1.0


def growth(
    *,
    to: Annotated[
        Path,
        typer.Option("--to", metavar="DIR", help="Where a chart and a file of points go, per dimension."),
    ] = Path("growth"),
    only: Annotated[
        str, typer.Option(metavar="NAMES", help="Which dimensions, with commas between them.")
    ] = ",".join(NAMES),
    seconds: bench_home.Seconds = 10.0,
    runs: Annotated[
        int, typer.Option(min=1, max=100, help="Windows per point, of which the middle one counts.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="At most 3 s per window.")] = False,
    settings: bench_home.Set = None,
    directory: bench_home.Keep = None,
    json: output.Json = False,
) -> None:
    """Measure what a publication costs against brokers, sizes, batches, readers, subscriptions, topics and ledger.

    Each dimension grows alone while the others stay: 4 brokers, batches of 100 messages of 128 bytes, one topic, nobody
    who reads. Every point is taken at full load, but for readers, who set the pace of the publisher. A file of points and a
    chart are written after each dimension.
    """
    names = _names(only)
    to.mkdir(parents=True, exist_ok=True)
    plots.check(to / "growth.png", "--to")
    chosen = bench_home.parse_settings(settings)

    async def work(home: Path) -> list[Growth]:
        from parley.bench.growth import DIMENSIONS, Bench, dimension  # noqa: PLC0415 - needs the extra `node`

        found = []
        with output.progress("measuring", sum(len(DIMENSIONS[name].values) for name in names)) as advance:
            bench = Bench(
                home=home,
                seconds=min(seconds, QUICK_SECONDS) if quick else seconds,
                warm_up=QUICK_WARM_UP if quick else WARM_UP,
                runs=runs,
                advance=advance,
                keep=directory is not None,
                settings=chosen,
            )
            for name in names:
                one = await dimension(bench, name)
                _write(to, one, logarithmic=DIMENSIONS[name].logarithmic)
                found.append(one)
        return found

    found = bench_home.measured("growth", directory, work)
    results = [case for one in found for case in _cases(one)]
    title = f"parley bench growth: CPU time per publication; charts are in {to}"
    output.emit({"results": results, "growth": found}, lambda: bench_home.cases(title, results), as_json=json)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in NAMES:
            raise typer.BadParameter(
                f"{name!r} is not one of {', '.join(NAMES)}{nearest(name, list(NAMES))}", param_hint="--only"
            )
    return [name for name in NAMES if name in names]


def _write(to: Path, one: Growth, *, logarithmic: bool) -> None:
    (to / f"{one.dimension}.json").write_bytes(msgspec.json.format(msgspec.json.encode(one)) + b"\n")
    bench_plot.draw_growth(one, to / f"{one.dimension}.png", logarithmic=logarithmic)


def _cases(one: Growth) -> list[Case]:
    """Against the first point of the dimension."""
    from parley.bench.figures import Case  # noqa: PLC0415 - needs the extra `node`

    first = one.points[0].cpu_us_per_publication
    return [
        Case(
            f"{one.label}: {point.x}",
            point.cpu_us_per_publication,
            "µs/publication",
            first,
            round(point.cpu_us_per_publication / first, 3),
            point.spread,
        )
        for point in one.points
    ]
