"""What the driver knows of the network: which partitions a query reads, and how far they are certified to be."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from parley.client.beliefs import record_of
from parley.client.client import Client
from parley.client.errors import PermissionDenied, UnknownTopic
from parley.client.observing import BlockName
from parley.model.names import Position as TopicId
from parley.model.names import Value
from parley.model.principals import Principal
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.access import Action, allows, authorise
from parley.modules.topics.tables import HEADS, TOPICS, PartitionRecord, TopicRecord
from parley.net.messages import MAX_KEYS
from parley.spark.errors import BadOption, TopicGone, Unreachable
from parley.spark.gateway import Gateway, translated
from parley.spark.offsets import Place, TopicPartition
from parley.spark.options import Assigned, Pattern, ReadOptions, Subscribed

HEAD_SECONDS = 0.2  # for which a look at the network is good enough: Spark asks 70 times a second
BEHIND_SECONDS = 5.0  # by which brokers may be behind one that was asked before
LIST_SECONDS = 5.0  # between two looks for new topics that match a pattern
MAX_PARTITIONS = 10_000  # that one query reads


Block = tuple[str, int, int]  # its id in hexadecimal digits, its shard and its epoch


@dataclass(frozen=True, slots=True)
class Sight:
    """The partitions of a query, each as of a certified height, and the reader's attributes as of `rights`."""

    heads: Mapping[TopicPartition, tuple[PartitionRecord, int]]
    attributes: Mapping[str, Value]
    rights: int
    partitions: Mapping[str, int]  # how many each topic has
    ids: Mapping[str, TopicId]

    @property
    def height(self) -> int:
        return min((height for _, height in self.heads.values()), default=self.rights)


class Watch:
    """Looks at the network for one query; what it has seen is good for a moment."""

    def __init__(self, gateway: Gateway, options: ReadOptions) -> None:
        self._gateway = gateway
        self._options = options
        self._seen: tuple[float, Sight] | None = None
        self._listed: tuple[float, tuple[str, ...]] | None = None
        self._read: frozenset[str] = frozenset()  # topics that the query has begun with
        self._partitions: dict[str, int] = {}
        self._blocks: dict[int, Block] = {}
        self._looks = 0

    def look(self, floor: int = 0, read: Iterable[str] = ()) -> Sight:
        """Certified at `floor` or above; `read` are topics that the query stands in. Raises a `ParleySparkError`."""
        now = time.monotonic()
        self._read |= frozenset(read)
        if self._seen is not None and now - self._seen[0] < HEAD_SECONDS and self._seen[1].height >= floor:
            return self._seen[1]
        sight = self._gateway.run(self._look(floor))
        self._seen = (time.monotonic(), sight)
        return sight

    def place(self, sight: Sight, partition: TopicPartition, offset: int) -> Place:
        """An offset, with the block as of which it is known."""
        height = sight.heads[partition][1]
        return Place(offset, height, *self._block(height), sight.ids[partition[0]], sight.rights)

    def block_at(self, height: int) -> Block | None:
        """The certified block at this height, None if the network does not reach it even after a while."""
        found = self._named(height)
        return None if found is None else _block_of(found)

    def _named(self, height: int) -> BlockName | None:
        began = time.monotonic()
        while True:
            found = self._gateway.run(self._gateway.client.observer.block(height))
            if found is not None or time.monotonic() - began >= min(
                BEHIND_SECONDS, self._options.network.timeout
            ):
                return found
            time.sleep(HEAD_SECONDS)

    def _block(self, height: int) -> Block:
        if height not in self._blocks:
            name = self._named(height)  # whoever is asked may be behind the one that showed the state
            if name is None:
                raise Unreachable(f"Results of height {height} are certified, and no broker shows its block.")
            self._blocks = {height: _block_of(name), **dict(list(self._blocks.items())[:15])}
        return self._blocks[height]

    async def _look(self, floor: int) -> Sight:
        topics = await self._topics()
        self._looks += 1
        client = self._gateway.client
        keys = [CLIENTS.key(client.key), *map(TOPICS.key, topics)]
        partitions = list(self._topic_partitions(topics, self._partitions))
        asked = partitions if len(keys) + len(partitions) <= MAX_KEYS else []
        try:
            first = await client.observer.entries(
                [*keys[:MAX_KEYS], *(HEADS.key(*partition) for partition in asked)],
                floor,
                skip=self._looks,
            )
        except (PermissionDenied, UnknownTopic):
            await self._require_live()
            raise
        values = list(first.values[: len(keys)])
        for start in range(MAX_KEYS, len(keys), MAX_KEYS):
            values += (await client.observer.entries(keys[start : start + MAX_KEYS], floor)).values
        principal = self._principal(values[0])
        records = {topic: record_of(TOPICS, value) for topic, value in zip(topics, values[1:], strict=True)}
        self._partitions = self._readable(principal, records)
        heads = {
            partition: (record, first.height)
            for partition, value in zip(asked, first.values[len(keys) :], strict=True)
            if partition[0] in self._partitions and (record := record_of(HEADS, value)) is not None
        }
        wanted = list(self._topic_partitions(self._partitions, self._partitions))
        if len(wanted) > MAX_PARTITIONS:
            raise BadOption(
                f"One query reads {MAX_PARTITIONS} partitions at most, and these topics have {len(wanted)}."
            )
        missing = [partition for partition in wanted if partition not in heads]
        heads |= await self._heads(missing, max(floor, first.height))
        attributes = principal.attributes
        assert attributes is not None, "a client that is none was refused above"
        ids = {topic: record.created for topic, record in records.items() if record is not None}
        return Sight(heads, attributes, first.height, dict(self._partitions), ids)

    async def _require_live(self) -> None:
        """That it is not the reader itself whom the network does not know, or not any more."""
        if (why := (await self._reader()).reason_to_refuse()) is not None:
            raise why

    async def _reader(self) -> Principal:
        """The client that reads, as it is registered now."""
        client = self._gateway.client
        (value,) = (await client.observer.entries([CLIENTS.key(client.key)])).values
        return self._principal(value)

    def _principal(self, value: bytes | None) -> Principal:
        """The client that reads, with the entry of its key in the registry."""
        client = self._gateway.client
        return Principal(client.key, None, record_of(CLIENTS, value), client.organisation, client.name)

    async def _heads(
        self, partitions: Sequence[TopicPartition], floor: int
    ) -> dict[TopicPartition, tuple[PartitionRecord, int]]:
        found: dict[TopicPartition, tuple[PartitionRecord, int]] = {}
        for start in range(0, len(partitions), MAX_KEYS):
            some = partitions[start : start + MAX_KEYS]
            seen = await self._gateway.client.observer.entries(
                [HEADS.key(*partition) for partition in some], floor
            )
            for partition, value in zip(some, seen.values, strict=True):
                record = record_of(HEADS, value)
                if record is None:
                    raise TopicGone(f"Topic {partition[0]} has no partition {partition[1]}.")
                found[partition] = (record, seen.height)
        return found

    async def _topics(self) -> tuple[str, ...]:
        match self._options.topics:
            case Subscribed(topics):
                return topics
            case Assigned(partitions):
                return tuple(topic for topic, _ in partitions)
            case Pattern(text):
                now = time.monotonic()
                if self._listed is None or now - self._listed[0] >= LIST_SECONDS:
                    pattern = re.compile(text)
                    found = await self._gateway.client.topics()
                    reader = await self._reader()
                    names = sorted(
                        topic.name
                        for topic in found
                        if pattern.fullmatch(topic.name) and allows(topic.subscribe, reader)
                    )
                    self._listed = (now, tuple(names))
                # A list proves nothing by leaving a topic out: whether one that is being read is gone, its record says.
                return tuple(sorted(self._read.union(self._listed[1])))

    def _readable(self, principal: Principal, records: Mapping[str, TopicRecord | None]) -> dict[str, int]:
        """How many partitions each topic has. Topics of a pattern may vanish; others must be there."""
        found: dict[str, int] = {}
        if (why := principal.reason_to_refuse()) is not None:
            raise translated(why)
        for topic, record in records.items():
            why = authorise(principal, Action.SUBSCRIBE, topic, record)
            if isinstance(why, UnknownTopic) and isinstance(self._options.topics, Pattern):
                continue
            if why is not None:
                raise translated(why)
            assert record is not None
            found[topic] = record.partitions
        return found

    def _topic_partitions(
        self, topics: Iterable[str], partitions: Mapping[str, int]
    ) -> Iterable[TopicPartition]:
        if isinstance(self._options.topics, Assigned):
            wanted = dict(self._options.topics.partitions)
            return [(topic, one) for topic in topics for one in wanted[topic]]
        return [(topic, one) for topic in topics for one in range(partitions.get(topic, 0))]


def _block_of(name: BlockName) -> Block:
    return name.id.hex(), name.shard, name.epoch


async def offset_at(
    client: Client, topic_partition: TopicPartition, head: PartitionRecord, timestamp: int
) -> int:
    """The first offset whose block is of `timestamp` (ms since 1970) or later; the end if there is none.

    Blocks' times only grow (P5), so that halving finds it; each step reads one batch with its proof, because no broker is
    believed about it.
    """
    topic, partition = topic_partition
    # What is before `low` is older, what is from `high` on is not.
    low, high = head.log_start_offset, head.next_offset
    while low < high:
        page = await client.page(topic, (low + high) // 2, partition=partition, max_bytes=1)
        batch = page.batches[0]
        if batch.time < timestamp:
            low = batch.end
        else:
            high = max(low, batch.first)
    return min(low, head.next_offset)
