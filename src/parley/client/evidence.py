"""Proofs that brokers broke the rules, from all brokers that hold some: each is checked here, and no broker's word counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from parley.client.connection import Declined, Gone
from parley.client.errors import ParleyError, Unreachable
from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.consensus.errors import Refused
from parley.ledger.proofs import ProofError
from parley.net.messages import MAX_TOLD, EvidenceList, ReadEvidence
from parley.replica import evidence


@dataclass(frozen=True, slots=True)
class ProvenMisbehaviour:
    """`broker` signed two contradicting messages of this kind in this view; `record` holds both, `held_by` showed it."""

    broker: str
    kind: evidence.Kind
    view: int
    record: bytes
    held_by: tuple[str, ...]


async def gather(quorum: QuorumClient) -> list[ProvenMisbehaviour]:
    """What all brokers that can be reached hold: one of them alone may hide what concerns it."""
    names = quorum.candidates()
    answers = await asyncio.gather(*(_records(quorum, name) for name in names), return_exceptions=True)
    found: dict[evidence.Accusation, ProvenMisbehaviour] = {}
    problems: dict[str, str] = {}
    refusals: list[Declined] = []
    for name, answer in zip(names, answers, strict=True):
        match answer:
            case Declined():
                refusals.append(answer)
                problems[name] = str(answer)
            case ProofError():
                quorum.brokers.distrust(name, str(answer))
                problems[name] = f"it lies: {answer}"
            case Gone() | TimeoutError():
                quorum.brokers.failed(name)
                problems[name] = str(answer) or "it does not answer"
            case BaseException():
                raise answer
            case _:
                _add(quorum, found, name, answer)
    if len(problems) == len(names):
        raise _no_answer(quorum, problems, refusals)
    return sorted(found.values(), key=lambda one: (one.broker, one.view, one.kind))


async def _records(quorum: QuorumClient, name: str) -> list[tuple[evidence.Accusation, bytes]]:
    """Raises `ProofError` for a record that proves nothing, or more of them than brokers keep."""
    connection = await quorum.brokers.connection(name)
    verifier = quorum.reader.trust.verifier
    proven: list[tuple[evidence.Accusation, bytes]] = []
    while True:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await connection.ask(ReadEvidence(0, len(proven)), EvidenceList)
        for record in answer.entries:
            try:
                proven.append((evidence.verify(evidence.decode(record), verifier), record))
            except Refused as error:
                raise ProofError(f"its proof of misbehaviour proves nothing: {error}") from None
        if not answer.more:
            return proven
        if not answer.entries or len(proven) > MAX_TOLD:
            raise ProofError("it shows proofs of misbehaviour without end")


def _add(
    quorum: QuorumClient,
    found: dict[evidence.Accusation, ProvenMisbehaviour],
    holder: str,
    records: Sequence[tuple[evidence.Accusation, bytes]],
) -> None:
    brokers = quorum.reader.trust.genesis.brokers
    for accused, record in records:
        known = found.get(accused)
        holders = (holder,) if known is None else (*known.held_by, holder)
        first = record if known is None else known.record
        found[accused] = ProvenMisbehaviour(
            brokers[accused.member].name, accused.kind, accused.view, first, holders
        )


def _no_answer(quorum: QuorumClient, problems: dict[str, str], refusals: Sequence[Declined]) -> ParleyError:
    if refusals:
        return refusals[0].refusal.error()
    return Unreachable(problems, quorum.brokers.addresses)
