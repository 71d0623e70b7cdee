"""Where this client's queries stand, told to brokers, and what brokers tell of others': a reader's own word, signed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parley.client.administration import BrokerStatus
from parley.client.asking import ANSWER_SECONDS, Panel
from parley.client.connection import Declined, Gone
from parley.client.errors import Malformed, ParleyError, Unreachable, refused
from parley.crypto.ed25519 import SecretKey
from parley.ledger.proofs import ProofError
from parley.model.advisories import MAX_ADVISORY, Advisory, Standpoint, open_advisory, sign_advisory
from parley.model.errors import Refusal
from parley.model.genesis import Genesis
from parley.net.messages import Advise, Advised

__all__ = ["ReaderStatus", "advise", "readers_of"]


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


async def advise(panel: Panel, advisory: Advisory, key: SecretKey) -> None:
    """Tell f+1 brokers, one of which is honest; enough if one of them takes it."""
    data, signature = sign_advisory(advisory, key)
    if len(data) > MAX_ADVISORY:
        raise Malformed(f"an advisory of {len(data)} bytes; {MAX_ADVISORY} are allowed")
    names = panel.candidates()[: panel.faults + 1]
    question = Advise(0, data, signature)
    told = await asyncio.gather(*(_tell(panel, name, question) for name in names))
    if all(problem is not None for problem in told):
        raise _nobody(panel, dict(zip(names, told, strict=True)))


async def _tell(panel: Panel, name: str, question: Advise) -> Exception | None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await (await panel.brokers.connection(name)).ask(question, Advised)
    except Declined as declined:
        return declined
    except ProofError as error:
        panel.brokers.distrust(name, str(error))
        return error
    except (Gone, TimeoutError) as error:
        panel.brokers.failed(name)
        return error
    return None


def _nobody(panel: Panel, problems: Mapping[str, Exception | None]) -> ParleyError:
    for problem in problems.values():
        if isinstance(problem, Declined):
            return refused(problem.code, problem.detail)
    said = {name: str(problem) or "it does not answer" for name, problem in problems.items()}
    return Unreachable(said, panel.brokers.addresses)


def readers_of(answers: Iterable[BrokerStatus], genesis: Genesis, now: int) -> list[ReaderStatus]:
    """The newest word of each query that any broker tells of. What its reader did not sign is left out."""
    newest: dict[tuple[bytes, str, str], Advisory] = {}
    for one in answers:
        for said in () if one.status is None else one.status.readers:
            try:
                advisory = open_advisory(said.advisory, said.signature, genesis, now)
            except Refusal:
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
