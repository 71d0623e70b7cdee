"""Same state and block, same outcome: whatever is cached, in whatever order anything was put where (T24)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.application.histories import History
from tests.application.world import World, mount, tagged

from parley.application.sequences import SEQUENCES
from parley.crypto.hashing import digest
from parley.ledger.application import Results
from parley.modules.subscriptions.operations import Subscribe
from parley.store.memory import MemoryStore

ROOT = Path(__file__).parents[2]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_fresh_application_for_every_block_does_the_same(seed: int) -> None:
    world = play(seed)
    store = MemoryStore()
    for (block, batches), expected in zip(world.blocks, world.outcomes, strict=True):
        machine, _ = mount(world.genesis)
        outcome = machine.apply(block, [(batch.digest, batch.body) for batch in batches], store)
        assert outcome == expected
        # Into a store that was filled in another order.
        entries = [*store.scan(b""), *outcome.writes]
        store = MemoryStore()
        store.write(dict(entries).items())


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_state_root_is_that_of_a_map_of_all_entries(seed: int) -> None:
    world = play(seed, blocks=12)
    assert world.rebuilt_root() == world.root


def test_the_hashes_of_python_make_no_difference() -> None:
    traces = {trace_in_process(hash_seed) for hash_seed in ("0", "1", "4242")}
    assert len(traces) == 1


def test_after_a_failed_read_nothing_derived_is_trusted() -> None:
    world = World()
    world.topic("orders")
    alice = world.client("alice")
    world.do(alice, Subscribe("orders", "a = 1"))
    # The store fails after the application has taken in the second subscription.
    batches = [
        world.publication(alice, "orders", tagged(b=1)),
        world.control(alice, Subscribe("orders", "b = 1")),
        world.publication(alice, "orders", tagged(a=1), session=b"2" * 16),
    ]
    block = world.next_block(batches)
    pairs = [(batch.digest, batch.body) for batch in batches]
    with pytest.raises(OSError, match="broken"):
        world.machine.apply(block, pairs, Broken(world.store))
    fresh = mount(world.genesis)[0].apply(block, pairs, world.store)
    assert world.machine.apply(block, pairs, world.store) == fresh


def test_a_block_may_be_applied_to_an_older_state_again() -> None:
    """As after a restart from a store whose last write was lost."""
    world = World()
    world.topic("orders")
    alice = world.client("alice")
    old = world.store.frozen()
    batches = [
        world.publication(alice, "orders", tagged(a=1)),
        world.control(alice, Subscribe("orders", "a = 1")),
    ]
    world.apply(*batches)
    pairs = [(batch.digest, batch.body) for batch in batches]
    again = world.machine.apply(world.blocks[-1][0], pairs, old)
    assert again == world.outcomes[-1]


def test_writes_are_listed_once() -> None:
    world = play(7)
    for outcome in world.outcomes:
        keys = [key for key, _ in outcome.writes]
        assert len(set(keys)) == len(keys)
        assert {key[:1] for key in keys} <= {b"k", b"n", b"i"}


class Broken:
    """A store that fails when the sequence of a third batch is read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._sequences = 0

    def get(self, key: bytes) -> bytes | None:
        self._sequences += key.startswith(SEQUENCES.places())
        if self._sequences > 2:
            raise OSError("broken")
        return self._store.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(prefix, start)


def play(seed: int, blocks: int = 20) -> World:
    history = History(seed)
    for batches, time in history.blocks(blocks):
        history.world.apply(*batches, time=time)
    return history.world


def trace(outcomes: list[Results]) -> str:
    parts = [
        part
        for outcome in outcomes
        for part in (outcome.state_root, *outcome.leaves, *(k + (v or b"") for k, v in outcome.writes))
    ]
    return digest("test/trace", *parts).hex()


def trace_in_process(hash_seed: str) -> str:
    code = "from tests.application.test_determinism import *; print(trace(play(11, 25).outcomes))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
