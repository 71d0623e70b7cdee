"""Which offset a time stands at: found by certified reading, because no broker is believed about it."""

from __future__ import annotations

from parley.client.client import Client
from parley.modules.topics.tables import PartitionRecord
from parley.spark.offsets import TopicPartition


async def offset_at(
    client: Client, topic_partition: TopicPartition, head: PartitionRecord, timestamp: int
) -> int:
    """The first offset whose block is of `timestamp` (ms since 1970) or later; the end if there is none.

    Blocks' times only grow (P5), so that halving finds it; each step reads one batch with its proof.
    """
    topic, partition = topic_partition
    low, high = (
        head.log_start_offset,
        head.next_offset,
    )  # what is before `low` is older, what is from `high` on is not
    while low < high:
        middle = (low + high) // 2
        page = await client.page(topic, middle, partition=partition, max_bytes=1)
        batch = page.batches[0]
        if batch.time < timestamp:
            low = batch.end
        else:
            high = max(low, batch.first)
    return min(low, head.next_offset)
