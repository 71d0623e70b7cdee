"""What a version of the application decides never changes: networks of that version would disagree."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application import golden
from tests.application.world import make_genesis

from parley.application.application import VersionError
from parley.applications import DATA_SHARD, VERSION
from parley.model.batches import CONTROL
from parley.model.receipts import Leaf, Outcome, receipt_of

CHAINS = golden.load(VERSION)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: str(len(chain.blocks)))
def test_a_kept_chain_replays_to_its_recorded_roots(chain: golden.GoldenChain) -> None:
    assert chain.version == VERSION
    assert golden.replayed(chain).blocks == chain.blocks


def test_kept_chains_have_every_operation_every_kind_of_batch_and_every_leaf() -> None:
    replays = [golden.replayed(chain) for chain in CHAINS]
    leaves = [DATA_SHARD.decode_leaf(leaf) for replay in replays for leaf in replay.leaves]
    opened = [batch for replay in replays for batch in replay.opened]
    operations = {type(one.operation).name_of() for one in opened if one.operation is not None}
    kinds = {one.batch.header.kind for one in opened}
    assert operations == set(DATA_SHARD.operations)
    assert kinds == {CONTROL, *DATA_SHARD.batch_kinds}
    assert {leaf.kind for leaf in leaves} == {"batch", *_names(DATA_SHARD.leaf_kinds)}
    outcomes = {receipt.outcome_name for receipt in map(receipt_of, leaves) if receipt is not None}
    assert outcomes == set(_names(DATA_SHARD.outcomes))


def test_recorded_roots_of_a_version_never_change() -> None:
    """They may change only with the version, whose file has another name then."""
    for file in sorted(golden.FOLDER.glob("*.json")):
        name = file.relative_to(ROOT).as_posix()
        commits = _git("log", "--diff-filter=A", "--format=%H", "--", name).split()
        if commits:  # not yet committed: it is being recorded
            first = _git("show", f"{commits[-1]}:{name}")
            assert first == file.read_text(), f"{name} was changed after it was recorded"
    assert golden.file_of(VERSION).exists()


def test_another_version_is_refused_at_the_start() -> None:
    with pytest.raises(VersionError, match=f"version {VERSION + 1} .* this program has version {VERSION}"):
        DATA_SHARD.mount(replace(make_genesis(), application=VERSION + 1))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is not a clone of the repository, so that its history cannot be compared")
    return done.stdout


def _names(kinds: Sequence[type[Outcome | Leaf]]) -> list[str]:
    return [str(kind.__struct_config__.tag) for kind in kinds]
