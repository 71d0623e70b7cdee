"""A key and its producer sequences: it signs batches, and learns from receipts where each sequence stands (P3)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

from parley.application.operations import Operation, encode_operation
from parley.model.batches import (
    CONTROL,
    FORMAT,
    PUBLISH,
    STAGED,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)
from parley.model.names import Position, Value, sorted_pairs
from parley.model.receipts import BatchReceipt
from parley.model.refusals import Expired
from parley.modules.topics.operations import created
from parley.sim.pubsub.people import Person
from parley.sim.pubsub.post import Post, Settle

LONG = 5_000  # heights for which a batch may be applied: longer than a run, so that no sequence ends in it
SHORT = 8  # some run out and are signed again
OFTEN_SHORT = 0.1

Target = tuple[int, str, int]  # kind, topic, partition
Line = tuple[Target, Position]  # with the topic's id: each has a sequence of its own


def tagged(chance: Random, payload: bytes, rule: str = "", **tags: Value) -> Message:
    header = encode(MessageHeader(tags=sorted_pairs(tags)))
    return Message(chance.randbytes(16), header, rule, payload)


class Author:
    """One session of one key. One that is `cautious` hands what it signs to every broker, and gives it much time."""

    def __init__(
        self, post: Post, chain: bytes, person: Person, chance: Random, *, cautious: bool = False
    ) -> None:
        self.person = person
        self.chance = chance
        self.session = chance.randbytes(16)
        self._post = post
        self._chain = chain
        self._cautious = cautious
        self._next: Counter[Line] = Counter()
        self._waiting: Counter[Line] = Counter()

    @property
    def waiting(self) -> int:
        """Batches that are not decided yet."""
        return self._waiting.total()

    def operate(self, operation: Operation, settle: Settle) -> None:
        if (topic := created(operation)) is not None:
            settle = partial(self._post.created, topic.name, settle)
        message = Message(self.chance.randbytes(16), encode(MessageHeader()), "", encode_operation(operation))
        self._begin((CONTROL, "", 0), (message,), settle)

    def publish(self, topic: str, partition: int, messages: tuple[Message, ...], settle: Settle) -> None:
        self._begin((PUBLISH, topic, partition), messages, settle)

    def stage(
        self, place: tuple[str, int], messages: tuple[Message, ...], stage: int, valid: int, settle: Settle
    ) -> bytes:
        """The digest of a batch that is staged by the writer that goes by the name of this session."""
        target, last = (STAGED, *place), self._post.height + valid
        digest, body = self.sign(target, messages, stage, not_after=last)
        line = self._line(target)
        self._waiting[line] += 1

        def decided(receipt: BatchReceipt) -> None:
            self._waiting[line] -= 1
            settle(receipt)

        self._post.hand_in(digest, body, self.chance, decided, everywhere=self._cautious)
        return digest

    def sign(
        self,
        target: Target,
        messages: tuple[Message, ...],
        sequence: int,
        *,
        session: bytes | None = None,
        not_after: int | None = None,
        chain: bytes | None = None,
        publisher: bytes | None = None,
        topic_id: Position | None = None,
    ) -> tuple[bytes, bytes]:
        """Digest and bytes; those who misuse the network say something else than the truth."""
        kind, topic, partition = target
        last = self._post.height + self._validity(sequence) if not_after is None else not_after
        header = BatchHeader(
            FORMAT,
            chain or self._chain,
            0,
            kind,
            topic,
            self._post.topic_id(topic) if topic_id is None else topic_id,
            partition,
            publisher or self.person.key,
            session or self.session,
            sequence,
            len(messages),
            last,
        )
        return sign_batch(header, messages, self.person.secret)

    def _validity(self, sequence: int) -> int:
        """A sequence lives as long as its batches could be applied: its first one makes it live through the run."""
        short = sequence and self.chance.random() < OFTEN_SHORT and not self._cautious
        return SHORT if short else LONG

    def _begin(self, target: Target, messages: tuple[Message, ...], settle: Settle) -> None:
        line = self._line(target)
        sequence = self._next[line]
        self._next[line] += len(messages)
        self._waiting[line] += 1
        self._hand_in(line, messages, sequence, settle)

    def _line(self, target: Target) -> Line:
        return target, self._post.topic_id(target[1])

    def _hand_in(self, line: Line, messages: tuple[Message, ...], sequence: int, settle: Settle) -> None:
        target, topic_id = line
        digest, body = self.sign(target, messages, sequence, topic_id=topic_id)
        decided = partial(self._decided, line, messages, sequence, settle)
        self._post.hand_in(digest, body, self.chance, decided, everywhere=self._cautious)

    def _decided(
        self,
        line: Line,
        messages: tuple[Message, ...],
        sequence: int,
        settle: Settle,
        receipt: BatchReceipt,
    ) -> None:
        rejected = receipt.rejected
        if receipt.code == Expired.code:  # it can never be applied any more, so its place is free
            self._hand_in(line, messages, sequence, settle)
            return
        self._waiting[line] -= 1
        if rejected is not None and not self._waiting[line]:
            self._next[line] = rejected.next_sequence  # 0 for those who have no part: they have no sequence
        settle(receipt)
