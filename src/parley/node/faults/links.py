"""What a lying broker makes of what it says to other brokers, and of what they say.

It signs its second proposal with its own key and without a word to its safety record: as far as the record goes, the
broker stays one that can be told to be honest again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import Instance, Proposal
from parley.crypto.qc import Signer
from parley.ledger.application import AdmittedBatch
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.model.bounded import put
from parley.model.refusals import Refused as InadmissibleError
from parley.node.driver import Links
from parley.node.faults.switches import EQUIVOCATE, Switches
from parley.node.members import Hearer
from parley.replica import wire

MAX_ASKED = 8 * 1_024  # batches that this broker has asked for itself


class Admitting(Protocol):
    """Opens batches as the application does."""

    def admit(self, body: bytes) -> AdmittedBatch: ...


class ClientKeys(Protocol):
    """Knows the registered clients."""

    def key_of(self, title: str) -> bytes | None:
        """The key of a client, by organisation/name."""


@dataclass
class FaultyLinks:
    """Stands between the replica and the other brokers, in both directions."""

    links: Links
    switches: Switches
    signer: Signer
    instance: Instance
    machine: Admitting
    clients: ClientKeys
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

    def refused(self, member: int, reason: Reason, detail: str) -> None:
        self.links.refused(member, reason, detail)

    def before(self, hearer: Hearer) -> Hearer:
        """The same, but deaf to batches of censored clients."""
        return _Deaf(self, hearer)

    def heard(self, messages: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The messages that do not hold a batch of a censored client."""
        if not self.switches.censored:
            return messages
        return tuple(data for data in messages if not self._is_censored(data))

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
            opened = self.machine.admit(message.data)
        except (Refused, InadmissibleError):  # the replica, which gets it next, says so
            return False
        return opened.digest not in self._asked and opened.author in map(
            self.clients.key_of, self.switches.censored
        )


@dataclass(frozen=True, slots=True)
class _Deaf:
    links: FaultyLinks
    hearer: Hearer

    async def receive(self, sender: int, /, *messages: bytes) -> None:
        if heard := self.links.heard(messages):
            await self.hearer.receive(sender, *heard)

    def peer_changed(self, index: int, *, up: bool) -> None:
        self.hearer.peer_changed(index, up=up)


def twin(proposal: Proposal, instance: Instance, signer: Signer) -> Proposal:
    """Another block of the same view, as valid as the first."""
    header = replace(proposal.header, time=proposal.header.time + 1)
    return Proposal(header, proposal.batches, signer.sign(instance.proposal_message(header.id())))
