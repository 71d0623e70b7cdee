"""What every liar shares: a real replica inside, its own key and no other, and a hand on all that goes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from parley.consensus.errors import Refused
from parley.consensus.types import QC, TC, Header, Instance, Proposal, Timeout, Vote
from parley.crypto.qc import Signer
from parley.replica import wire
from parley.replica.ports import AdmittedBatch, Broadcast, Effect, Participant, Send, Submission, Timer
from parley.sim.disk import Disk


@dataclass(frozen=True, slots=True)
class Seat:
    """What a member has to lie with: its place, its own key, chance, friends, and a second replica if it wants one."""

    instance: Instance
    signer: Signer
    chance: Random
    accomplices: tuple[int, ...]
    another: Callable[[], tuple[Disk, Participant]]

    @property
    def index(self) -> int:
        return self.signer.index

    @property
    def others(self) -> list[int]:
        return [member for member in range(self.instance.size) if member != self.index]

    def vote(self, view: int, block: bytes) -> Vote:
        signature = self.signer.sign(self.instance.vote_message(view, block))
        return Vote(self.instance.epoch, view, block, self.index, signature)

    def timeout(self, view: int, high_qc: QC, tc: TC | None, vote: Vote | None = None) -> Timeout:
        signature = self.signer.sign(self.instance.timeout_message(view, high_qc.view))
        return Timeout(self.instance.epoch, view, high_qc, tc, vote, self.index, signature)

    def proposal(self, header: Header, batches: Sequence[bytes]) -> Proposal:
        signature = self.signer.sign(self.instance.proposal_message(header.id()))
        return Proposal(header, tuple(batches), signature)


class Actor:
    """Behaves like the replica it wraps, except where a subclass overrides `hear` or `say`."""

    name: ClassVar[str]
    story: ClassVar[str]  # what it does, for people

    def __init__(self, replica: Participant, seat: Seat) -> None:
        self.replica = replica
        self.seat = seat

    @property
    def view(self) -> int:
        return self.replica.view

    @property
    def committed_height(self) -> int:
        return self.replica.committed_height

    @property
    def executed_height(self) -> int:
        return self.replica.executed_height

    def start(self, now: int) -> list[Effect]:
        return self._filter(self.replica.start(now))

    def receive(self, now: int, sender: int, *messages: bytes) -> list[Effect]:
        return [effect for data in messages for effect in self.take(now, sender, data)]

    def take(self, now: int, sender: int, data: bytes) -> list[Effect]:
        """One message."""
        message = read(data)
        extra = [] if message is None else self.hear(sender, message)
        return extra + self._filter(self.replica.receive(now, sender, data))

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        submission = self.replica.submit(now, batch)
        return replace(submission, effects=self._filter(submission.effects))

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        return self._filter(self.replica.fire(now, timer))

    def connected(self, now: int, member: int, *, up: bool) -> list[Effect]:
        return self._filter(self.replica.connected(now, member, up=up))

    # -- what a liar overrides ------------------------------------------------------------------------------

    def hear(self, sender: int, message: wire.WireMessage) -> list[Effect]:  # noqa: ARG002 - the plain truth needs no look at it
        """What to send in addition when this arrives."""
        return []

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:  # noqa: ARG002 - the plain truth needs no look at it
        """What to do instead of sending this message."""
        return [effect]

    def _filter(self, effects: list[Effect]) -> list[Effect]:
        altered: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send | Broadcast):
                altered += self.say(wire.decode(effect.data), effect)
            else:
                altered.append(effect)
        return altered


def to_each(receivers: Sequence[int], message: wire.WireMessage) -> list[Effect]:
    data = wire.encode(message)
    return [Send(receiver, data) for receiver in receivers]


def read(data: bytes) -> wire.WireMessage | None:
    """Another liar may have sent anything."""
    try:
        return wire.decode(data)
    except Refused:
        return None
