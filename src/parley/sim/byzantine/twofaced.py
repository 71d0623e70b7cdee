"""The strongest liar: two replicas behind one key, so that each half of the network meets another one.

With f or fewer of them nothing happens; with one more the two halves commit different chains. Both are tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from parley.replica.ports import (
    AdmittedBatch,
    Broadcast,
    Effect,
    Participant,
    PersistSafety,
    Send,
    SetTimer,
    Submission,
    Timer,
    Write,
)
from parley.sim.byzantine.actor import Actor, Seat

TAG = b"\xc1"  # never the first byte of a real message; liars mark with it which face speaks


@dataclass(frozen=True, slots=True)
class _SecondTimer:
    """A timer of the second face."""

    timer: Timer


class TwoFaced(Actor):
    """Even ones among the correct replicas talk with the first face, odd ones with the second; liars with both."""

    name = "two-faced"
    story = "is two replicas with one key, one for each half of the network, and plots with other liars"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._disk, second = seat.another()
        self._faces = (replica, second)
        self._honest = [member for member in seat.others if member not in seat.accomplices]

    def start(self, now: int) -> list[Effect]:
        return [effect for face in (0, 1) for effect in self._tell(face, self._faces[face].start(now))]

    def take(self, now: int, sender: int, data: bytes) -> list[Effect]:
        if sender not in self.seat.accomplices:
            face = self._side(sender)
        elif data[:1] == TAG and len(data) > 1:
            face, data = data[1] & 1, data[2:]
        else:
            face = 0
        return self._tell(face, self._faces[face].receive(now, sender, data))

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        first, second = (face.submit(now, batch) for face in self._faces)
        return Submission(first.intake, self._tell(0, first.effects) + self._tell(1, second.effects))

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        match cast("object", timer):
            case _SecondTimer(timer=second):
                return self._tell(1, self._faces[1].fire(now, second))
            case _:
                return self._tell(0, self._faces[0].fire(now, timer))

    def _tell(self, face: int, effects: list[Effect]) -> list[Effect]:
        """The effects of one face: its words to its own half, its writes to its own disk."""
        told: list[Effect] = []
        for effect in effects:
            match effect:
                case Send():
                    told += self._to(face, [effect.to], effect.data)
                case Broadcast():
                    told += self._to(face, self.seat.others, effect.data)
                case Write() if face:
                    self._disk.write(effect)
                case PersistSafety() if face:
                    self._disk.persist(effect)
                case SetTimer() if face:
                    told.append(SetTimer(cast("Timer", _SecondTimer(effect.timer)), effect.delay))
                case Write() | PersistSafety() | SetTimer():
                    told.append(effect)
                case _:  # what it learns of itself is nobody's business
                    pass
        return told

    def _to(self, face: int, receivers: list[int], data: bytes) -> list[Effect]:
        told: list[Effect] = []
        for receiver in receivers:
            if receiver in self.seat.accomplices:
                told.append(Send(receiver, TAG + bytes((face,)) + data))
            elif self._side(receiver) == face:
                told.append(Send(receiver, data))
        return told

    def _side(self, member: int) -> int:
        return self._honest.index(member) % 2
