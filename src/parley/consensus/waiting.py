"""When a member gives up on a view: its timer, what the wait is for, and whether the leader can be reached (P29).

With work pending (a batch to propose, or a block that is not covered yet) the wait is short and runs from the work's
arrival. If a batch is all there is, the leader gets it, and as much time again: a liar may have kept it from the leader.
"""

from __future__ import annotations

from parley.consensus.events import (
    Connection,
    Effect,
    OfferWork,
    PayloadAvailable,
    RequestWork,
    SetTimer,
    ViewTimer,
    WorkPending,
)
from parley.consensus.forest import Forest
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.pacemaker import Pacemaker
from parley.consensus.safety import SafetyRules
from parley.consensus.view_times import ViewTimes, Waits


class Waiting:
    """The view timer of a member. It reads the chain and the view and changes neither; the machine decides to give up."""

    def __init__(
        self,
        waits: Waits,
        index: int,
        *,
        leaders: LeaderScheme,
        forest: Forest,
        pacemaker: Pacemaker,
        safety: SafetyRules,
    ) -> None:
        self._times = ViewTimes(waits)
        self._index = index
        self._leaders = leaders
        self._forest = forest
        self._pacemaker = pacemaker
        self._safety = safety
        self._unreachable: set[int] = set()  # members to which there is no connection
        self._has_work = False
        self._may_offer = False  # whether the leader may lack the only thing that there is to propose
        self._since = 0  # when this view began, or there was something to do in it
        self._deadline = 0
        self._attempt = 0
        self._repeats = 0  # of the timeout of this view

    @property
    def has_given_up(self) -> bool:
        return self._safety.state.highest_timeout_view >= self._pacemaker.view

    def can_reach(self, member: int) -> bool:
        return member not in self._unreachable

    def leader(self) -> int | None:
        """Who leads this view; None: that depends on a certified block that is not here yet."""
        view, entered_by, newest = (
            self._pacemaker.view,
            self._pacemaker.entered_by,
            self._pacemaker.high_qc.block,
        )
        if self._forest.get(newest) is not None:
            return self._leaders.leader(view, entered_by, self._forest.ancestry(newest))
        if entered_by is EnteredBy.QC and self._leaders.memory:
            return None
        return self._leaders.leader(view, entered_by, ())

    # -- the view changes -----------------------------------------------------------------------------------------------

    def enter_view(self, now: int) -> list[Effect]:
        newest = self._forest.get(self._pacemaker.high_qc.block)
        self._has_work = newest is not None and newest.is_uncovered
        self._since, self._may_offer, self._repeats = now, False, 0
        return [self._set(self._patience(), now), *self._look_for_work()]

    def certified(self, now: int) -> None:
        """The view that this member is in has got its certificate."""
        self._times.certified(now - self._since, has_work=self._has_work)

    def failed(self, leader: int | None) -> None:
        """It has ended without one. If the leader could not be reached, longer waits would not have helped."""
        if leader is None or self.can_reach(leader):
            self._times.failed()

    # -- something happens in it ----------------------------------------------------------------------------------------

    def on_news(self, event: PayloadAvailable | WorkPending | Connection, now: int) -> list[Effect]:
        match event:
            case PayloadAvailable():
                return self._look_for_work()
            case WorkPending():
                return self._on_work(now, offer=True) if event.view == self._pacemaker.view else []
            case Connection(up=True):
                self._unreachable.discard(event.member)
                return []
            case _:
                self._unreachable.add(event.member)
                return self._shorten(now)

    def proposed(self, now: int) -> list[Effect]:
        """The leader has proposed a block with batches, which is to be certified."""
        return self._on_work(now, offer=False)

    def _look_for_work(self) -> list[Effect]:
        """Ask, unless it is known, whether there is a batch to propose."""
        return (
            []
            if self._has_work
            else [RequestWork(self._pacemaker.view, self._forest.ordered(self._pacemaker.high_qc.block))]
        )

    def _on_work(self, now: int, *, offer: bool) -> list[Effect]:
        if self._has_work:
            return []
        self._has_work, self._since = True, now
        effects = self._shorten(now)
        self._may_offer = offer and bool(effects)
        return effects

    def _shorten(self, now: int) -> list[Effect]:
        """Wait no longer than is usual from now on."""
        wait = self._patience()
        return [self._set(wait, now)] if now + wait < self._deadline and not self.has_given_up else []

    # -- the timer ------------------------------------------------------------------------------------------------------

    def is_over(self, timer: ViewTimer) -> bool:
        """Whether this is the newest timer of this view: older ones no longer count."""
        return timer == ViewTimer(self._pacemaker.view, self._attempt)

    def wait_once_more(self, now: int) -> list[Effect]:
        """Offer the leader the only batch that there is to propose, and wait again; empty: it is time to give up."""
        if not self._may_offer or self.has_given_up:
            return []
        self._may_offer = False
        leader = self.leader()
        offers: list[Effect] = (
            []
            if leader in (None, self._index)
            else [OfferWork(leader, self._forest.ordered(self._pacemaker.high_qc.block))]
        )
        return [self._set(self._patience(), now), *offers]

    def gave_up(self, now: int) -> Effect:
        """After how long to say it again."""
        self._repeats += 1
        return self._set(self._times.repeat(self._repeats - 1), now)

    def _patience(self) -> int:
        leader = self.leader()
        reachable = leader is None or self.can_reach(leader)
        return self._times.duration(has_work=self._has_work, reachable=reachable)

    def _set(self, delay: int, now: int) -> Effect:
        self._attempt += 1
        self._deadline = now + delay
        return SetTimer(ViewTimer(self._pacemaker.view, self._attempt), delay)
