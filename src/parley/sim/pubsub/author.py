"""A key and its sequence lines: signs batches, and learns from receipts where each line stands (P3)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

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
from parley.model.errors import Code
from parley.model.names import Value, sorted_pairs
from parley.model.operations import Operation, encode_operation
from parley.model.receipts import BatchReceipt, Refused
from parley.sim.pubsub.people import Person
from parley.sim.pubsub.post import Post, Settle

__all__ = ["Author", "tagged"]

LONG = 5_000  # heights for which a batch may be applied: longer than a run, so that no line ends in it
SHORT = 8  # some run out and are signed anew
OFTEN_SHORT = 0.1

Line = tuple[int, str, int]  # kind, topic, partition


def tagged(chance: Random, payload: bytes, rule: str = "", **tags: Value) -> Message:
    header = encode(MessageHeader(tags=sorted_pairs(tags)))
    return Message(chance.randbytes(16), header, rule, payload)


class Author:
    """One session of one key."""

    def __init__(self, post: Post, chain: bytes, person: Person, chance: Random) -> None:
        self.person = person
        self.chance = chance
        self.session = chance.randbytes(16)
        self._post = post
        self._chain = chain
        self._next: Counter[Line] = Counter()
        self._waiting: Counter[Line] = Counter()

    @property
    def waiting(self) -> int:
        """Batches that are not decided yet."""
        return self._waiting.total()

    def operate(self, operation: Operation, settle: Settle) -> None:
        message = Message(self.chance.randbytes(16), encode(MessageHeader()), "", encode_operation(operation))
        self._begin((CONTROL, "", 0), (message,), settle)

    def publish(self, topic: str, partition: int, messages: tuple[Message, ...], settle: Settle) -> None:
        self._begin((PUBLISH, topic, partition), messages, settle)

    def stage(
        self, place: tuple[str, int], messages: tuple[Message, ...], stage: int, valid: int, settle: Settle
    ) -> bytes:
        """The digest of a batch that is staged by the writer that goes by the name of this session."""
        line, last = (STAGED, *place), self._post.height + valid
        name, body = self.sign(line, messages, stage, not_after=last)
        self._waiting[line] += 1

        def decided(receipt: BatchReceipt) -> None:
            self._waiting[line] -= 1
            settle(receipt)

        self._post.hand_in(name, body, self.chance, decided)
        return name

    def sign(
        self,
        line: Line,
        messages: tuple[Message, ...],
        sequence: int,
        *,
        session: bytes | None = None,
        not_after: int | None = None,
        chain: bytes | None = None,
        publisher: bytes | None = None,
    ) -> tuple[bytes, bytes]:
        """Digest and bytes; whoever misuses the network says something else than the truth."""
        kind, topic, partition = line
        last = self._post.height + self._validity(sequence) if not_after is None else not_after
        header = BatchHeader(
            FORMAT,
            chain or self._chain,
            kind,
            topic,
            partition,
            publisher or self.person.key,
            session or self.session,
            sequence,
            len(messages),
            last,
        )
        return sign_batch(header, messages, self.person.secret)

    def _validity(self, sequence: int) -> int:
        """A line lives as long as its batches could be applied: its first one makes it live through the run."""
        return SHORT if sequence and self.chance.random() < OFTEN_SHORT else LONG

    def _begin(self, line: Line, messages: tuple[Message, ...], settle: Settle) -> None:
        sequence = self._next[line]
        self._next[line] += len(messages)
        self._waiting[line] += 1
        self._hand_in(line, messages, sequence, settle)

    def _hand_in(self, line: Line, messages: tuple[Message, ...], sequence: int, settle: Settle) -> None:
        name, body = self.sign(line, messages, sequence)
        decided = partial(self._decided, line, messages, sequence, settle)
        self._post.hand_in(name, body, self.chance, decided)

    def _decided(
        self, line: Line, messages: tuple[Message, ...], sequence: int, settle: Settle, receipt: BatchReceipt
    ) -> None:
        outcome = receipt.outcome
        if isinstance(outcome, Refused) and outcome.code is Code.EXPIRED:
            self._hand_in(
                line, messages, sequence, settle
            )  # it can never be applied any more, so its place is free
            return
        self._waiting[line] -= 1
        if isinstance(outcome, Refused) and not self._waiting[line]:
            self._next[line] = outcome.next_sequence  # 0 for those who have no part: they have no line
        settle(receipt)
