"""What a replica gives to members that ask: batches, blocks, records, snapshots. Every answer is paid for by its asker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from parley.consensus.errors import Reason, Refused
from parley.consensus.machine import Machine
from parley.consensus.types import Block
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.mempool.pool import Pool
from parley.replica import wire
from parley.replica.caretaker import CareEffect, Caretaker
from parley.replica.chain import Chain
from parley.replica.ports import Send
from parley.replica.snapshots import Snapshots
from parley.sync import blocks as sync
from parley.sync.messages import (
    BlocksRequest,
    EntriesRequest,
    NodesRequest,
    Records,
    RecordsRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
    Values,
    ValuesRequest,
)

BURST = 64 * 1024 * 1024  # bytes of answers at once: the batches of a few full blocks
RATE = 16 * 1024  # bytes per ms
BATCHES_QUESTION = (
    8 * 1024
)  # what a question costs besides the bytes of its answer, for the work of answering
BLOCKS_QUESTION = 128 * 1024

Question = (
    BatchesRequest
    | BlocksRequest
    | RecordsRequest
    | ValuesRequest
    | SnapshotRequest
    | NodesRequest
    | EntriesRequest
)


class Budget:
    """How much one member may make another send: small questions with large answers are an attack if they cost nothing.

    A token bucket per member. It may be overdrawn by one answer, so that all work is paid for.
    """

    def __init__(self, size: int) -> None:
        self._tokens = [BURST] * size
        self._filled = [0] * size  # when, in ms

    def require(self, member: int, now: int) -> None:
        """Refuse if the member has used up its budget; to be called before any work for it."""
        elapsed = max(0, now - self._filled[member])
        self._filled[member] += elapsed
        self._tokens[member] = min(BURST, self._tokens[member] + elapsed * RATE)
        if self._tokens[member] <= 0:
            raise Refused(Reason.QUOTA, f"member {member} asks for more than {RATE} bytes per ms")

    def charge(self, member: int, cost: int) -> None:
        self._tokens[member] -= cost


class Serving:
    """Reads what the replica holds and changes nothing; `unexecuted` are the committed blocks that wait for execution."""

    def __init__(
        self,
        budget: Budget,
        block_bytes: int,
        *,
        machine: Machine,
        chain: Chain,
        pool: Pool,
        caretaker: Caretaker,
        snapshots: Snapshots,
        unexecuted: Sequence[Block],
    ) -> None:
        self._budget = budget
        self._block_bytes = block_bytes
        self._machine = machine
        self._chain = chain
        self._pool = pool
        self._caretaker = caretaker
        self._snapshots = snapshots
        self._unexecuted = unexecuted

    def answer(self, sender: int, request: Question, now: int) -> Iterator[Send | CareEffect]:
        """Raises `Refused` when the asker has used up its budget; what was given until then was paid for."""
        match request:
            case BatchesRequest():
                yield from self._batches(sender, request, now)
            case BlocksRequest():
                yield self._blocks(sender, request, now)
            case _:
                yield from self._other(sender, request, now)

    def committed_above(self, height: int) -> Iterator[Block]:
        """Executed blocks from the store, then committed ones that still wait for execution."""
        while (block := self._chain.block(height + 1)) is not None:
            yield block
            height += 1
        yield from (block for block in self._unexecuted if block.height > height)

    def _batches(self, sender: int, request: BatchesRequest, now: int) -> Iterator[Send]:
        """What is held: no more than a block may hold, and as far as the asker's budget goes."""
        if len(set(request.digests)) != len(request.digests):
            raise Refused(Reason.MALFORMED, "BatchesRequest.digests repeats one")
        self._budget.require(sender, now)
        self._budget.charge(sender, BATCHES_QUESTION)
        room = self._block_bytes
        for name in request.digests:
            self._budget.require(sender, now)
            waiting = self._pool.body(name)
            body = (self._chain.batch(name) if waiting is None else waiting) or b""
            room -= len(body)
            if room < 0:
                return
            if body:
                self._budget.charge(sender, len(body))
                yield Send(sender, wire.encode(BatchMessage(body)))

    def _blocks(self, sender: int, request: BlocksRequest, now: int) -> Send:
        self._budget.require(sender, now)
        tip = self._machine.high_qc.qc
        branch = self._branch(request.target) or self._branch(tip.block)
        above = (block for block in branch if block.height > request.above)
        data = wire.encode(sync.answer(request, chain(self.committed_above(request.above), above), tip))
        self._budget.charge(sender, BLOCKS_QUESTION + len(data))
        return Send(sender, data)

    def _branch(self, target: bytes) -> tuple[Block, ...]:
        """The uncommitted blocks up to `target`, which may be on disk only."""
        stored = None if self._machine.known(target) else self._chain.uncommitted_block(target)
        if stored is None:
            return self._machine.branch(target)
        return (*self._machine.branch(stored.parent), stored) if self._machine.known(stored.parent) else ()

    def _other(
        self,
        sender: int,
        request: RecordsRequest | ValuesRequest | SnapshotRequest | NodesRequest | EntriesRequest,
        now: int,
    ) -> Iterator[Send | CareEffect]:
        """For brokers that mend or join; a question costs more than the bytes of its answer."""
        self._budget.require(sender, now)
        self._budget.charge(sender, BLOCKS_QUESTION)
        answer: Records | Values | SnapshotOffer | SnapshotNodes | SnapshotEntries | None
        match request:
            case RecordsRequest():
                answer, found = self._caretaker.answer_records(request)
                yield from found
            case ValuesRequest():
                answer = self._caretaker.answer_values(request)
            case SnapshotRequest():
                answer = self._snapshots.offer(sender, request, now)
            case NodesRequest():
                answer = self._snapshots.nodes(sender, request, now)
            case EntriesRequest():
                answer = self._snapshots.entries(sender, request, now)
        if answer is not None:
            data = wire.encode(answer)
            self._budget.charge(sender, len(data))
            yield Send(sender, data)
