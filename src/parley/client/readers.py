"""Where this client's queries stand, for brokers to show, and what they show of others': a reader's own word, signed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from parley.client.administration import BrokerStatus
from parley.client.errors import Malformed, Refused
from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.crypto.ed25519 import SecretKey
from parley.model.advisories import MAX_ADVISORY, Advisory, Standpoint, open_advisory, sign_advisory
from parley.model.genesis import Genesis
from parley.net.messages import Advise, Advised


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """What a reader says of one query: how far it is in each partition of a topic, and when it said so (ms since 1970)."""

    reader: str
    query: str
    run: str
    topic: str
    positions: tuple[Standpoint, ...]
    time: int

    @property
    def lag(self) -> int:
        """Messages that the reader knew of and had not read."""
        return sum(position.lag for position in self.positions)


async def advise(quorum: QuorumClient, advisory: Advisory, key: SecretKey) -> None:
    """Tell f+1 brokers, one of which is honest; enough if one of them takes it."""
    data, signature = sign_advisory(advisory, key)
    if len(data) > MAX_ADVISORY:
        raise Malformed("advisory_size", size=len(data), limit=MAX_ADVISORY)
    question = Advise(0, data, signature)

    async def tell(name: str) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            await (await quorum.brokers.connection(name)).ask(question, Advised)

    await quorum.ask_each(quorum.candidates()[: quorum.faults + 1], tell)


def readers_of(answers: Iterable[BrokerStatus], genesis: Genesis, now: int) -> list[ReaderStatus]:
    """The newest word of each query that any broker tells of. What its reader did not sign is left out."""
    newest: dict[tuple[bytes, str, str], Advisory] = {}
    for one in answers:
        for said in () if one.status is None else one.status.readers:
            try:
                advisory = open_advisory(said.advisory, said.signature, genesis, now)
            except Refused:
                continue
            place = (advisory.credential.key, advisory.query, advisory.topic)
            if place not in newest or newest[place].time < advisory.time:
                newest[place] = advisory
    found = (
        ReaderStatus(one.reader, one.query, one.run, one.topic, one.positions, one.time)
        for one in newest.values()
    )
    return sorted(found, key=lambda one: (one.reader, one.query, one.topic))
