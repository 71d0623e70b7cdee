"""What the services of a broker answer at once by one view of the ledger, without a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from parley.net.messages import (
    Answer,
    Blocks,
    Bodies,
    EvidenceList,
    Fetch,
    Listed,
    ListKeys,
    Prove,
    Proven,
    Question,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
    ShownHeader,
    SplicedFetched,
)
from parley.node.access import Caller
from parley.node.services.asking import Asking, Services
from parley.node.services.service import Showing, Table
from parley.node.services.table import TABLE
from parley.node.view import View

A = TypeVar("A", bound=Answer)
Charge = Callable[[int], None]
SERVICES = Table(TABLE)
work = SERVICES.work


def free(_: int) -> None:
    """Nothing is charged here."""


def answered(view: View, caller: Caller, question: Question, kind: type[A], charge: Charge = free) -> A:
    """In as many steps as it takes. Raises `Refused`."""
    service = SERVICES.of(question)
    assert isinstance(service, Showing)
    said = service.shown(Asking(cast("Services", None), caller, charge), view, question)
    while not isinstance(said, Answer):
        assert said is not None
        said = said.step() or said
    assert isinstance(said, kind), said
    return said


def proven(view: View, caller: Caller, question: Prove) -> Proven:
    return answered(view, caller, question, Proven)


def listed(view: View, caller: Caller, question: ListKeys, charge: Charge) -> Listed:
    return answered(view, caller, question, Listed, charge)


def block_name(view: View, caller: Caller, question: ReadHeader, charge: Charge) -> ShownHeader:
    return answered(view, caller, question, ShownHeader, charge)


def fetched(view: View, caller: Caller, question: Fetch, charge: Charge) -> SplicedFetched:
    return answered(view, caller, question, SplicedFetched, charge)


def audited(
    view: View, caller: Caller, question: ReadBlocks | ReadBodies | ReadEvidence
) -> Blocks | Bodies | EvidenceList:
    answer = answered(view, caller, question, Answer)
    assert isinstance(answer, Blocks | Bodies | EvidenceList)
    return answer
