"""Where readers say they stand, kept in memory for a while and shown to those whom it concerns. Nothing depends on it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from parley.model.advisories import Advisory, open_advisory
from parley.model.bounded import take_off
from parley.model.genesis import Genesis
from parley.model.refusals import Expired, LimitExceeded, PermissionDenied
from parley.modules.topics.tables import TOPICS
from parley.net.messages import MAX_READERS, Advise, SignedAdvisory
from parley.node.access import Caller, require_readable
from parley.node.view import View

KEPT_MS = 120_000  # without renewal; readers renew every few seconds
MAX_SKEW_MS = 60_000  # by which a reader's clock may be off
MAX_PER_CLIENT = 32  # queries and topics of one client
MAX_KEPT = 2_048  # of all; organisations have equal shares
ADVISORY_WORK = 256 * 1024  # bytes that take as long as checking its two signatures and its topic's rule
LOOK_WORK = 256

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

    def take(self, view: View, caller: Caller, question: Advise) -> None:
        """Keep it instead of what the same query said before. Raises `Refused`."""
        now = self._now()
        advisory = open_advisory(question.advisory, question.signature, self._genesis, now)
        if (advisory.credential.key, advisory.reader) != (caller.key, caller.title):
            raise PermissionDenied("advisory")
        if (off := abs(now - advisory.time)) > MAX_SKEW_MS:
            raise Expired("advisory", off=off, limit=MAX_SKEW_MS)
        require_readable(view, caller.principal(view), advisory.topic)
        self._drop_old()
        place = (caller.key, advisory.query, advisory.topic)
        before = self._kept.get(place)
        if before is None:
            self._require_room(caller)
            self._of_client[caller.key] += 1
            self._of_organisation[caller.organisation] += 1
        elif advisory.time < before.advisory.time:
            raise Expired("advisory_replaced", query=advisory.query)
        self._kept[place] = _Kept(
            advisory, SignedAdvisory(question.advisory, question.signature), self._ticks() + KEPT_MS
        )
        self._kept.move_to_end(place)

    def shown(self, view: View | None, caller: Caller) -> tuple[SignedAdvisory, ...]:
        """What concerns the caller: its own, and an administrator's own readers and those of its own topics.

        The newest first.
        """
        self._drop_old()
        concerning = (
            kept.signed
            for kept in reversed(self._kept.values())
            if kept.advisory.credential.key == caller.key or _administers(view, caller, kept.advisory)
        )
        return tuple(islice(concerning, MAX_READERS))

    def _require_room(self, caller: Caller) -> None:
        if self._of_client[caller.key] >= MAX_PER_CLIENT:
            raise LimitExceeded(
                "advisories", client=caller.title, limit=MAX_PER_CLIENT, seconds=KEPT_MS // 1_000
            )
        if self._of_organisation[caller.organisation] >= self._share:
            raise LimitExceeded(
                "advisories_of_organisation", organisation=caller.organisation, limit=self._share
            )

    def _drop_old(self) -> None:
        """All are kept equally long, so that the first ones are the oldest."""
        ticks = self._ticks()
        while self._kept and next(iter(self._kept.values())).until <= ticks:
            (key, _, _), kept = self._kept.popitem(last=False)
            take_off(self._of_client, key)
            take_off(self._of_organisation, kept.advisory.credential.organisation)


def _administers(view: View | None, caller: Caller, advisory: Advisory) -> bool:
    """Whether the caller is an administrator of the reader's organisation, or of the topic's."""
    if caller.administers is None or advisory.credential.organisation == caller.administers:
        return caller.administers is not None
    topic = None if view is None else view.read(TOPICS, advisory.topic)
    return topic is not None and topic.organisation == caller.administers
