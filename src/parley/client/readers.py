"""Where this client's queries stand, for brokers to show, and what they show of others': a reader's own word, signed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parley.client.administration import BrokerStatus
from parley.client.connection import Declined, Gone
from parley.client.errors import Malformed, ParleyError, Refused, Unreachable
from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.crypto.ed25519 import SecretKey
from parley.ledger.proofs import ProofError
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
    names = quorum.candidates()[: quorum.faults + 1]
    question = Advise(0, data, signature)
    problems = await asyncio.gather(*(_tell(quorum, name, question) for name in names))
    if all(problem is not None for problem in problems):
        raise _no_answer(quorum, dict(zip(names, problems, strict=True)))


async def _tell(quorum: QuorumClient, name: str, question: Advise) -> Exception | None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await (await quorum.brokers.connection(name)).ask(question, Advised)
    except Declined as declined:
        return declined
    except ProofError as error:
        quorum.brokers.distrust(name, str(error))
        return error
    except (Gone, TimeoutError) as error:
        quorum.brokers.failed(name)
        return error
    return None


def _no_answer(quorum: QuorumClient, problems: Mapping[str, Exception | None]) -> ParleyError:
    for problem in problems.values():
        if isinstance(problem, Declined):
            return problem.refusal.error()
    said = {name: str(problem) or "it does not answer" for name, problem in problems.items()}
    return Unreachable(said, quorum.brokers.addresses)


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
            known = newest.get(place)
            if known is None or known.time < advisory.time:
                newest[place] = advisory
    return sorted(map(_status, newest.values()), key=lambda one: (one.reader, one.query, one.topic))


def _status(advisory: Advisory) -> ReaderStatus:
    return ReaderStatus(
        advisory.reader, advisory.query, advisory.run, advisory.topic, advisory.positions, advisory.time
    )
