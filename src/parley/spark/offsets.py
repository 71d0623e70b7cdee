"""Where a query stands (P23): for every partition its next offset, and the certified block as of which that was so.

The block makes a replay exact and a checkpoint of another history an error: Spark itself takes any offset, also one that
lies behind the last, and repeats rows without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from parley.model.codec import DECODE_ERRORS
from parley.model.names import Value
from parley.spark.errors import BackwardOffset

VERSION = 2

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
TopicPartition = tuple[str, int]  # a topic and one of its partitions


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The next offset of one partition, as of a block; rows are shown as its reader could see them at `rights`."""

    offset: Count
    height: Count
    block: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    shard: Count  # the ledger of the block, and the epoch whose committee certified it (P28)
    epoch: Count
    topic_id: tuple[Count, Count]  # a topic that was made again under the same name has another one
    rights: Count


class _Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
    chain: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    topics: dict[str, dict[str, Place]]
    attributes: dict[str, dict[str, Value]]  # of the reader, by the height at which it had them


class Offsets(msgspec.Struct, frozen=True):
    """All places of a query, and what its reader's attributes were at the heights that they name."""

    chain: str
    places: dict[TopicPartition, Place]
    attributes: dict[int, dict[str, Value]]

    def next(self, partition: TopicPartition) -> int | None:
        place = self.places.get(partition)
        return None if place is None else place.offset

    def topics(self) -> dict[str, tuple[int, int]]:
        """The ids of the topics that the query stands in, by name."""
        return {topic: place.topic_id for (topic, _), place in self.places.items()}

    def rights(self, partition: TopicPartition) -> Mapping[str, Value]:
        """What the reader's attributes were when this place was written."""
        return self.attributes.get(self.places[partition].rights, {})


def encode(offsets: Offsets) -> dict[str, Any]:
    """For the checkpoint; always in the same order, because Spark compares texts."""
    topics: dict[str, dict[str, Place]] = {}
    for (topic, partition), place in sorted(offsets.places.items()):
        topics.setdefault(topic, {})[str(partition)] = place
    needed = sorted({place.rights for place in offsets.places.values()})
    attributes = {str(height): dict(sorted(offsets.attributes.get(height, {}).items())) for height in needed}
    found: dict[str, Any] = msgspec.to_builtins(_Written(VERSION, offsets.chain, topics, attributes))
    return found


def decode(data: Mapping[str, Any]) -> Offsets:
    """Raises `BackwardOffset` for what no query of this source wrote."""
    try:
        written = msgspec.convert(dict(data), _Written)
        places = {
            (topic, int(partition)): place
            for topic, places in written.topics.items()
            for partition, place in places.items()
        }
        attributes = {int(height): had for height, had in written.attributes.items()}
    except (*DECODE_ERRORS, TypeError, ValueError) as error:
        raise BackwardOffset(
            f"The checkpoint holds no offset of this source ({error}). Start the query with a new checkpoint."
        ) from None
    return Offsets(written.chain, places, attributes)


def split_fairly(waiting: Mapping[TopicPartition, int], limit: int, turn: int) -> dict[TopicPartition, int]:
    """How many rows of each partition to take: all alike, and what one does not need goes to the others.

    `turn` says who comes first when there are fewer rows than partitions, so that none waits for ever.
    """
    left = {partition: count for partition, count in waiting.items() if count > 0}
    taken = dict.fromkeys(waiting, 0)
    while left and limit >= len(left):
        share = min(limit // len(left), *left.values())
        for partition in list(left):
            taken[partition] += share
            left[partition] -= share
            limit -= share
            if not left[partition]:
                del left[partition]
    order = sorted(left)
    for at in range(min(limit, len(order))):
        taken[order[(turn + at) % len(order)]] += 1
    return taken


def split(
    ranges: Sequence[tuple[TopicPartition, int, int]], least: int | None
) -> list[tuple[TopicPartition, int, int]]:
    """Cut ranges of offsets so that there are at least about `least` of them, large ones first into more pieces."""
    ranges = [one for one in ranges if one[1] < one[2]]
    total = sum(end - start for _, start, end in ranges)
    if least is None or len(ranges) >= least:
        return list(ranges)
    pieces: list[tuple[TopicPartition, int, int]] = []
    for partition, start, end in ranges:
        size = end - start
        parts = min(size, max(1, -(-size * least // total)))
        cuts = [start + size * at // parts for at in range(parts + 1)]
        pieces += [(partition, low, high) for low, high in pairwise(cuts)]
    return pieces
