"""The worked pipeline, as the demo runs it: one network, one run, then more readings and a second run that reads only those."""

from __future__ import annotations

import json
import shlex
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import nbformat
import pyarrow.dataset as ds
import pytest
import typer
from deltalake import DeltaTable
from nbclient import NotebookClient
from rich.console import Console
from typer.testing import CliRunner

from parley.cli import app as cli
from parley.cli import demo_pipeline, pipeline
from parley.cli.contexts import Chosen
from parley.cli.examples import yesterday
from parley.spark.pipeline import worker
from parley.spark.pipeline.folder import Busy, Folder, OtherNetwork
from parley.spark.pipeline.report import read_run
from parley.spark.pipeline.sensors import Pace, Reading, readings
from parley.spark.pipeline.tenants import TENANTS

PNG = b"\x89PNG\r\n\x1a\n"
MORE = 600
DAMAGED = 0.9  # of them: more than is expected of the whole

NOTEBOOK = Path(__file__).parents[2] / "examples" / "sensors.ipynb"
SECONDS = 180  # for a cell

runner = CliRunner()


@dataclass(frozen=True)
class Told:
    """The network of the demo, where its pipeline works, what was published, and what it said."""

    chosen: Chosen
    folder: Folder
    sent: list[Reading]
    outcome: demo_pipeline.Outcome
    steps: list[str]


@pytest.fixture(scope="module")
def told(java: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = Folder(tmp_path_factory.mktemp("pipeline") / "out")
    steps: list[str] = []
    with demo_pipeline.staged() as chosen:
        sent = list(islice(readings(demo_pipeline.SEED, Pace(yesterday())), demo_pipeline.READINGS))
        yield Told(chosen, folder, sent, demo_pipeline.perform(chosen, folder, steps.append), steps)


def flaws(sent: list[Reading], topic: str) -> dict[str, int]:
    return dict(Counter(reading.flaw for reading in sent if reading.topic == topic and reading.flaw))


def test_every_reading_is_in_bronze_and_then_in_silver_or_set_aside_for_its_flaw(told: Told) -> None:
    run = told.outcome.run
    assert told.outcome.holds
    for tenant in TENANTS:
        count = sum(reading.topic == tenant.topic for reading in told.sent)
        aside = flaws(told.sent, tenant.topic)
        assert run.tables[tenant.bronze].rows == run.tables[tenant.bronze].new == count
        assert run.dead_letters[tenant.dead] == aside
        assert run.tables[tenant.silver].rows == count - sum(aside.values())


def test_every_expectation_was_counted_and_holds(told: Told) -> None:
    found = told.outcome.run.expectations
    assert {one.table for one in found} >= {table for tenant in TENANTS for table in tenant.tables}
    assert [one for one in found if not one.holds] == []
    assert all(one.rows > 0 for one in found)


def test_gold_is_the_same_in_parquet_and_delta_and_has_a_chart(told: Told) -> None:
    for tenant, gold in zip(TENANTS, told.outcome.run.gold, strict=True):
        keys = [("hour", "ascending"), (tenant.place, "ascending")]
        parquet = ds.dataset(gold.parquet, format="parquet").to_table().sort_by(keys)
        delta = DeltaTable(gold.delta).to_pyarrow_table().sort_by(keys)
        assert parquet.to_pylist() == delta.to_pylist()
        assert parquet.num_rows == gold.rows >= 24 * len(tenant.places)
        assert set(parquet.column(tenant.place).to_pylist()) == set(tenant.places)
        assert Path(gold.chart).read_bytes().startswith(PNG)


def test_a_tenant_that_meddles_with_the_other_is_refused_and_told_no_rule(told: Told) -> None:
    assert told.outcome.refusal.startswith(
        "UnknownTopic: there is no topic vitals, or you may not know of it"
    )
    assert "role" not in told.outcome.refusal


def test_progress_names_each_table_once(told: Told) -> None:
    assert sorted(told.steps[2:]) == sorted(
        [*(table for tenant in TENANTS for table in tenant.tables), "expectations", "dead_letter_reasons"]
    )
    assert len(told.steps) + 1 == demo_pipeline.STEPS


def test_neither_keys_nor_tokens_are_in_what_a_run_leaves_behind(told: Told) -> None:
    secrets = {
        json.loads(path.read_bytes())["seed"]
        for path in (told.chosen.directory / "identities").glob("*.json")
    }
    assert len(secrets) > 4
    for path in told.folder.path.rglob("*"):
        if path.is_file():
            content = path.read_bytes().decode("latin-1")
            assert not any(secret in content for secret in secrets), path
    assert told.folder.path.stat().st_mode & 0o077 == 0
    assert told.folder.log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("width", [80, 120])
def test_the_chapter_can_be_read_on_any_terminal(told: Told, width: int) -> None:
    console = Console(width=width, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(demo_pipeline.tell(told.outcome))
    text = captured.get()
    assert max(map(len, text.splitlines())) <= width
    assert "vitals_per_ward" in text
    assert "cardiology" in text
    assert "all of them hold" in " ".join(text.split())


@pytest.mark.long
def test_a_second_run_reads_only_what_is_new_and_shows_what_is_not_as_expected(told: Told) -> None:
    before, where = told.outcome.run, ["--dir", str(told.chosen.directory)]
    more = ["--messages", str(MORE), "--malformed", str(DAMAGED), "--seed", "9", "--json"]
    sent = runner.invoke(cli.app, ["examples", "sensors", *where, *more])
    assert sent.exit_code == 0
    published = json.loads(sent.stdout)
    assert sum(published["topics"].values()) == published["messages"] == MORE

    ended = runner.invoke(cli.app, ["pipeline", "run", *where, "--out", str(told.folder.path), "--json"])
    assert ended.exit_code == 1
    run = json.loads(ended.stdout)
    assert not run["holds"]
    for tenant in TENANTS:
        new = published["topics"][tenant.topic]
        assert run["tables"][tenant.bronze] == {"rows": before.tables[tenant.bronze].rows + new, "new": new}
        added = run["tables"][tenant.silver]["new"] + run["tables"][tenant.dead]["new"]
        assert added == new
    failing = {(one["table"], one["expectation"]) for one in run["expectations"] if not one["holds"]}
    assert failing == {(tenant.topic, "readings are well-formed") for tenant in TENANTS}
    assert [gold["delta_version"] for gold in run["gold"]] == [1, 1]
    assert DeltaTable(run["gold"][0]["delta"], version=0).to_pyarrow_table().num_rows == before.gold[0].rows
    assert _shown(told, run["output"])


def _shown(told: Told, output: str) -> bool:
    """What people see of the same run: what fails stands first."""
    run = read_run(told.folder)
    assert run is not None
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(pipeline.told(run))
    lines = captured.get().splitlines()
    first = next(number for number, line in enumerate(lines) if "expectation" in line) + 1
    assert all("DOES NOT HOLD" in line for line in lines[first : first + 2])
    assert "DOES NOT HOLD" not in lines[first + 2]
    return output in captured.get()


def test_one_run_at_a_time_works_in_a_folder_and_for_one_network(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out")
    folder.path.mkdir(mode=0o755)
    with folder.held("one"):
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    with folder.held("one"), pytest.raises(Busy, match="another run works in"), folder.held("one"):
        pass
    with pytest.raises(OtherNetwork, match="tables of another network"), folder.held("two"):
        pass
    with folder.held("one"):
        pass


def test_the_name_of_a_folder_is_no_option_of_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr(worker, "spark_session", lambda *_, more, **__: given.update(more))
    folder = Folder(tmp_path / 'my "own" \\ -XX:out')
    folder.path.mkdir()
    worker._server(folder, "local[2]")
    assert shlex.split(given["spark.driver.extraJavaOptions"])[-1] == f"-Dderby.system.home={folder.catalog}"


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    """A run deletes the folder `pipeline` in it, and writes it anew."""
    (tmp_path / "pipeline").mkdir()
    with pytest.raises(OtherNetwork, match="holds other things"), Folder(tmp_path).held("one"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline"]


def test_the_demo_deletes_only_what_a_demo_made(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("four years of work")
    with pytest.raises(typer.Exit):
        demo_pipeline.play(tmp_path, lambda _: None)
    assert (tmp_path / "thesis.txt").exists()


def test_the_demo_leaves_the_tables_of_a_network_alone(tmp_path: Path) -> None:
    with Folder(tmp_path / "out").held("one"):
        pass
    with pytest.raises(typer.Exit):
        demo_pipeline.play(tmp_path / "out", lambda _: None)
    assert list((tmp_path / "out").iterdir()) != []


# -- the notebook ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom_and_stores_no_outputs(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    monkeypatch.setenv("PARLEY_EXAMPLE", str(told.chosen.directory))
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3").execute()
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    assert any("image/png" in data for data in shown)
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
