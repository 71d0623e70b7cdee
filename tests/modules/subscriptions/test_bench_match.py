"""The measurement measures what it says: so many subscriptions, of which so many match every message."""

import json
from collections.abc import Sequence

import typer
from typer.testing import CliRunner

from parley.application.machine import Machine
from parley.applications import DATA_SHARD
from parley.cli import bench_match
from parley.consensus.types import Block
from parley.ledger.application import Results
from parley.modules.subscriptions.receipts import match_of
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.store.interface import KeyValue

app = typer.Typer()
app.command()(bench_match.match)


class Recorder(Machine):
    """A state machine that is looked at."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(DATA_SHARD, machine._genesis, 0)
        self.results: list[Results] = []

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        self.results.append(super().apply(block, batches, state))
        return self.results[-1]


def test_a_block_holds_the_messages_and_the_matches_that_are_asked_for() -> None:
    chain = bench_match._Chain(30)
    chain.subscribe([bench_match._constraint(i, 4) for i in range(30)])
    seen = Recorder(chain._machine)
    chain._machine = seen
    assert chain.publish(250) > 0
    leaves = [DATA_SHARD.decode_leaf(leaf) for leaf in seen.results[-1].leaves]
    found = [match for leaf in leaves if (match := match_of(leaf)) is not None]
    assert [len(leaf.items) for leaf in found] == [250] * 4
    assert len(leaves) == 3 + 4
    assert len(list(chain._store.scan(SUBSCRIPTIONS.places()))) == 30


def test_the_result_has_the_keys_that_scripts_rely_on() -> None:
    words = ["--subscriptions", "20", "--matching", "2", "--blocks", "1", "--messages", "50", "--runs", "1"]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0
    cases = json.loads(result.stdout)["results"]
    assert [case["case"] for case in cases] == ["no subscriptions", "2 subscriptions", "20 subscriptions"]
    for case in cases:
        assert case.keys() >= {"case", "value", "unit", "baseline", "ratio", "spread"}
    assert cases[1]["ratio"] == 1
    assert "20 subscriptions" in CliRunner().invoke(app, words).stdout


def test_more_matching_subscriptions_than_subscriptions_are_wrong_use() -> None:
    result = CliRunner().invoke(app, ["--subscriptions", "1", "--matching", "2"])
    assert result.exit_code == 2
