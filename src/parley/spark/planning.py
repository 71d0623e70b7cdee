"""The driver's side of a query: from which offset to which one it goes next, and who reads what (P23).

No single broker is believed: offsets come from the certified state. Spark would take an end that lies before the start
and repeat rows without a word, so whatever does not go on from the recorded block is an error here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future

from parley.model.names import Position as TopicId
from parley.modules.topics.access import id_text
from parley.spark.errors import BackwardOffset, BadOption, DataLoss, TopicGone, TopicRemade, Unreachable
from parley.spark.gateway import gateway
from parley.spark.heads import Block, Sight, Watch, offset_at
from parley.spark.offsets import Offsets, Place, TopicPartition, split, split_fairly
from parley.spark.options import EARLIEST, LATEST, ReadOptions, Start
from parley.spark.reader import Range

log = logging.getLogger("parley.spark")

MAX_PROVEN = 1_000  # blocks of its history that a query remembers
TELL_SECONDS = 5.0  # between two words on how far behind it is
MAX_TOLD = 32  # topics of which it says so


class Planner:
    """Of one query. It is where the driver's connection is; executors have their own."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._gateway = gateway(options.network, options.verify)
        self._watch = Watch(self._gateway, options)
        self._chain = self._gateway.client.genesis.chain.hex()
        self._proven: set[tuple[int, Block]] = (
            set()
        )  # heights and blocks that are known to be of this history
        self._same: set[tuple[str, TopicId]] = set()  # topics that were seen under these ids
        self._frozen: dict[TopicPartition, int] | None = None
        self._run = os.urandom(8).hex()
        self._told = -TELL_SECONDS

    # -- batch ---------------------------------------------------------------------------------------------------------

    def batch(self) -> list[Range]:
        """All that there is, within the options."""
        sight = self._watch.look()
        start = self._starts(sight)
        end = self._ends(sight, self._options.end, "endingOffsets")
        ranges = [(partition, start[partition], end[partition]) for partition in sorted(sight.heads)]
        rights = {
            partition: (max(sight.rights, height), sight.attributes)
            for partition, (_, height) in sight.heads.items()
        }
        return self._pieces(ranges, rights)

    # -- stream --------------------------------------------------------------------------------------------------------

    def beginning(self) -> Offsets:
        """Where a new query starts."""
        sight = self._watch.look()
        return self._offsets(sight, self._starts(sight))

    def freeze(self) -> None:
        """Go as far as the network is now, and no further."""
        self._frozen = {
            partition: head.next_offset for partition, (head, _) in self._watch.look().heads.items()
        }

    def next(self, start: Offsets, limit: int | None) -> Offsets:
        """The end of the next batch; `start` itself if there is no certified progress: an error would end the query."""
        try:
            return self._next(start, limit)
        except Unreachable as error:
            log.warning("No certified progress: %s", error)
            return start

    def _next(self, start: Offsets, limit: int | None) -> Offsets:
        self._require_same_history(start)
        sight = self._watch.look(_height(start), (topic for topic, _ in start.places))
        self._require_same_topics(start, sight)
        ends = self._available(start, sight)
        begun = {partition: self._begun(start, sight, partition) for partition in ends}
        waiting = {partition: max(0, end - begun[partition]) for partition, end in ends.items()}
        self._tell(begun, sight)
        if not any(waiting.values()):
            return start
        if limit is not None and sum(waiting.values()) > limit:
            waiting = split_fairly(waiting, limit, sum(begun.values()))
        return self._offsets(
            sight, {partition: begun[partition] + waiting[partition] for partition in ends}, start
        )

    def newest(self) -> Offsets | None:
        """How far the network is, for whoever looks at how far behind the query is."""
        try:
            sight = self._watch.look()
            return self._offsets(
                sight, {partition: head.next_offset for partition, (head, _) in sight.heads.items()}
            )
        except Unreachable:
            return None

    def pieces(self, start: Offsets, end: Offsets) -> list[Range]:
        """Who reads what. The same offsets give the same rows, whenever it is asked."""
        self._require_same_history(start)
        self._require_same_history(end)
        if not self._same.issuperset(places := {*start.topics().items(), *end.topics().items()}):
            sight = self._watch.look(_height(end), (topic for topic, _ in places))
            self._require_same_topics(start, sight)
            self._require_same_topics(end, sight)
        ranges = [
            (partition, start.next(partition) or 0, place.offset)
            for partition, place in sorted(end.places.items())
        ]
        for partition, first, last in ranges:
            if last < first:
                raise BackwardOffset(
                    f"A batch was planned from offset {first} back to {last} of partition {partition[1]} of {partition[0]}. Start the "
                    f"query with a new checkpoint."
                )
        # Whoever is asked must reach the height at which the end was so, or would deny that there is so much.
        rights = {
            partition: (max(place.rights, place.height), end.rights(partition))
            for partition, place in end.places.items()
        }
        return self._pieces(ranges, rights)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _pieces(
        self,
        ranges: list[tuple[TopicPartition, int, int]],
        rights: Mapping[TopicPartition, tuple[int, Mapping[str, object]]],
    ) -> list[Range]:
        return [
            Range(*partition, first, last, rights[partition][0], dict(rights[partition][1]), rank)  # type: ignore[arg-type]
            for rank, (partition, first, last) in enumerate(split(ranges, self._options.min_partitions))
        ]

    def _available(self, start: Offsets, sight: Sight) -> dict[TopicPartition, int]:
        """Up to where each partition may be read now."""
        for partition in start.places:
            if partition not in sight.heads:
                self._vanished(partition)
        ends = {partition: head.next_offset for partition, (head, _) in sight.heads.items()}
        if self._frozen is not None:
            ends = {
                partition: min(end, self._frozen[partition])
                for partition, end in ends.items()
                if partition in self._frozen
            }
        for partition, end in ends.items():
            begun = start.next(partition) or 0
            if sight.heads[partition][0].next_offset < begun:
                raise BackwardOffset(
                    f"The checkpoint is at offset {begun} of partition {partition[1]} of {partition[0]}, and the network at "
                    f"{end}: it lost what the query has read, or is another one. Start with a new checkpoint."
                )
        return ends

    def _begun(self, start: Offsets, sight: Sight, partition: TopicPartition) -> int:
        """Where a partition goes on; one that is new to the query begins with its first offset."""
        begun = start.next(partition) or 0
        first = sight.heads[partition][0].log_start_offset
        if begun >= first:
            return begun
        text = f"Offsets {begun} to {first - 1} of partition {partition[1]} of {partition[0]} were pruned before the query has read them"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}. Set failOnDataLoss to false to go on at offset {first}.")
        log.warning("%s.", text)
        return first

    def _vanished(self, partition: TopicPartition) -> None:
        text = f"Topic {partition[0]} was deleted while the query read it"
        if self._options.fail_on_data_loss:
            raise TopicGone(
                f"{text}. Start with a new checkpoint without it, or set failOnDataLoss to false."
            )
        log.warning("%s.", text)

    def _offsets(
        self, sight: Sight, ends: Mapping[TopicPartition, int], start: Offsets | None = None
    ) -> Offsets:
        before = Offsets(self._chain, {}, {}) if start is None else start
        new = {partition: self._watch.place(sight, partition, end) for partition, end in ends.items()}
        places = before.places | new
        self._proven |= {_block_of(place) for place in places.values()}
        self._same |= set(sight.ids.items())
        return Offsets(self._chain, places, before.attributes | {sight.rights: dict(sight.attributes)})

    def _ends(self, sight: Sight, wanted: Start, option: str) -> dict[TopicPartition, int]:
        """An option's offsets, with numbers for the words."""
        if wanted.offsets is not None:
            named = {(topic, one) for topic, given in wanted.offsets.items() for one in given}
            if unknown := sorted(named - set(sight.heads)):
                raise BadOption(f"{option} names {_told(unknown)}, which the query does not read.")
            if missing := sorted(set(sight.heads) - named):
                raise BadOption(f"{option} names no offset for {_told(missing)}; name all, or write a word.")
        return {partition: self._end(sight, wanted, partition, option) for partition in sight.heads}

    def _end(self, sight: Sight, wanted: Start, partition: TopicPartition, option: str) -> int:
        head = sight.heads[partition][0]
        offset = wanted.everywhere if wanted.offsets is None else wanted.offsets[partition[0]][partition[1]]
        if offset == EARLIEST:
            return head.log_start_offset
        if offset == LATEST:
            return head.next_offset
        if offset > head.next_offset:
            raise BadOption(
                f"{option}: {_told([partition])} ends at offset {head.next_offset}, before {offset}."
            )
        if offset < head.log_start_offset and option == "startingOffsets":
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{option}: {_told([partition])} begins at offset {head.log_start_offset}; what was before it is pruned. "
                    f"Set failOnDataLoss to false to begin there."
                )
            log.warning("%s begins at offset %d, not %d.", _told([partition]), head.log_start_offset, offset)
            return head.log_start_offset
        return offset

    def _starts(self, sight: Sight) -> dict[TopicPartition, int]:
        timestamp = self._options.timestamp
        if timestamp is None:
            return self._ends(sight, self._options.start, "startingOffsets")
        return {
            partition: self._gateway.run(offset_at(self._gateway.client, partition, head, timestamp))
            for partition, (head, _) in sight.heads.items()
        }

    def _tell(self, begun: Mapping[TopicPartition, int], sight: Sight) -> None:
        """Say now and then how far behind the query is, for `parley status`; whether it is heard does not matter."""
        if time.monotonic() - self._told < TELL_SECONDS:
            return
        self._told = time.monotonic()
        by_topic: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, partition), offset in begun.items():
            end = sight.heads[topic, partition][0].next_offset
            by_topic.setdefault(topic, {})[partition] = (offset, end)
        name = (self._options.query_name or "spark")[:256]
        for topic, positions in sorted(by_topic.items())[:MAX_TOLD]:
            said = self._gateway.start(self._gateway.client.advise(name, topic, positions, run=self._run))
            said.add_done_callback(_log_failure)

    def _require_same_history(self, recorded: Offsets) -> None:
        """That the blocks of a checkpoint stand where they stood: Spark itself would go on in any history."""
        if recorded.chain != self._chain:
            raise BackwardOffset(
                f"The checkpoint is of network {recorded.chain[:16]}, and this is {self._chain[:16]}. Use the options of the "
                f"network that it was made on, or start with a new checkpoint."
            )
        new = {_block_of(place) for place in recorded.places.values()} - self._proven
        for height, block in sorted(new):
            found = self._watch.block_at(height)
            if found is None:
                raise BackwardOffset(
                    f"The checkpoint is of height {height}, and the network has not come so far: it was restored from an "
                    f"older copy, or is another one. Start with a new checkpoint."
                )
            if found != block:
                raise BackwardOffset(
                    f"Block {height} is not the one that the checkpoint was written at: the network has another history. "
                    f"Start with a new checkpoint."
                )
            self._proven.add((height, block))
        if len(self._proven) > MAX_PROVEN:
            self._proven = {_block_of(place) for place in recorded.places.values()}

    def _require_same_topics(self, recorded: Offsets, sight: Sight) -> None:
        """Raises `TopicRemade` if a topic of the checkpoint was made again: the new one's offsets follow on those of the old."""
        for topic, topic_id in sorted(recorded.topics().items()):
            now = sight.ids.get(topic, topic_id)  # one that is gone is looked for elsewhere
            if now != topic_id:
                raise TopicRemade(
                    f"Topic {topic} was deleted and made again since the checkpoint was written: it is of the topic with id "
                    f"{id_text(topic_id)}, and the name belongs to the one with id {id_text(now)}. Start the query with a new "
                    f"checkpoint."
                )
        self._same |= set(sight.ids.items())


def _block_of(place: Place) -> tuple[int, Block]:
    return place.height, (place.block, place.shard, place.epoch)


def _log_failure(said: Future[None]) -> None:
    if not said.cancelled() and (error := said.exception()) is not None:
        log.info("The brokers were not told where the query stands: %s", error)


def _height(start: Offsets) -> int:
    return max((place.height for place in start.places.values()), default=0)


def _told(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"partition {partition} of {topic}" for topic, partition in partitions[:10])
