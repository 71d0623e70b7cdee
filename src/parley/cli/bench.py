"""`parley bench`: measurements. They print a median and its spread, because machines are noisy."""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import Annotated

import typer
from msgspec import Struct
from rich.table import Table

from parley.bench.figures import spread
from parley.cli import bench_failover, bench_growth, bench_load, bench_match, bench_peers, bench_spark, output
from parley.consensus.committee import MemberKey, instance_of, scheme_of, signer_of
from parley.consensus.record import COPIES, recover_record
from parley.crypto.hashing import digest
from parley.ledger.application import StateMachine
from parley.mempool.pool import Limits
from parley.replica.beginning import ReplicaConfig, provision
from parley.replica.ports import Applied, Broadcast, Effect, Send, Write
from parley.replica.replica import Replica
from parley.sim import counter
from parley.store.memory import MemoryStore

app = typer.Typer(help="Measure how fast it is, with median and spread.", no_args_is_help=True)

OUTSTANDING = 8  # batches that wait for order at any time
GOAL = 300  # committed blocks per CPU-second that four replicas must reach together
GOAL_NODES = 4


class Result(Struct):
    """What `bench consensus` prints."""

    blocks_per_cpu_second: float
    spread: float
    runs: list[float]
    nodes: int
    blocks: int
    batch_bytes: int
    goal: int | None


@app.command()
def consensus(  # noqa: PLR0917 - each argument is an option of the command line
    nodes: Annotated[int, typer.Option(min=1, max=32, help="Replicas, all in this process.")] = 4,
    blocks: Annotated[int, typer.Option(min=10, max=100_000, help="Blocks per run.")] = 1_000,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Runs of which the median is taken.")] = 5,
    batch_bytes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Payload of each block.")] = 1_024,
    quick: Annotated[bool, typer.Option("--quick", help="At most three runs of 200 blocks.")] = False,
    json: output.Json = False,
) -> None:
    """Measure how many blocks the ordering core commits per CPU-second.

    The replicas run in one process with real Ed25519 signatures, real encoding and decoding of every message and
    in-memory disks. Every block carries one batch; the CPU time is that of all replicas together. Four replicas should
    reach 300.
    """
    if quick:
        blocks, runs = min(blocks, 200), min(runs, 3)
    rates = []
    with output.progress("measuring", runs) as advance:
        for _ in range(runs):
            rates.append(_measure(nodes, blocks, batch_bytes))
            advance()
    median = statistics.median(rates)
    result = Result(
        round(median, 1),
        spread(rates),
        [round(rate, 1) for rate in rates],
        nodes,
        blocks,
        batch_bytes,
        GOAL if nodes == GOAL_NODES else None,
    )
    output.emit(result, lambda: _table(result), as_json=json)


def _measure(nodes: int, blocks: int, batch_bytes: int) -> float:
    network = _Network(nodes, batch_bytes)
    network.run(blocks // 10)  # warm caches
    begin = time.process_time()
    committed = network.run(blocks)
    return committed / (time.process_time() - begin)


class _Network:
    """Replicas joined by one queue: messages arrive in order, at once, and no timer ever fires."""

    def __init__(self, nodes: int, batch_bytes: int) -> None:
        instance = instance_of(digest("bench/chain"), nodes)
        keys = [MemberKey.from_seed(digest("bench/key", bytes([i]))) for i in range(nodes)]
        scheme = scheme_of([key.public for key in keys])
        self._payload = bytes(batch_bytes)
        self._stores = [MemoryStore() for _ in range(nodes)]
        self._replicas: list[Replica] = []
        self._machines: list[StateMachine] = []
        self._queue: deque[tuple[int, int, bytes]] = deque()
        self._submitted = 0
        self._applied = 0
        self._due = OUTSTANDING  # batches to submit
        limits = Limits(block_bytes=len(self._batch()))  # one batch fills a block
        for i, key in enumerate(keys):
            config = ReplicaConfig(instance, i, limits=limits)
            mounted = counter.mounted()
            self._machines.append(mounted.machine)
            records, genesis = provision(config, mounted.machine)
            self._stores[i].write(genesis.entries)
            record = recover_record([[copy] * COPIES for copy in records], "memory")
            self._replicas.append(
                Replica(config, signer_of(i, key), scheme, mounted, record=record, store=self._stores[i])
            )
        for i, replica in enumerate(self._replicas):
            self._execute(i, replica.start(0))

    def run(self, blocks: int) -> int:
        """Commit at least `blocks` blocks; returns how many."""
        begin = self._applied
        while self._applied < begin + blocks:
            if self._due:
                self._due -= 1
                self._submit()
            else:
                sender, to, data = self._queue.popleft()
                self._execute(to, self._replicas[to].receive(self._submitted, sender, data))
        return self._applied - begin

    def _batch(self) -> bytes:
        author, sequence = self._submitted % len(self._stores), self._submitted // len(self._stores)
        return counter.encode_batch(author, sequence, self._payload)

    def _submit(self) -> None:
        to, batch = self._submitted % len(self._stores), self._batch()
        self._submitted += 1
        admitted = self._machines[to].admit(batch)
        self._execute(to, self._replicas[to].submit(self._submitted, admitted).effects)

    def _execute(self, i: int, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write():
                    self._stores[i].write(effect.entries)
                case Send():
                    self._queue.append((i, effect.to, effect.data))
                case Broadcast():
                    self._queue.extend((i, to, effect.data) for to in range(len(self._stores)) if to != i)
                case _:  # no timer fires and no replica restarts here; receipts are counted below
                    pass
        if i == 0:
            applied = sum(isinstance(effect, Applied) for effect in effects)
            self._applied += applied
            self._due += applied


def _table(result: Result) -> Table:
    rate = result.blocks_per_cpu_second
    cells = {
        "replicas": str(result.nodes),
        "blocks": f"{len(result.runs)} x {result.blocks}",
        "blocks per CPU-second": f"{rate:.0f}",
        "spread": f"{result.spread:.0%}",
    }
    if result.goal is not None:
        cells |= {"goal": str(result.goal), "ratio": f"{rate / result.goal:.2f}"}
    return output.table(list(cells), [list(cells.values())], left=(), title="parley bench consensus")


for _command in (
    bench_match.match,
    bench_load.pub,
    bench_load.sub,
    bench_load.latency,
    bench_load.idle,
    bench_failover.failover,
    bench_growth.memory,
    bench_growth.growth,
    bench_peers.peers,
    bench_spark.spark,
):
    app.command()(_command)
