"""A history sorted by what it is about, so that each check reads like the property it checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from parley.chaos.history import (
    Acknowledged,
    Attacked,
    Audited,
    Began,
    Caught,
    Chain,
    Delivered,
    Died,
    Ended,
    Failed,
    Granted,
    Healed,
    Invoked,
    Measured,
    Read,
    Record,
    Resumed,
    Revoked,
    Span,
    Subscribed,
    Unknown,
    Waited,
)
from parley.model.expressions import parse_constraint, parse_rule

T = TypeVar("T")

Place = tuple[str, int]  # topic and partition
Group = tuple[str, str]  # topic and canonical constraint: those who share one order


class Facts:
    """What is known of publications, subscriptions, rights and brokers. The log is what the final read found."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.sessions: defaultdict[str, list[Delivered | Resumed]] = defaultdict(list)
        self.log: defaultdict[Place, dict[int, Read]] = defaultdict(dict)
        self.rights: defaultdict[str, list[Granted | Revoked]] = defaultdict(list)
        kinds: defaultdict[type, list[Record]] = defaultdict(list)
        for record in records:
            kinds[type(record)].append(record)
            match record:
                case Delivered() | Resumed():
                    self.sessions[record.subscription].append(record)
                case Read(final=True):
                    self.log[record.topic, record.partition][record.offset] = record
                case Granted() | Revoked():
                    self.rights[record.client].append(record)
                case _:
                    pass

        def all_of(kind: type[T]) -> list[T]:
            return [record for record in kinds[kind] if isinstance(record, kind)]

        self.invoked = {one.id: one for one in all_of(Invoked)}
        self.acknowledged = all_of(Acknowledged)
        self.failed = {one.id: one for one in all_of(Failed)}
        self.unknown = len(all_of(Unknown))
        self.subscriptions = {one.subscription: one for one in all_of(Subscribed)}
        self.reads = [one for one in all_of(Read) if not one.final]
        self.healed = next(reversed(all_of(Healed)), None)
        self.caught = all_of(Caught)
        # Brokers that were told to lie at some time.
        self.liars = {span.broker for span in all_of(Span) if span.state == "lying"}
        self.deaths = all_of(Died)
        self.chains = all_of(Chain)
        self.audits = all_of(Audited)
        self.ended = bool(all_of(Ended))
        self.began = next(iter(all_of(Began)), None)
        self.waited = all_of(Waited)
        self.attacks = sorted(all_of(Attacked), key=lambda one: one.at)
        self.measured = all_of(Measured)

    # -- deliveries --------------------------------------------------------------------------------------------------

    def delivered(self, subscription: str) -> list[Delivered]:
        return [record for record in self.sessions[subscription] if isinstance(record, Delivered)]

    def deliveries(self) -> Iterator[tuple[Subscribed, Delivered]]:
        for name, subscribed in self.subscriptions.items():
            for delivery in self.delivered(name):
                yield subscribed, delivery

    def groups(self) -> dict[Group, list[Subscribed]]:
        """Who shares an order, that is, subscribed to one topic with one constraint."""
        found: defaultdict[Group, list[Subscribed]] = defaultdict(list)
        for one in self.subscriptions.values():
            found[one.topic, parse_constraint(one.where).text].append(one)
        return found

    def is_entitled(self, one: Subscribed) -> bool:
        """Whether this subscriber had a right to all of it to the end: it was not revoked after it had subscribed."""
        return not any(
            isinstance(each, Revoked) and each.at >= one.at for each in self.rights[one.subscriber]
        )

    def matching(self, one: Subscribed) -> Iterator[Read]:
        """All of the log that the subscription asked for."""
        constraint = parse_constraint(one.where)
        for (topic, _), entries in self.log.items():
            if topic != one.topic:
                continue
            for entry in entries.values():
                publication = self.invoked.get(entry.id)
                if publication is not None and constraint.matches(publication.tags):
                    yield entry

    def may_read(self, one: Subscribed, entry: Read) -> bool:
        publication = self.invoked.get(entry.id)
        if publication is None or not publication.rule:
            return True
        organisation, _, client = one.subscriber.partition("/")
        attributes = {**one.attributes, "org": organisation, "client": client}
        return parse_rule(publication.rule).allows(attributes)

    # -- rights ------------------------------------------------------------------------------------------------------

    def is_barred(self, client: str, height: int) -> bool:
        """Whether the client was certainly revoked in every state between the blocks around this height."""
        last: Granted | Revoked | None = None
        for record in sorted(self.rights[client], key=lambda one: one.height):
            if record.height < height or (record.height == height and isinstance(record, Granted)):
                last = record
        return isinstance(last, Revoked)

    def might_be_barred(self, publication: Invoked) -> bool:
        """Whether a revocation excuses that a publication was not acknowledged."""
        records = self.rights[publication.publisher]
        before = [record for record in records if record.at <= publication.at]
        after = [record for record in records if record.at > publication.at]
        return any(isinstance(record, Revoked) for record in [*before[-1:], *after])

    # -- after the healing -------------------------------------------------------------------------------------------

    def late(self) -> list[Invoked]:
        """The publications that were submitted when everything was well again."""
        if self.healed is None:
            return []
        return [one for one in self.invoked.values() if one.at >= self.healed.at]
