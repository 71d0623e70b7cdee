"""Liars and failures besides voting: false answers to those who catch up, garbage, and a machine that dies."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from parley.mempool.messages import BatchMessage
from parley.replica import wire
from parley.replica.ports import (
    AdmittedBatch,
    Broadcast,
    Effect,
    Intake,
    Participant,
    Send,
    Submission,
    Timer,
)
from parley.sim.byzantine.actor import Actor, Seat, to_each
from parley.sync.messages import BlocksResponse

LAST_BREATH = 15_000
REMEMBERED = 16
MANY = 300
RARELY = 0.02


class Crash(Actor):
    """Correct until it dies; what it has sent stays sent."""

    name = "crash"
    story = "works until it stops for good"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._dies = seat.chance.randrange(LAST_BREATH)

    def take(self, now: int, sender: int, data: bytes) -> list[Effect]:
        return super().take(now, sender, data) if now < self._dies else []

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        return super().submit(now, batch) if now < self._dies else Submission(Intake.HALTED, [])

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        return super().fire(now, timer) if now < self._dies else []


class LyingSync(Actor):
    """T21: answers those who catch up with chains that are not what they asked for."""

    name = "lying-sync"
    story = "answers those who catch up with tampered, reordered, cut, foreign, huge or empty chains"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._earlier: deque[BlocksResponse] = deque(maxlen=REMEMBERED)

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        if not isinstance(message, BlocksResponse) or not isinstance(effect, Send):
            return [effect]
        lie = self._lie(message)
        self._earlier.append(message)
        unasked = self.seat.chance.choice(self.seat.others)
        return [*to_each([effect.to], lie), *to_each([unasked], message)]

    def _lie(self, answer: BlocksResponse) -> BlocksResponse:
        chance = self.seat.chance
        foreign = chance.choice(self._earlier) if self._earlier else answer
        lies = [
            replace(answer, blocks=()),
            replace(foreign, target=answer.target),
            replace(answer, target=chance.randbytes(32)),
        ]
        if answer.blocks:
            lies += self._tampered(answer)
        return chance.choice(lies)

    def _tampered(self, answer: BlocksResponse) -> list[BlocksResponse]:
        blocks = answer.blocks
        first, last = blocks[0], blocks[-1]
        later = replace(first, header=replace(first.header, time=first.header.time + 1))
        other = replace(last, batches=(*last.batches, self.seat.chance.randbytes(32)))
        uncertified = last.header.justify  # for the parent of the last block, not for itself
        return [
            replace(answer, blocks=blocks[::-1]),
            replace(answer, blocks=blocks[1:]),
            replace(answer, blocks=blocks[:-1]),
            replace(answer, blocks=(later, *blocks[1:])),
            replace(answer, blocks=(*blocks[:-1], other)),
            replace(answer, blocks=blocks * MANY),
            replace(answer, qc=None),
            replace(answer, qc=replace(uncertified, block=last.block().id)),
        ]


class Garbler(Actor):
    """Bytes that are almost messages: cut, flipped, repeated, padded, and yesterday's.

    Batches stay whole: it is their author's signature that a changed one would break, and the counter has none.
    """

    name = "garbler"
    story = "sends damaged, oversized and repeated messages besides its real ones"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._heard: deque[bytes] = deque(maxlen=REMEMBERED)

    def hear(self, _sender: int, message: wire.WireMessage) -> list[Effect]:
        if not isinstance(message, BatchMessage) and self.seat.chance.random() < 0.1:
            self._heard.append(wire.encode(message))
        return []

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        return (
            [effect] if isinstance(message, BatchMessage) else [effect, Broadcast(self._garble(effect.data))]
        )

    def _garble(self, data: bytes) -> bytes:
        chance = self.seat.chance
        if self._heard and chance.random() < 0.5:
            data = chance.choice(self._heard)
        at = chance.randrange(len(data))
        flipped = data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]
        lies = (data, flipped, data[:at], data + b"\x00", b"\x00")
        return chance.choice(lies) if chance.random() > RARELY else b"\xff" * (wire.MAX_MESSAGE + 1)
