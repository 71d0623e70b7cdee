"""A history sorted by what it is about, so that each check reads like the property it checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from parley.chaos.history import (
    Acknowledged,
    Audited,
    Began,
    Caught,
    Chain,
    Delivered,
    Died,
    Ended,
    Failed,
    Full,
    Granted,
    Healed,
    Invoked,
    Read,
    Record,
    Resumed,
    Revoked,
    Span,
    Subscribed,
    Trouble,
    Unknown,
)
from parley.model.expressions import parse_constraint, parse_rule

Place = tuple[str, int]  # topic and partition
Group = tuple[str, str]  # topic and canonical constraint: those who share one order


class Facts:
    """What is known of publications, subscriptions, rights and brokers. The log is what the final read found."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.invoked: dict[str, Invoked] = {}
        self.acknowledged: list[Acknowledged] = []
        self.failed: dict[str, Failed] = {}
        self.unknown = 0
        self.subscriptions: dict[str, Subscribed] = {}
        self.sessions: defaultdict[str, list[Delivered | Resumed]] = defaultdict(list)
        self.reads: list[Read] = []
        self.log: defaultdict[Place, dict[int, Read]] = defaultdict(dict)
        self.rights: defaultdict[str, list[Granted | Revoked]] = defaultdict(list)
        self.healed: Healed | None = None
        self.caught: list[Caught] = []
        self.liars: set[str] = set()  # brokers that were told to lie at some time
        self.deaths: list[Died] = []
        self.chains: list[Chain] = []
        self.audits: list[Audited] = []
        self.ended = False
        for record in records:
            self._sort(record)

    def _sort(self, record: Record) -> None:  # noqa: C901, PLR0912 - one case for each kind of record
        match record:
            case Invoked():
                self.invoked[record.id] = record
            case Acknowledged():
                self.acknowledged.append(record)
            case Failed():
                self.failed[record.id] = record
            case Unknown():
                self.unknown += 1
            case Subscribed():
                self.subscriptions[record.subscription] = record
            case Delivered() | Resumed():
                self.sessions[record.subscription].append(record)
            case Read(final=False):
                self.reads.append(record)
            case Read():
                self.log[record.topic, record.partition][record.offset] = record
            case Granted() | Revoked():
                self.rights[record.client].append(record)
            case Healed():
                self.healed = record
            case Died():
                self.deaths.append(record)
            case Chain():
                self.chains.append(record)
            case Audited():
                self.audits.append(record)
            case Ended():
                self.ended = True
            case Caught():
                self.caught.append(record)
            case Span(state="lying"):
                self.liars.add(record.broker)
            case Began() | Span() | Full() | Trouble():
                pass  # told to people, not judged

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
