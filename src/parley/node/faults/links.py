"""What a lying broker makes of what it says to other brokers, and of what they say.

It signs its second proposal with its own key and without a word to its safety record: as far as the record goes, the
broker stays one that can be told to be honest again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from parley.consensus.errors import Refused
from parley.consensus.types import Instance, Proposal
from parley.crypto.qc import Signer
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.model.batches import Batch
from parley.model.bounded import put
from parley.model.refusals import Refused as InadmissibleError
from parley.node.driver import Links, Receive
from parley.node.faults.switches import EQUIVOCATE, Switches
from parley.replica import wire

MAX_ASKED = 8 * 1_024  # batches that this broker has asked for itself


@dataclass
class FaultyLinks:
    """Stands between the replica and the other brokers, in both directions."""

    links: Links
    switches: Switches
    signer: Signer
    instance: Instance
    open_batch: Callable[[bytes], tuple[bytes, Batch]]
    key_of: Callable[[str], bytes | None]  # of a client, by organisation/name
    _asked: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    def send(self, to: int, data: bytes) -> None:
        if self.switches.censored:
            self._note_questions(data)
        self.links.send(to, data)

    def broadcast(self, data: bytes) -> None:
        if self.switches.active and self.switches.has(EQUIVOCATE):
            message = wire.decode(data)
            if isinstance(message, Proposal) and message.header.proposer == self.signer.index:
                self._send_both(data, wire.encode(twin(message, self.instance, self.signer)))
                return
        self.links.broadcast(data)

    def hearing(self, receive: Receive) -> Receive:
        """Like `receive`, but deaf to batches of censored clients."""

        async def hear(sender: int, *messages: bytes) -> None:
            if self.switches.censored:
                messages = tuple(data for data in messages if not self._is_censored(data))
            if messages:
                await receive(sender, *messages)

        return hear

    def _send_both(self, one: bytes, other: bytes) -> None:
        """Everybody gets both, so that everybody can prove it. With its own vote for `one`, neither has a quorum."""
        others = [index for index in range(self.instance.size) if index != self.signer.index]
        for place, index in enumerate(others):
            first, second = (one, other) if place < len(others) // 2 else (other, one)
            self.links.send(index, first)
            self.links.send(index, second)

    def _note_questions(self, data: bytes) -> None:
        """What it asks for itself, for the block of another leader, it needs in order to go on voting."""
        message = wire.decode(data)
        if isinstance(message, BatchesRequest):
            for digest in message.digests:
                put(self._asked, digest, None, MAX_ASKED)

    def _is_censored(self, data: bytes) -> bool:
        try:
            message = wire.decode(data)
            if not isinstance(message, BatchMessage):
                return False
            digest, batch = self.open_batch(message.data)
        except (Refused, InadmissibleError):  # the replica, which gets it next, says so
            return False
        return digest not in self._asked and batch.header.publisher in map(
            self.key_of, self.switches.censored
        )


def twin(proposal: Proposal, instance: Instance, signer: Signer) -> Proposal:
    """Another block of the same view, as valid as the first."""
    header = replace(proposal.header, time=proposal.header.time + 1)
    return Proposal(header, proposal.batches, signer.sign(instance.proposal_message(header.id())))
