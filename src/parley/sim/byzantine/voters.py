"""Liars that abuse their signature: two votes in a view, views far ahead, one signature counted many times."""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from parley.consensus.committee import quorum
from parley.consensus.types import QC, Block, Certificates, Proposal, Timeout, Vote
from parley.crypto import merkle
from parley.crypto.qc import Aggregate, bitmap_of
from parley.ledger.layout import StoredBlock
from parley.replica import wire
from parley.replica.ports import Broadcast, Effect, Participant, Send
from parley.sim.byzantine.actor import Actor, Seat, read, to_each
from parley.sync.messages import BlocksRequest, BlocksResponse

FAR = 1000
REMEMBERED = 16


class DoubleVoter(Actor):
    """Votes for every proposal of a view that it hears of, and for a block that does not exist."""

    name = "double-voter"
    story = "votes for every block of a view, and for one that does not exist, and tells everybody"

    def hear(self, _sender: int, message: wire.WireMessage) -> list[Effect]:
        if not isinstance(message, Proposal) or message.header.view < self.view:
            return []
        view = message.header.view
        blocks = (message.header.id(), self.seat.chance.randbytes(32))
        return [Broadcast(wire.encode(self.seat.vote(view, block))) for block in blocks]


class Hoarder(Actor):
    """T15: votes sent to it are lost, and its timeouts help to end a view before the votes in others' timeouts are heard."""

    name = "hoarder"
    story = "keeps the votes that it collects, and gives up on every view at once without its own vote"

    def take(self, now: int, sender: int, data: bytes) -> list[Effect]:
        message = read(data)
        if isinstance(message, Vote):
            return []
        if isinstance(message, Timeout) and message.vote is not None:
            data = wire.encode(replace(message, vote=None))
        return super().take(now, sender, data)

    def hear(self, _sender: int, message: wire.WireMessage) -> list[Effect]:
        if not isinstance(message, Proposal) or message.header.view < self.view:
            return []
        header = message.header
        return [Broadcast(wire.encode(self.seat.timeout(header.view, header.justify, header.tc)))]

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        return [] if isinstance(message, Timeout | Certificates) else [effect]


class Hasty(Actor):
    """Votes and gives up on every view at once: with an honest member that gives up early it ends views (f+1, P29)."""

    name = "hasty"
    story = "votes as the rules say, and gives up on every view at once"

    def hear(self, _sender: int, message: wire.WireMessage) -> list[Effect]:
        if not isinstance(message, Proposal) or message.header.view < self.view:
            return []
        header = message.header
        return [Broadcast(wire.encode(self.seat.timeout(header.view, header.justify, header.tc)))]


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
    """T5: whole chains of its own making, certified by one signature that stands for a quorum."""

    name = "duplicate-signers"
    story = "makes certificates in which its one signature counts as many, for chains of its own making"

    def __init__(self, replica: Participant, seat: Seat) -> None:
        super().__init__(replica, seat)
        self._chains: OrderedDict[bytes, BlocksResponse] = OrderedDict()

    def hear(self, sender: int, message: wire.WireMessage) -> list[Effect]:
        match message:
            case Proposal() if self.seat.chance.random() < 0.3:
                return [Broadcast(wire.encode(Certificates(self._invent(message), None)))]
            case BlocksRequest(target=target) if target in self._chains:
                return to_each([sender], self._chains[target])
            case _:
                return []

    def say(self, message: wire.WireMessage, effect: Send | Broadcast) -> list[Effect]:
        """Its own messages go out too, and again with forged certificates."""
        match message:
            case Proposal(header=header):
                qc = self._forge(header.justify.view, header.parent)
                forged = self.seat.proposal(
                    replace(header, justify=qc, time=header.time + 1), message.batches
                )
                return [effect, Broadcast(wire.encode(forged))]
            case Timeout():
                qc = self._forge(message.view - 1, bytes(32))
                return [effect, Broadcast(wire.encode(self.seat.timeout(message.view, qc, None)))]
            case _:
                return [effect]

    def _invent(self, proposal: Proposal) -> QC:
        """Two blocks of consecutive views beside the proposal: whoever believes their certificates commits a fork."""
        first = Block(replace(proposal.header, time=proposal.header.time + 1), proposal.batches)
        header = replace(
            first.header,
            height=first.height + 1,
            view=first.view + 1,
            parent=first.id,
            time=first.header.time + 1,
            batches_root=merkle.root(()),
            justify=self._forge(first.view, first.id),
            tc=None,
        )
        second = Block(header, ())
        chain = (StoredBlock.of(first), StoredBlock.of(second))
        self._chains[second.id] = BlocksResponse(second.id, chain, None)
        if len(self._chains) > REMEMBERED:
            self._chains.popitem(last=False)
        return self._forge(second.view, second.id)

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
