"""Where readers say they stand, kept in memory for a while and shown to those whom it concerns. Nothing depends on it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from parley.model.advisories import Advisory, open_advisory
from parley.model.errors import Code, Refusal
from parley.model.genesis import Genesis
from parley.model.records import TopicRecord, topic_key
from parley.net.messages import MAX_READERS, Advise, SignedAdvisory
from parley.node.access import Asker, require_reader, require_reading, require_topic
from parley.node.view import View

__all__ = ["ADVISORY_WORK", "KEPT_MS", "MAX_PER_CLIENT", "MAX_SKEW_MS", "Advisories"]

KEPT_MS = 120_000  # without renewal; readers renew every few seconds
MAX_SKEW_MS = 60_000  # by which a reader's clock may be off
MAX_PER_CLIENT = 32  # queries and topics of one client
MAX_KEPT = 2_048  # of all; organisations have equal shares
ADVISORY_WORK = 256 * 1024  # bytes that take as long as checking its two signatures and its topic's rule
LOOK_WORK = 256

T = TypeVar("T")
_Place = tuple[bytes, str, str]  # who reads, in which query, which topic


@dataclass(frozen=True, slots=True)
class _Kept:
    advisory: Advisory
    signed: SignedAdvisory
    until: int


class Advisories:
    """The newest word of each reader. `now` is the time of day, `ticks` a clock that nobody sets; both in ms."""

    def __init__(self, genesis: Genesis, now: Callable[[], int], ticks: Callable[[], int]) -> None:
        self._genesis = genesis
        self._now = now
        self._ticks = ticks
        self._share = -(-MAX_KEPT // len(genesis.organisations))
        self._kept: OrderedDict[_Place, _Kept] = OrderedDict()  # first to be dropped first
        self._of_client: Counter[bytes] = Counter()
        self._of_organisation: Counter[str] = Counter()

    @property
    def look_work(self) -> int:
        """What `shown` takes, in bytes of what its client may use."""
        return LOOK_WORK * len(self._kept)

    def take(self, view: View, asker: Asker, question: Advise) -> None:
        """Keep it instead of what the same query said before. Raises `Refusal`."""
        now = self._now()
        advisory = open_advisory(question.advisory, question.signature, self._genesis, now)
        if (advisory.credential.key, advisory.reader) != (asker.key, asker.title):
            raise Refusal(Code.PERMISSION_DENIED, "an advisory is taken from the reader that signed it only")
        if abs(now - advisory.time) > MAX_SKEW_MS:
            raise Refusal(
                Code.EXPIRED,
                f"the advisory is {abs(now - advisory.time)} ms off this broker's clock, and {MAX_SKEW_MS} ms are allowed; "
                "if it is not an old one, set the reader's clock right",
            )
        require_reading(require_topic(view, advisory.topic), require_reader(view, asker))
        self._drop_old()
        place = (asker.key, advisory.query, advisory.topic)
        before = self._kept.get(place)
        if before is None:
            self._require_room(asker)
            self._of_client[asker.key] += 1
            self._of_organisation[asker.organisation] += 1
        elif advisory.time < before.advisory.time:
            raise Refusal(Code.EXPIRED, f"query {advisory.query} has said something newer since")
        signed = SignedAdvisory(question.advisory, question.signature)
        self._kept[place] = _Kept(advisory, signed, self._ticks() + KEPT_MS)
        self._kept.move_to_end(place)

    def shown(self, view: View | None, asker: Asker) -> tuple[SignedAdvisory, ...]:
        """What concerns the asker: its own, and an administrator's own readers and those of its own topics."""
        self._drop_old()
        return tuple(islice(self._concerning(view, asker), MAX_READERS))

    def _concerning(self, view: View | None, asker: Asker) -> Iterator[SignedAdvisory]:
        """The newest first."""
        for kept in reversed(self._kept.values()):
            if kept.advisory.credential.key == asker.key or _administers(view, asker, kept.advisory):
                yield kept.signed

    def _require_room(self, asker: Asker) -> None:
        if self._of_client[asker.key] >= MAX_PER_CLIENT:
            raise Refusal(
                Code.LIMIT_EXCEEDED,
                f"{asker.title} has the {MAX_PER_CLIENT} advisories that it may have; they are dropped after "
                f"{KEPT_MS // 1_000} s without renewal",
            )
        if self._of_organisation[asker.organisation] >= self._share:
            raise Refusal(
                Code.LIMIT_EXCEEDED,
                f"{asker.organisation} has the {self._share} advisories that are its share",
            )

    def _drop_old(self) -> None:
        """All are kept equally long, so that the first ones are the oldest."""
        ticks = self._ticks()
        while self._kept and next(iter(self._kept.values())).until <= ticks:
            (key, _, _), kept = self._kept.popitem(last=False)
            organisation = kept.advisory.credential.organisation
            _take_off(self._of_client, key)
            _take_off(self._of_organisation, organisation)


def _administers(view: View | None, asker: Asker, advisory: Advisory) -> bool:
    if not asker.admin or advisory.credential.organisation == asker.organisation:
        return asker.admin
    topic = None if view is None else view.get(TopicRecord, topic_key(advisory.topic))
    return topic is not None and topic.organisation == asker.organisation


def _take_off(counter: Counter[T], who: T) -> None:
    counter[who] -= 1
    if not counter[who]:
        del counter[who]
