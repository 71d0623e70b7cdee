"""The members of one shard by their places in its committee: what a shard knows of the transport.

The transport counts the brokers of the whole network and carries envelopes; a replica counts members and sends messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parley.consensus.committee import Committee
from parley.consensus.errors import Reason
from parley.model.genesis import Broker
from parley.net.messages import Envelope, encode
from parley.node.peers import Peers
from parley.node.workers import Workers, announced


class Hearer(Protocol):
    """Takes what members have sent: a replica's driver, or the faults in front of it."""

    async def receive(self, sender: int, /, *messages: bytes) -> None: ...

    def peer_changed(self, index: int, *, up: bool) -> None: ...


class Members:
    """The committee of one shard. `workers` check announced batches before the replica gets them."""

    def __init__(
        self, peers: Peers, committee: Committee, brokers: Sequence[Broker], workers: Workers | None = None
    ) -> None:
        places = {broker.name: place for place, broker in enumerate(brokers)}
        self._peers = peers
        self._committee = committee
        self._places = tuple(places[name] for name in committee.names)
        self._indices = {place: index for index, place in enumerate(self._places)}
        self._workers = workers
        self._hearer: Hearer | None = None

    def hear(self, hearer: Hearer) -> None:
        """Hand on what members send, and which of them are connected, from now on."""
        self._hearer = hearer

    # -- out -----------------------------------------------------------------------------------------------------------

    def send(self, to: int, data: bytes) -> None:
        self._peers.send(self._places[to], self._enveloped(data))

    def broadcast(self, data: bytes) -> None:
        enveloped = self._enveloped(data)
        for place in self._places:
            self._peers.send(place, enveloped)

    def _enveloped(self, data: bytes) -> bytes:
        return encode(Envelope(self._committee.shard, self._committee.epoch, data))

    # -- in ------------------------------------------------------------------------------------------------------------

    async def receive(self, broker: int, envelopes: Sequence[Envelope]) -> None:
        """Take what a broker has sent to this shard. It is refused if the broker is no member."""
        messages = [envelope.message for envelope in envelopes if self._is_meant(broker, envelope)]
        if not messages or self._hearer is None:
            return
        if self._workers is not None:
            await self._workers.ahead(announced(messages))
        await self._hearer.receive(self._indices[broker], *messages)

    def _is_meant(self, broker: int, envelope: Envelope) -> bool:
        if broker not in self._indices:
            self._peers.refused(broker, Reason.UNKNOWN_SIGNER, f"it is no member of shard {envelope.shard}")
        elif envelope.epoch != self._committee.epoch:
            self._peers.refused(broker, Reason.WRONG_EPOCH, f"an envelope of epoch {envelope.epoch}")
        else:
            return True
        return False

    def changed(self, broker: int, *, up: bool) -> None:
        """Note that there is a connection to a broker now, or no longer."""
        if self._hearer is not None and broker in self._indices:
            self._hearer.peer_changed(self._indices[broker], up=up)

    def refused(self, member: int, reason: Reason, detail: str) -> None:
        """Count what the replica has refused of a member's messages."""
        self._peers.refused(self._places[member], reason, detail)

    # -- what is known of them -----------------------------------------------------------------------------------------

    def connected(self, member: int) -> bool:
        """Whether messages get through, both ways."""
        return self._peers.connected(self._places[member])

    def is_slow(self, member: int) -> bool:
        """Whether its answers take much longer than those of others."""
        return self._peers.is_slow(self._places[member])

    def round_trip_ms(self, member: int) -> int | None:
        """How long an answer of a member takes; None: it is down."""
        return self._peers.round_trip_ms(self._places[member])
