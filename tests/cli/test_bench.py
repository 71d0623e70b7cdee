"""The benchmark measures what it says: it commits the blocks that it counts, for every number of replicas."""

import json

import pytest
from typer.testing import CliRunner

from parley.cli import app as cli
from parley.cli import bench

runner = CliRunner()


@pytest.mark.parametrize("nodes", [1, 2, 4, 7])
def test_every_block_that_is_counted_is_committed_and_carries_a_batch(nodes: int) -> None:
    network = bench._Network(nodes, 100)
    assert network.run(20) >= 20
    replica = network._replicas[0]
    assert replica.executed_height >= 20
    blocks = [replica._chain.block(height) for height in range(1, 20)]
    assert all(block is not None and len(block.batches) <= 1 for block in blocks)
    # A single replica certifies and executes at once, so every batch is followed by the empty blocks that cover it.
    assert sum(block is not None and len(block.batches) for block in blocks) >= (3 if nodes == 1 else 15)


def test_the_result_has_the_keys_that_scripts_rely_on() -> None:
    result = runner.invoke(cli.app, ["bench", "consensus", "--blocks", "10", "--runs", "1", "--json"])
    assert result.exit_code == 0
    measured = json.loads(result.stdout)
    assert measured["blocks_per_cpu_second"] > 0
    assert measured["spread"] == 0
    assert measured["goal"] == bench.GOAL


def test_only_four_replicas_have_a_goal() -> None:
    words = ["bench", "consensus", "--nodes", "2", "--blocks", "10", "--runs", "1"]
    assert json.loads(runner.invoke(cli.app, [*words, "--json"]).stdout)["goal"] is None
    assert "goal" not in runner.invoke(cli.app, words).stdout
