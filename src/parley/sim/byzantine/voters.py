"""Liars that abuse their signature: two votes in a view, views far ahead, one signature counted many times."""

from __future__ import annotations

from msgspec.structs import replace

from parley.consensus.committee import quorum
from parley.consensus.types import QC, Certificates, Proposal, Timeout, Vote
from parley.crypto.qc import Aggregate, bitmap_of
from parley.replica import wire
from parley.replica.ports import Broadcast, Effect, Send
from parley.sim.byzantine.actor import Actor

__all__ = ["DoubleVoter", "DuplicateSigners", "FarFuture"]

FAR = 1000


class DoubleVoter(Actor):
    """Votes for every proposal of a view that it hears of, and for a block that does not exist."""

    name = "double-voter"
    story = "votes for every block of a view, and for one that does not exist, and tells everybody"

    def hear(self, message: wire.WireMessage) -> list[Effect]:
        if not isinstance(message, Proposal) or message.header.view < self.view:
            return []
        view = message.header.view
        second = self.seat.chance.randbytes(32)
        votes = [self.seat.vote(view, block) for block in (message.header.id(), second)]
        return [Broadcast(wire.encode(vote)) for vote in votes]


class FarFuture(Actor):
    """T7: speaks for views that nothing entitles it to."""

    name = "view+1000"
    story = "sends proposals, votes and timeouts for views a thousand ahead"

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        match message:
            case Proposal(header=header):
                ahead = replace(header, view=header.view + FAR)
                return [effect, Broadcast(wire.encode(self.seat.proposal(ahead, message.batches)))]
            case Vote():
                vote = self.seat.vote(message.view + FAR, message.block)
                return [effect, Broadcast(wire.encode(vote))]
            case Timeout():
                timeout = self.seat.timeout(message.view + FAR, message.high_qc, message.tc)
                return [Broadcast(wire.encode(timeout)), effect]
            case _:
                return [effect]


class DuplicateSigners(Actor):
    """T5: certificates for a block of its own in which one signature stands for a quorum."""

    name = "duplicate-signers"
    story = "makes certificates in which its one signature counts as many"

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        match message:
            case Proposal(header=header):
                # A child of its own uncertified block, justified by itself alone.
                qc = self._forge(header.view, header.id())
                child = replace(
                    header,
                    view=header.view + 1,
                    height=header.height + 1,
                    parent=header.id(),
                    time=header.time + 1,
                    justify=qc,
                    tc=None,
                )
                forged: list[wire.WireMessage] = [
                    Certificates(qc, None),
                    self.seat.proposal(child, message.batches),
                ]
            case Vote():
                forged = [Certificates(self._forge(message.view, message.block), None)]
            case Timeout():
                forged = [
                    self.seat.timeout(message.view, self._forge(message.view - 1, bytes(32)), message.tc)
                ]
            case _:
                forged = []
        return [effect, *(Broadcast(wire.encode(lie)) for lie in forged)]

    def _forge(self, view: int, block: bytes) -> QC:
        """A certificate that claims a quorum and holds one honest signature, its own."""
        seat, size = self.seat, self.seat.instance.size
        enough = quorum(size)
        own = seat.signer.sign(seat.instance.vote_message(view, block))
        alone = bitmap_of((seat.index,), size)
        all_of_them = bitmap_of(range(enough), size)
        votes = seat.chance.choice(
            (
                Aggregate(all_of_them, own * enough),  # in the others' places
                Aggregate(all_of_them, own),
                Aggregate(alone, own * enough),  # the same one many times
                Aggregate(alone, own),
                Aggregate(alone * enough, own * enough),  # padded bitmaps
                Aggregate(all_of_them + b"\xff", own * (enough + 8)),
                Aggregate(b"\xff" * len(all_of_them), own * 8 * len(all_of_them)),
            )
        )
        return QC(seat.instance.epoch, view, block, votes)
