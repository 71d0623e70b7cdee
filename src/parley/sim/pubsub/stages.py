"""What must hold of staged batches in every run: only a commit numbers them, all of a stage, once, in its order (P23)."""

from __future__ import annotations

from collections import deque

import msgspec

from parley.applications import DATA_SHARD
from parley.model.batches import STAGED, Batch
from parley.model.receipts import BatchReceipt, receipt_of
from parley.modules.publishing.receipts import first_offset
from parley.modules.staging.operations import commit_of
from parley.modules.topics.operations import deleted
from parley.sim.observations import Applied, Observation
from parley.sim.pubsub.agreed import Agreed


class WholeStages:
    """The batches of accepted commits are numbered one after the other, and nothing else is that was staged."""

    name = "whole stages"

    def __init__(self, agreed: Agreed) -> None:
        self._agreed = agreed
        self._height = 0
        self._queue: deque[tuple[str, bytes]] = deque()  # topic and digest
        self._stages: dict[tuple[bytes, str, bytes], int] = {}

    def see(self, event: Observation) -> str | None:
        self._agreed.see(event)
        if not isinstance(event, Applied) or event.suspect:
            return None
        for height, leaves in self._agreed.after(self._height):
            self._height = height
            own = len(self._agreed.block(height).batches)
            receipts = [found for found in map(receipt_of, leaves) if found is not None]
            for position, receipt in enumerate(receipts):
                fault = self._decided(receipt) if position < own else self._numbered(receipt)
                if fault is not None:
                    return f"at height {height}, leaf {position}: {fault}"
        return None

    def _decided(self, receipt: BatchReceipt) -> str | None:
        batch = msgspec.msgpack.decode(self._agreed.bodies[receipt.digest], type=Batch)
        if first_offset(receipt) is not None and batch.header.kind == STAGED:
            return f"batch {receipt.digest.hex()[:12]} was published instead of staged"
        if receipt.topic or not receipt.is_done:
            return None
        operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
        if (deletion := deleted(operation)) is not None:
            self._queue = deque(waiting for waiting in self._queue if waiting[0] != deletion.name)
        if (commit := commit_of(operation)) is not None:
            writer = (receipt.publisher, commit.topic, commit.writer)
            before = self._stages.get(writer, -1)
            self._stages[writer] = commit.stage
            self._queue.extend((commit.topic, digest) for digest in commit.digests)
            if commit.stage <= before:
                return f"stage {commit.stage} was committed after stage {before} of the same writer"
        return None

    def _numbered(self, receipt: BatchReceipt) -> str | None:
        if not self._queue or self._queue[0] != (receipt.topic, receipt.digest):
            return f"batch {receipt.digest.hex()[:12]} was numbered, which is not the next one that was committed"
        self._queue.popleft()
        return None if first_offset(receipt) is not None else "a numbered batch was not published"
