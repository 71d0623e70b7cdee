"""`parley bench match`: what subscriptions that do not match cost a publication."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Annotated

import typer
from msgspec.structs import replace
from rich.table import Table

from parley.application.operations import Operation, encode_operation
from parley.application.work import Budget
from parley.applications import VERSION, data_shard
from parley.bench.figures import Case, spread
from parley.cli import output
from parley.consensus.committee import committees_of
from parley.consensus.types import Block
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.model.batches import (
    CONTROL,
    FORMAT,
    NO_TOPIC,
    PUBLISH,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)
from parley.model.credentials import prove_registration
from parley.model.genesis import FORMAT as GENESIS_FORMAT
from parley.model.genesis import Broker, Genesis, Limits, Organisation, Shard, Timeouts
from parley.model.refusals import OK
from parley.modules.registry.operations import RegisterClient
from parley.modules.staging.numbering import MAX_NUMBERED_BYTES
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, Policy
from parley.store.memory import MemoryStore

GOAL = 3.0  # how much more a block may cost with all the subscriptions than with the matching ones alone
TOPIC, CREATED = "bench", (1, 1)  # and its id: it is made by the second operation of the first block
BATCH = 100  # messages
SETUP_BLOCK = 128  # operations
# What matching takes is measured here, not what a block may do.
SHARD = data_shard(MAX_NUMBERED_BYTES, Budget(2**20, 2**20))
PAYLOAD = 128


def match(  # noqa: PLR0917 - each argument is an option of the command line
    subscriptions: Annotated[int, typer.Option(min=1, max=60_000, help="All subscriptions.")] = 10_000,
    matching: Annotated[int, typer.Option(min=0, max=1_000, help="Those that every message matches.")] = 10,
    blocks: Annotated[int, typer.Option(min=1, max=1_000, help="Blocks per run.")] = 20,
    messages: Annotated[int, typer.Option(min=1, max=10_000, help="Messages per block.")] = 1_000,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Runs of which the median is taken.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="At most three runs of 5 blocks.")] = False,
    json: output.Json = False,
) -> None:
    """Measure what a block of publications costs with many subscriptions of which few match.

    The baseline has the matching subscriptions only. Both are applied by the real application over a store in memory;
    making, opening and checking the batches is not part of it. The ratio should stay below 3.
    """
    if matching > subscriptions:
        raise typer.BadParameter("there are fewer subscriptions than matching ones", param_hint="--matching")
    if quick:
        blocks, runs = min(blocks, 5), min(runs, 3)
    cases = {
        "no subscriptions": 0,
        f"{matching} subscriptions": matching,
        f"{subscriptions} subscriptions": subscriptions,
    }
    measured: dict[str, list[float]] = {case: [] for case in cases}
    with output.progress("measuring", runs * len(cases)) as advance:
        for _ in range(runs):
            for case, size in cases.items():
                measured[case].append(measure(size, min(matching, size), blocks, messages))
                advance()
    baseline = statistics.median(measured[f"{matching} subscriptions"])
    results = [_case(case, times, baseline) for case, times in measured.items()]
    output.emit({"results": results, "goal": GOAL}, lambda: _table(results), as_json=json)


def measure(subscriptions: int, matching: int, blocks: int, messages: int) -> float:
    """CPU-seconds to apply a block of `messages`, each of which matches `matching` of the subscriptions."""
    chain = _Chain(subscriptions)
    chain.subscribe([_constraint(i, matching) for i in range(subscriptions)])
    chain.publish(messages)  # warm caches
    return sum(chain.publish(messages) for _ in range(blocks)) / blocks


def _constraint(i: int, matching: int) -> str:
    if i < matching:
        return f'kind == "wanted" and shade != {i}'
    return f'kind == "other-{i}"'


class _Chain:
    """One client of one organisation, and blocks one after another; no consensus."""

    def __init__(self, subscriptions: int) -> None:
        self._admin, self._client = (
            SecretKey.from_seed(digest("bench/match", name)) for name in (b"admin", b"client")
        )
        genesis = _genesis(self._admin.public, max(subscriptions, 1))
        self._chain = genesis.chain
        self._machine = SHARD.mount(genesis).machine
        self._store = MemoryStore()
        self._first = committees_of(genesis)[0].first_block(bytes(32), 0).header
        self._height = 0
        self._controls = defaultdict[bytes, Iterator[int]](count)
        self._published = 0
        headers = [encode(MessageHeader(tags=(("kind", "wanted"), ("shade", -1 - i)))) for i in range(BATCH)]
        self._messages = [Message(bytes(16), header, "", bytes(PAYLOAD)) for header in headers]
        proof = prove_registration(self._client, self._chain, "bench", "client")
        client = RegisterClient("client", self._client.public, (), proof)
        topic = CreateTopic(TOPIC, 1, Policy(), "", "")
        self._apply([self._control(self._admin, operation) for operation in (client, topic)])

    def subscribe(self, constraints: list[str]) -> None:
        for start in range(0, len(constraints), SETUP_BLOCK):
            operations = [
                Subscribe(TOPIC, constraint, CREATED)
                for constraint in constraints[start : start + SETUP_BLOCK]
            ]
            self._apply([self._control(self._client, operation) for operation in operations])

    def publish(self, messages: int) -> float:
        """CPU-seconds to apply a block of so many messages."""
        sizes = [min(BATCH, messages - start) for start in range(0, messages, BATCH)]
        return self._apply([self._publication(size) for size in sizes])

    def _control(self, key: SecretKey, operation: Operation) -> tuple[bytes, bytes]:
        message = Message(bytes(16), encode(MessageHeader()), "", encode_operation(operation))
        return self._sign(key, CONTROL, "", next(self._controls[key.public]), [message])

    def _publication(self, size: int) -> tuple[bytes, bytes]:
        sequence, self._published = self._published, self._published + size
        return self._sign(self._client, PUBLISH, TOPIC, sequence, self._messages[:size])

    def _sign(
        self, key: SecretKey, kind: int, topic: str, sequence: int, messages: list[Message]
    ) -> tuple[bytes, bytes]:
        header = BatchHeader(
            FORMAT,
            self._chain,
            0,
            kind,
            topic,
            CREATED if topic else NO_TOPIC,
            0,
            key.public,
            bytes(16),
            sequence,
            len(messages),
            self._height + 1_000,
        )
        return sign_batch(header, tuple(messages), key)

    def _apply(self, batches: list[tuple[bytes, bytes]]) -> float:
        for _, body in batches:
            self._machine.admit(body)
        self._height += 1
        header = replace(self._first, height=self._height, time=self._height)
        block = Block(header, tuple(digest for digest, _ in batches))
        begin = time.process_time()
        results = self._machine.apply(block, batches, self._store)
        taken = time.process_time() - begin
        assert all(receipt.code == OK for receipt in results.receipts)
        self._store.write(results.writes)
        return taken


def _genesis(admin: bytes, subscriptions: int) -> Genesis:
    return Genesis(
        format=GENESIS_FORMAT,
        application=VERSION,
        network="bench",
        start_time=0,
        depth=2,
        leaders="round-robin",
        allow_faults=False,
        timeouts=Timeouts(),
        limits=Limits(subscriptions_per_client=subscriptions),
        organisations=(Organisation("bench", bytes(32), b"none", (admin,)),),
        brokers=(Broker("broker", "bench", bytes(32), "127.0.0.1:0"),),
        shards=(Shard(("broker",)),),
    )


def _case(case: str, times: list[float], baseline: float) -> Case:
    median = statistics.median(times)
    return Case(
        case,
        round(1e3 * median, 3),
        "ms/block",
        round(1e3 * baseline, 3),
        round(median / baseline, 3),
        spread(times),
    )


def _table(results: list[Case]) -> Table:
    table = output.table(
        ("case", "ms per block", "ratio", "spread"),
        ((one.case, f"{one.value:.2f}", f"{one.ratio:.2f}", f"{one.spread:.0%}") for one in results),
        left=("case",),
        title="parley bench match",
    )
    table.caption = f"goal: a ratio below {GOAL:.0f}"
    return table
