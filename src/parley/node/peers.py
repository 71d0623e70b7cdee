"""The other brokers: a link out to each, and the connections on which they come in.

Who a peer is, its certificate says; whether it is of the same network, its first frame does. Both are looked at before
anything else, and a peer that then sends garbage is cut off for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Protocol

from parley.consensus.errors import Reason
from parley.model.refusals import Busy, Malformed, NotAuthenticated, Refused, WrongChain, malformed
from parley.net.frames import FrameError, FrameStream
from parley.net.limits import Entry, Quota, Strikes
from parley.net.listener import Visit
from parley.net.messages import (
    ENVELOPE_BYTES,
    VERSION,
    Envelope,
    PeerHello,
    WireError,
    decode_envelope,
    decode_opening,
    encode,
)
from parley.net.tls import tls_name
from parley.node.authentication import refusal_of, say_failure
from parley.node.certificates import PeerRefused, identify_peer
from parley.node.clock import ClockWatch, monotonic
from parley.node.config import Config
from parley.node.contacts import LOOK_MS, Contacts
from parley.node.door import PLACES_PER_BROKER, Door, places_for_brokers
from parley.node.incoming import Incoming
from parley.node.links import Link
from parley.node.logs import Log, Throttled
from parley.node.shown import Shown
from parley.node.telemetry.tally import Tally
from parley.replica.wire import MAX_MESSAGE

HELLO_SECONDS = 5.0
STRIKES = 100  # pieces of garbage, within
STRIKE_WINDOW_MS = 60_000  # after which a peer is cut off for
BAN_MS = 30_000

# What no correct broker sends, whatever it has been sent itself.
GARBAGE = frozenset(
    {
        Reason.MALFORMED,
        Reason.NOT_CANONICAL,
        Reason.WRONG_CHAIN,
        Reason.WRONG_EPOCH,
        Reason.WRONG_VERSION,
        Reason.UNKNOWN_SIGNER,
        Reason.BAD_SIGNATURE,
        Reason.BAD_BITMAP,
        Reason.TOO_FEW_SIGNERS,
        Reason.BAD_CERTIFICATE,
        Reason.INADMISSIBLE,
    }
)


class Inbox(Protocol):
    """A shard of this broker, as the transport knows it. Brokers are named by their places in the genesis file."""

    async def receive(self, broker: int, envelopes: Sequence[Envelope]) -> None: ...

    def changed(self, broker: int, *, up: bool) -> None: ...


class Peers:
    """The brokers that share a shard with this one, by their places in the genesis file."""

    def __init__(
        self,
        config: Config,
        shown: Shown,
        clock: ClockWatch,
        log: Log,
        now: Callable[[], int],
        *,
        tally: Tally | None = None,
    ) -> None:
        genesis, brokers = config.genesis, config.brokers
        self._chain = genesis.chain
        self._clock = clock
        self._log = log
        self._now = now
        self._tally = tally or Tally()
        self._quota = Quota(PLACES_PER_BROKER, places_for_brokers(len(brokers)))
        self._throttled = Throttled()
        self._names = [tls_name(broker.name, broker.organisation) for broker in brokers]
        self._brokers = [broker.name for broker in brokers]  # as status, metrics and log name them
        self._organisations = [broker.organisation for broker in brokers]
        authorities = {organisation.name: organisation.tls_ca for organisation in genesis.organisations}
        self._authorities = {
            name: authorities[broker.organisation]
            for name, broker in zip(self._names, brokers, strict=True)
            if broker.name in {config.broker.name, *config.neighbours}
        }
        self._strikes = Strikes(
            limit=STRIKES, window_ms=STRIKE_WINDOW_MS, ban_ms=BAN_MS, capacity=len(self._names)
        )
        # By their places, as status, metrics and log name them.
        self.others = {index: name for index, name in enumerate(self._brokers) if name in config.neighbours}
        self._place = config.place
        self._contacts = Contacts(self.others, log, monotonic)
        self._incoming: dict[int, Incoming] = {}
        self._links = {
            index: Link(
                self._names[index],
                config.addresses[index],
                shown.peers[broker.organisation],
                hello=self._hello,
                contact=self._contacts[index],
                told_time=partial(self._told_time, index),
                log=log.bind(peer=broker.name),
                ticks=monotonic,
            )
            for index, broker in enumerate(brokers)
            if index in self.others
        }
        self._inboxes: Mapping[int, Inbox] = {}

    # -- out ---------------------------------------------------------------------------------------------------------

    def start(self, inboxes: Mapping[int, Inbox]) -> list[asyncio.Task[None]]:
        """Dial the other brokers. Their messages go to the inbox of the shard that the envelope names.

        The tasks run until they are cancelled.
        """
        self._inboxes = inboxes
        self._contacts.start(self._on_change)
        for index in self._links:  # none has been reached yet, and some may be gone
            self._on_change(index, False)
        dialling = [asyncio.create_task(link.run()) for link in self._links.values()]
        return [*dialling, asyncio.create_task(self._watch())]

    def send(self, to: int, data: bytes) -> None:
        if to in self._links:
            self._links[to].send(data)

    def present(self, shown: Shown) -> None:
        """Dial with another certificate from now on."""
        for index, link in self._links.items():
            link.present(shown.peers[self._organisations[index]])

    def connected(self, index: int) -> bool:
        """Whether messages get through, both ways."""
        return self._contacts.up(index)

    def is_slow(self, index: int) -> bool:
        """Whether its answers take much longer than those of the others."""
        return self._contacts.is_slow(index)

    def round_trip_ms(self, index: int) -> int | None:
        """How long an answer takes; None: it is down."""
        return self._contacts.round_trip_ms(index)

    @property
    def dropped(self) -> int:
        return sum(link.dropped for link in self._links.values())

    async def _watch(self) -> None:
        """Look at every contact, and send pings at every other look."""
        while True:
            for beats in (True, False):
                for index, incoming in self._incoming.items():
                    if incoming.full:
                        self._contacts[index].heard()
                self._contacts.look()
                if beats:
                    for link in self._links.values():
                        link.beat()
                await asyncio.sleep(LOOK_MS / 1_000)

    def _on_change(self, index: int, up: bool) -> None:  # noqa: FBT001
        if not up:
            self._clock.forget(index)
        # Later, because a step of the replica may have caused it, and it is not over yet.
        for inbox in self._inboxes.values():
            asyncio.get_running_loop().call_soon(partial(inbox.changed, index, up=up))

    def _told_time(self, index: int, theirs: int, round_trip: int) -> None:
        self._clock.answered(index, theirs, self._now(), round_trip)

    # -- in ----------------------------------------------------------------------------------------------------------

    async def serve(self, stream: FrameStream, certificate: bytes, door: Door, visit: Visit) -> None:
        """Until the connection is of no more use; the caller closes it."""
        try:
            index = self._identify(certificate)
            with door.known(visit), self._place_for(index):
                await self._require_hello(stream, index)
                await self._converse(stream, index)
        except Refused as refused:
            say_failure(stream, 0, refused)
        except FrameError as error:
            self._garbled(stream, error)

    @contextmanager
    def _place_for(self, index: int) -> Iterator[None]:
        name = self._names[index]
        if self._quota.enter(name) is not Entry.ADMITTED:
            raise Busy("broker_connections", broker=name, limit=PLACES_PER_BROKER)
        try:
            yield
        finally:
            self._quota.leave(name)

    async def _converse(self, stream: FrameStream, index: int) -> None:
        if (old := self._incoming.get(index)) is not None:
            old.stream.close()
        contact = self._contacts[index]
        incoming = self._incoming[index] = Incoming(stream, heard=contact.heard, now=self._now)
        contact.heard()
        self._links[index].dial_now()
        stream.limit = MAX_MESSAGE + ENVELOPE_BYTES
        try:
            await incoming.run(partial(self._take, index, incoming))
        except FrameError as error:
            self._garbled(stream, error)
            if refusal_of(error) is not None:
                self._strike(index)
        finally:
            if self._incoming.get(index) is incoming:
                del self._incoming[index]
                self._clock.forget(index)
                contact.left()

    def refused(self, index: int, reason: Reason, detail: str) -> None:
        """Count a message of a peer that was refused. Most are harmless, as when one comes late; others are garbage."""
        name = self._brokers[index]
        self._tally.messages_refused.setdefault(name, Counter())[reason] += 1
        self._log.debug("refused", peer=name, reason=reason.name, detail=detail)
        if reason in GARBAGE:
            self._strike(index)

    def _strike(self, index: int) -> None:
        """Count garbage. From a broker that is banned nothing is read for a while; messages to it still go out."""
        name = self._names[index]
        if self._strikes.banned(name, monotonic()) or not self._strikes.strike(name, monotonic()):
            return
        self._say("peer_cut_off", self._brokers[index], why="it sends garbage", seconds=BAN_MS // 1_000)
        self._contacts[index].banned(BAN_MS)
        if (incoming := self._incoming.get(index)) is not None:
            incoming.stream.close()

    def _identify(self, certificate: bytes) -> int:
        try:
            name = identify_peer(certificate, self._authorities, now=self._now())
        except PeerRefused as refused:
            self._say("peer_refused", refused.name, why=str(refused))
            raise NotAuthenticated("certificate", fault=str(refused)) from None
        index = self._names.index(name)
        if index == self._place:
            raise self._logged("peer_refused", name, NotAuthenticated("own_certificate"))
        if wait := self._strikes.wait_ms(name, monotonic()):
            raise Busy("broker_garbage", broker=name, seconds=wait // 1_000 + 1)
        return index

    async def _require_hello(self, stream: FrameStream, index: int) -> None:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                frame = await stream.read()
            hello = decode_opening(frame or b"")
        except TimeoutError:
            raise Malformed("late_hello", seconds=f"{HELLO_SECONDS:g}") from None
        except WireError as error:
            raise malformed("broker_hello", error) from None
        if not isinstance(hello, PeerHello):
            raise Malformed("no_hello")
        name = self._names[index]
        if hello.version != VERSION:
            refusal = WrongChain("version", broker=name, version=hello.version, own=VERSION)
            raise self._logged("peer_version", self._brokers[index], refusal)
        if hello.chain != self._chain:
            refusal = WrongChain("network", broker=name, chain=hello.chain, own=self._chain)
            raise self._logged("peer_chain", self._brokers[index], refusal)
        self._clock.heard(index, hello.time, self._now())

    async def _take(self, index: int, incoming: Incoming, group: list[bytes]) -> bool:
        """Hand messages to the shards that they name, and return whether to go on with this connection."""
        for shard, envelopes in groupby(self._opened(index, group), key=lambda one: one.shard):
            await self._inboxes[shard].receive(index, list(envelopes))
        await asyncio.sleep(0)
        return self._incoming.get(index) is incoming and not self._strikes.banned(
            self._names[index], monotonic()
        )

    def _opened(self, index: int, group: list[bytes]) -> Iterator[Envelope]:
        """The envelopes to shards of this broker; others are refused."""
        for frame in group:
            try:
                envelope = decode_envelope(frame)
            except WireError as error:
                self.refused(index, Reason.MALFORMED, str(error))
                continue
            if envelope.shard in self._inboxes:
                yield envelope
            else:
                self.refused(index, Reason.WRONG_CHAIN, f"an envelope of shard {envelope.shard}")

    def _garbled(self, stream: FrameStream, error: FrameError) -> None:
        if (why := refusal_of(error)) is not None:
            say_failure(stream, 0, why)

    def _hello(self) -> bytes:
        return encode(PeerHello(VERSION, self._chain, self._now()))

    def _logged(self, event: str, name: str, why: Refused) -> Refused:
        """The refusal, which the operator has to know of, too."""
        self._say(event, name, why=why.detail)
        return why

    def _say(self, event: str, subject: object, **values: object) -> None:
        if count := self._throttled.count(event, subject, monotonic()):
            self._log.error(event, peer=subject, count=count, **values)
