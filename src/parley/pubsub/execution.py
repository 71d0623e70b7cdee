"""One ordered batch: whether it is its turn (P3), who asks, and what it does."""

from __future__ import annotations

from parley.model.batches import MAX_NOT_AFTER, STAGED, BatchHeader
from parley.model.errors import Code, Refusal
from parley.model.names import Position
from parley.model.operations import (
    Advertise,
    AlterClient,
    AlterTopic,
    CommitStage,
    CreateTopic,
    DeleteTopic,
    GrantRight,
    Operation,
    RegisterClient,
    RevokeClient,
    RevokeRight,
    Subscribe,
    Unsubscribe,
)
from parley.model.receipts import BatchReceipt, Done, Duplicate, Outcome, Refused
from parley.pubsub import advertisements, staging, strangers, subscriptions, topics
from parley.pubsub.admission import Opened
from parley.pubsub.lines import Line
from parley.pubsub.publications import publish
from parley.pubsub.state import State
from parley.pubsub.step import Step
from parley.registry.standing import Standing

__all__ = ["execute", "in_turn"]

MAX_DETAIL = 512  # characters of a receipt's detail


def in_turn(batches: list[Opened]) -> list[Opened]:
    """The leader's order, but a line's batches by sequence within the places that the line holds (P3)."""
    lines: dict[tuple[object, ...], list[int]] = {}
    for place, opened in enumerate(batches):
        header = opened.batch.header
        line = (header.publisher, header.session, header.kind, header.topic, header.partition)
        lines.setdefault(line, []).append(place)
    ordered = list(batches)
    for places in lines.values():
        line_up = sorted(
            (batches[place] for place in places), key=lambda opened: opened.batch.header.sequence
        )
        for place, opened in zip(places, line_up, strict=True):
            ordered[place] = opened
    return ordered


def execute(step: Step, opened: Opened, position: int) -> BatchReceipt:
    """The receipt will be the block's leaf at `position`."""
    header = opened.batch.header
    by = step.registry.standing(step.state, header.publisher)
    decide = _stage if header.kind == STAGED else _decide
    outcome = decide(step, by, opened, (step.height, position))
    return BatchReceipt(
        opened.digest, header.publisher, by.title, header.topic, header.partition, header.count, outcome
    )


def _decide(step: Step, by: Standing, opened: Opened, at: Position) -> Outcome:
    state, header, name = step.state, opened.batch.header, opened.digest
    line = Line(state, header)
    if (fault := _untimely(header, step.height)) is not None:
        return Refused(Code.EXPIRED, fault, line.next)
    known = line.original(header.sequence, name) or strangers.original(state, name)
    if known is not None:
        return Duplicate(known)
    if not line.exists and not by.is_live:
        return _turn_away(state, by, opened, at)
    if header.sequence < line.next:
        line.hold(header.not_after)
        fault = f"sequence {header.sequence} was used by another batch of this session"
        return Refused(Code.SEQUENCE_REUSED, fault, line.next)
    if header.sequence > line.next:
        fault = f"sequence {header.sequence} came before {line.next}"
        return Refused(Code.OUT_OF_SEQUENCE, fault, line.next)
    try:
        line.require_room(header)
        outcome = _apply(step, by, opened, at)
    except Refusal as refusal:
        if refusal.code is Code.BUSY:  # nothing is decided: it waits for another block
            return _refused(refusal, line.next)
        outcome = _refused(refusal, header.sequence + header.count)
    line.take(header, name, at)
    return outcome


def _stage(step: Step, by: Standing, opened: Opened, at: Position) -> Outcome:
    """Without a line: the next sequence that a refusal names is 0."""
    if (fault := _untimely(opened.batch.header, step.height)) is not None:
        return Refused(Code.EXPIRED, fault, 0)
    try:
        return staging.stage(step, by, opened, at)
    except Refusal as refusal:
        return _refused(refusal, 0)


def _untimely(header: BatchHeader, height: int) -> str | None:
    if height > header.not_after:
        return f"it was to be applied up to height {header.not_after}, this is {height}"
    if header.not_after > height + MAX_NOT_AFTER:
        return f"its last height {header.not_after} is more than {MAX_NOT_AFTER} ahead of {height}"
    return None


def _turn_away(state: State, by: Standing, opened: Opened, at: Position) -> Refused:
    """No line for those who have no part, or they could fill the state (decision 9).

    What is refused of a revoked key need not be remembered: it is refused for ever.
    """
    header = opened.batch.header
    if by.client is None and not strangers.remember(state, opened.digest, header.not_after, at):
        fault = (
            f"the key is not registered. If it is, this may yet be applied, up to height {header.not_after}"
        )
        return Refused(Code.BUSY, fault, 0)
    try:
        by.require_client()
    except Refusal as refusal:
        return _refused(refusal, 0)
    raise AssertionError("only those without a part are turned away")


def _apply(step: Step, by: Standing, opened: Opened, at: Position) -> Outcome:
    if opened.operation is None:
        return publish(step, by, opened.batch)
    return _operate(step, by, opened.operation, at)


def _refused(refusal: Refusal, next_sequence: int) -> Refused:
    detail = refusal.detail
    if len(detail) > MAX_DETAIL:
        detail = detail[: MAX_DETAIL - 3] + "..."
    return Refused(refusal.code, detail, next_sequence)


def _operate(step: Step, by: Standing, operation: Operation, at: Position) -> Outcome:
    match operation:
        case RegisterClient() | AlterClient() | RevokeClient() | GrantRight() | RevokeRight():
            _administer(step, by, operation)
        case CreateTopic():
            topics.create(step, by, operation, at)
        case AlterTopic():
            topics.alter(step, by, operation)
        case DeleteTopic():
            topics.delete(step, by, operation)
        case Advertise():
            advertisements.advertise(step.state, by, operation)
        case Subscribe():
            return subscriptions.subscribe(step, by, operation, at)
        case Unsubscribe():
            subscriptions.unsubscribe(step, by, operation)
        case CommitStage():
            return staging.commit(step, by, operation, at)
    return Done()


def _administer(
    step: Step,
    by: Standing,
    operation: RegisterClient | AlterClient | RevokeClient | GrantRight | RevokeRight,
) -> None:
    registry, state = step.registry, step.state
    match operation:
        case RegisterClient():
            registry.register(state, by, operation, step.height)
        case AlterClient():
            registry.alter(state, by, operation, step.height)
        case RevokeClient():
            client = registry.revoke(state, by, operation, step.height)
            subscriptions.end_of_client(step, client.key)
            advertisements.withdraw_of_client(state, client.key)
        case GrantRight():
            registry.grant(state, by, operation, step.height)
        case RevokeRight():
            registry.revoke_right(state, by, operation, step.height)
