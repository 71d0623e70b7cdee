"""Plays a Twins scenario on real consensus machines and judges it: safety throughout, liveness after synchrony."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from parley.consensus import events
from parley.consensus.events import Message
from parley.consensus.leader.protocol import EnteredBy
from parley.consensus.record import SafetyState
from parley.consensus.types import QC, Block, Header, Proposal, Timeout, Vote
from parley.sim.ensemble import Ensemble, Seat, Settings, view_of
from parley.sim.twins.scenario import Scenario, name

LATENCY = 10  # and up to 4 more, by link: what twins propose arrives in different orders
VIEW_TIMEOUT = 1_000
FAILED_VIEW = VIEW_TIMEOUT + 10 * LATENCY  # how long a view takes that comes to nothing
LEAP = 1_000


class Verdict(StrEnum):
    HOLDS = "holds"
    SAFETY = "safety"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario. `recovery`: views from synchrony until everybody had committed something new."""

    verdict: Verdict
    detail: str = ""
    recovery: int = 0
    trace: tuple[str, ...] = ()


def recovery_views(nodes: int, depth: int) -> int:
    """How many views after synchrony may pass until all have committed a block of after it.

    Within two rounds of leaders there are enough in a row that are not twins, wherever the first round begins; the
    block that the last of them makes certain is seen to be final `depth` views later.
    """
    return 2 * nodes + depth


def execute(scenario: Scenario, *, trace: bool = False) -> Outcome:
    """Play and judge one scenario; always the same for the same scenario."""
    return _Play(scenario, trace=trace).outcome()


class _Scripted:
    """Leaders as the script says, then in turn."""

    memory = 0

    def __init__(self, scenario: Scenario) -> None:
        self._script = tuple(view.leader for view in scenario.views)
        self._size = scenario.nodes

    def leader(self, view: int, entered_by: EnteredBy, ancestry: Iterable[Header]) -> int:
        del entered_by, ancestry
        return self._script[view - 1] if view <= len(self._script) else view % self._size


class _Play:
    """One run. It is the network between the seats, and sees everything they do."""

    def __init__(self, scenario: Scenario, *, trace: bool) -> None:
        self._scenario = scenario
        self._views = scenario.views
        self._synchrony = False
        self._signed: dict[tuple[int, str, int], object] = {}
        self._certified: dict[int, bytes] = {}
        self._restarts = [set(view.restart) for view in scenario.views]
        self._failing: list[Seat] = []
        self._final: dict[int, tuple[Seat, bytes]] = {}
        self._breach = ""
        self._trace: list[str] | None = [] if trace else None
        self._labels: dict[bytes, str] = {}
        settings = Settings(scenario.nodes, scenario.depth, view_timeout=VIEW_TIMEOUT)
        self._ensemble = Ensemble(
            settings, scenario.members, _Scripted(scenario), self, watch=self._see, alter=self._alter
        )
        self._honest = [self._ensemble.seats[seat] for seat in scenario.honest]

    def outcome(self) -> Outcome:
        ensemble = self._ensemble
        for seat in ensemble.seats:
            if seat.member not in self._scenario.crashed:
                ensemble.start(seat)
        script = len(self._views)
        self._run(FAILED_VIEW * script, lambda: all(seat.view > script for seat in self._honest))
        if not self._breach:
            self._note("-- all links work from here on")
        self._synchrony = True
        begin = max(seat.view for seat in ensemble.seats)
        allowed = recovery_views(self._scenario.nodes, self._scenario.depth)
        moved = self._run(
            ensemble.now + FAILED_VIEW * 2 * allowed,
            lambda: all(seat.chain[-1].view > begin for seat in self._honest),
        )
        recovery = max(seat.view for seat in self._honest) - begin
        # Copies follow the rules too, so whatever certificates made final for one of them must be final for all.
        for seat in ensemble.seats:
            self._check_commits(seat, seat.chain)
            if seat.stopped:
                self._report(f"{self._name(seat)} stopped: {seat.stopped}")
        trace = tuple(self._trace or ())
        if self._breach:
            return Outcome(Verdict.SAFETY, self._breach, recovery, trace)
        if not moved or recovery > allowed:
            behind = [self._name(seat) for seat in self._honest if seat.chain[-1].view <= begin]
            detail = f"{recovery} views after synchrony {', '.join(behind) or 'nobody'} still had committed nothing new"
            return Outcome(Verdict.LIVENESS, detail, recovery, trace)
        return Outcome(Verdict.HOLDS, "", recovery, trace)

    def _run(self, until: int, done: Callable[[], bool]) -> bool:
        """As the ensemble's, with power failures between two steps; over at once if something is broken."""
        ensemble = self._ensemble
        while True:
            held = ensemble.run(until, lambda: bool(self._failing) or bool(self._breach) or done())
            for seat in self._failing:
                self._note(f"{self._name(seat)} loses power and restarts")
                ensemble.start(seat)  # from what is on disk: nothing else remains
            if not self._failing:
                return held
            self._failing = []

    # -- the network ------------------------------------------------------------------------------------------------

    def delay(self, sender: Seat, receiver: Seat, message: Message) -> int | None:
        view = view_of(message)
        if not self._synchrony and 0 < view <= len(self._views):
            script = self._views[view - 1]
            groups = script.timeout if isinstance(message, Timeout) else script.propose
            if groups[sender.number] != groups[receiver.number]:
                return FAILED_VIEW if script.late and not isinstance(message, Timeout) else None
        return LATENCY + (7 * sender.number + 3 * receiver.number) % 5

    def fetch_delay(self, receiver: Seat, donor: Seat) -> int | None:
        if donor.machine is None:
            return None
        if not self._synchrony and 0 < receiver.view <= len(self._views):
            groups = self._views[receiver.view - 1].propose
            if groups[donor.number] != groups[receiver.number]:
                return None
        return 2 * LATENCY

    def _alter(self, seat: Seat, message: Message) -> Message:
        """A leader that leaps asks everybody to vote far in the future (T7)."""
        if not isinstance(message, Proposal) or message.header.view > len(self._views):
            return message
        if not self._views[message.header.view - 1].leap:
            return message
        self._note(f"{self._name(seat)} proposes for view {message.header.view + LEAP} instead")
        return self._ensemble.sign(replace(message.header, view=message.header.view + LEAP), message.batches)

    # -- the judge --------------------------------------------------------------------------------------------------

    def _see(self, seat: Seat, effect: events.Effect) -> None:
        if self._trace is not None:
            self._describe(seat, effect)
        match effect:
            case events.PersistSafety(state):
                self._check_record(seat, state)
            case events.Send(_, Vote() as vote) if vote.signer == seat.member:  # others are passed on
                self._sign(seat, "vote", vote.view, vote.block)
            case events.Broadcast(Timeout() as timeout):
                self._sign(seat, "timeout", timeout.view, timeout.high_qc.view)
                self._check_certificate(timeout.high_qc)
            case events.Commit(blocks) if seat.number in self._scenario.honest:
                self._check_commits(seat, blocks)
            case events.Broadcast(Proposal(header, _, signature)):
                self._sign(seat, "proposal", header.view, signature)
                self._check_certificate(header.justify)
            case _:
                pass

    def _check_record(self, seat: Seat, state: SafetyState) -> None:
        """What was signed and not sent: the votes that a member collects itself."""
        if (vote := state.last_vote) is not None:
            self._sign(seat, "vote", vote.view, vote.block)
        if (timeout := state.last_timeout) is not None:
            self._sign(seat, "timeout", timeout.view, timeout.high_qc.view)
        if (proposal := state.last_proposal) is not None:
            self._sign(seat, "proposal", proposal.header.view, proposal.signature)

    def _sign(self, seat: Seat, kind: str, view: int, what: object) -> None:
        key = (seat.number, kind, view)
        before = self._signed.get(key)
        if before is None:
            self._signed[key] = what
            if isinstance(what, bytes) and kind == "vote":
                self._note(f"{self._name(seat)} votes for {self._label(what)}")
            if view <= len(self._views) and seat.number in (waiting := self._restarts[view - 1]):
                waiting.discard(seat.number)
                self._failing.append(seat)
        elif before != what and seat in self._honest:
            self._note(f"{self._name(seat)} signs another {kind} in view {view}")
            self._report(f"{self._name(seat)} signed two {kind}s in view {view}")

    def _check_certificate(self, qc: QC) -> None:
        if self._certified.setdefault(qc.view, qc.block) != qc.block:
            blocks = " and ".join(map(self._label, (self._certified[qc.view], qc.block)))
            self._report(f"two blocks of view {qc.view} are certified: {blocks}")

    def _check_commits(self, seat: Seat, blocks: Iterable[Block]) -> None:
        for block in blocks:
            first, id_ = self._final.setdefault(block.height, (seat, block.id))
            if id_ != block.id:
                self._report(
                    f"{self._name(first)} committed {self._label(id_)} and {self._name(seat)} committed "
                    f"{self._label(block.id)} at height {block.height}"
                )

    def _report(self, breach: str) -> None:
        """The first breach ends the play: what follows proves nothing more."""
        if not self._breach:
            self._note(f"!! {breach}")
        self._breach = self._breach or breach

    # -- words ------------------------------------------------------------------------------------------------------

    def _name(self, seat: Seat) -> str:
        return name(seat.number, self._scenario.nodes)

    def _label(self, block: bytes) -> str:
        return self._labels.get(block, "genesis" if self._labels else block.hex()[:8])

    def _note(self, line: str) -> None:
        if self._trace is not None:
            self._trace.append(line)

    def _describe(self, seat: Seat, effect: events.Effect) -> None:
        who = self._name(seat)
        match effect:
            case events.StoreBlock(block):  # its proposer stores it first
                self._labels.setdefault(block.id, f"{block.view}{who}")
            case events.Broadcast(Proposal(header)):
                tc = (
                    ""
                    if header.tc is None
                    else f", TC {header.tc.view} with QCs up to {header.tc.highest_qc_view}"
                )
                parent = self._label(header.parent)
                self._note(f"{who} proposes {header.view}{who} on {parent}{tc}")
            case events.Broadcast(Timeout(view=view, high_qc=qc)):
                self._note(f"{who} gives up on view {view}, highest QC {qc.view}")
            case events.Commit(blocks):
                self._note(f"{who} commits {', '.join(self._label(block.id) for block in blocks)}")
            case _:
                pass
