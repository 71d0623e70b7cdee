"""A block that is certified at one member only, and that member is cut off before it can tell anybody.

Everybody else voted for the block and must keep it, although view after view fails and nobody knows of the certificate.
"""

from __future__ import annotations

from enum import Enum, auto

from msgspec.structs import replace
from tests.replica.driver import Cluster, Committee, Member, Outbox

from parley.consensus.committee import quorum
from parley.consensus.machine import Machine
from parley.consensus.types import Proposal, Timeout, Vote
from parley.replica import wire

PROPOSER, HOLDER = 0, 1  # the holder leads the view after the proposer's, so it collects the votes


class Phase(Enum):
    CALM = auto()
    CERTIFYING = auto()  # the holder hears votes and nothing else, and is not heard
    CUT_OFF = auto()  # without the holder; the liar keeps its votes to itself and forms no QC
    NO_PROPOSALS = auto()  # all hear each other, but proposals are lost


class Net(Outbox):
    """What each phase lets through."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.phase = Phase.CALM
        self.liar = size - 1
        self.others = [member for member in range(size) if member not in (HOLDER, self.liar)]
        self._quorum = quorum(size)

    def send(self, sender: int, to: int, data: bytes) -> None:
        message = wire.decode(data)
        if self.phase is Phase.CUT_OFF and isinstance(message, Timeout) and self.liar in (sender, to):
            data = wire.encode(replace(message, vote=None))
        if self._passes(sender, to, message):
            super().send(sender, to, data)

    def _passes(self, sender: int, to: int, message: wire.WireMessage) -> bool:
        match self.phase:
            case Phase.CALM:
                return True
            case Phase.CERTIFYING:
                return self._certifying(sender, to, message)
            case Phase.CUT_OFF:
                return self._cut_off(sender, to, message)
            case Phase.NO_PROPOSALS:
                return not isinstance(message, Proposal)

    def _certifying(self, sender: int, to: int, message: wire.WireMessage) -> bool:
        if HOLDER in (sender, to):
            return to == HOLDER and isinstance(message, Vote)
        voters = [*self.others[: self._quorum - 1], self.liar]  # no more than are needed
        return to in voters or not isinstance(message, Proposal)

    def _cut_off(self, sender: int, to: int, message: wire.WireMessage) -> bool:
        if HOLDER in (sender, to) or (isinstance(message, Vote) and self.liar in (sender, to)):
            return False
        return not (isinstance(message, Proposal) and to == self._left_out(sender, message.header.view))

    def _left_out(self, sender: int, view: int) -> int | None:
        """One member, by turns, if the others would be a quorum without holder and liar."""
        if len(self.others) < self._quorum:
            return None
        candidates = [member for member in self.others if member != sender]
        return candidates[view % len(candidates)]


class CutOff:
    """A committee whose second member alone has the certificate of `block`, and is cut off; the last one is the liar."""

    def __init__(self, size: int = 4) -> None:
        self.cluster = Cluster(Committee(size))
        self.net = self.cluster.outbox = Net(size)
        self.others = self.net.others
        self.correct = [HOLDER, *self.others]
        self.cluster.start()
        self.cluster.run_until(lambda: min(self.cluster.heights()) >= 2)
        self.cluster.run_until(self._proposer_leads)
        self.view = self.view_of(PROPOSER)
        self.net.phase = Phase.CERTIFYING
        self.cluster.run_until(lambda: self.machine(HOLDER).high_qc.view == self.view)
        self.block = self.machine(HOLDER).high_qc.block
        assert not self.machine(HOLDER).known(self.block)
        assert all(self.machine(member).high_qc.view < self.view for member in self.others)
        self.voters = [member for member in self.others if self.machine(member).known(self.block)]
        assert len(self.voters) == quorum(size) - 1
        self.cluster.outbox.messages = [
            entry for entry in self.cluster.outbox.messages if HOLDER not in entry[:2]
        ]
        self.net.phase = Phase.CUT_OFF

    def fail(self, views: int) -> None:
        """So many views pass without a certificate."""
        goal = self.view_of(PROPOSER) + views
        self.cluster.run_until(lambda: self.view_of(PROPOSER) >= goal, rounds=400 * views)
        assert all(self.machine(member).high_qc.view < self.view for member in self.others)

    def spread_certificate(self) -> None:
        """All but the liar, which is silent from now on, learn of the certificate and stand in one view."""
        self.cluster.absent = {self.net.liar}
        self.net.phase = Phase.NO_PROPOSALS
        self.cluster.run_until(self._all_know)

    def heal(self) -> None:
        """The liar is silent from now on, the others hear each other."""
        self.cluster.absent = {self.net.liar}
        self.net.phase = Phase.CALM

    def lose_power(self, *back: int) -> None:
        """All stop at once and with them everything that was under way; those named start again."""
        outbox = self.cluster.outbox
        outbox.timers.clear()
        outbox.messages.clear()
        self.cluster.absent = set(range(self.cluster.committee.size)) - set(back)
        for member in back:
            self.member(member).boot()
        self.cluster.start(*back)

    def on_disk(self, block: bytes) -> list[int]:
        """The correct members that have stored this uncommitted block."""
        return [member for member in self.correct if b"u/" + block in self.member(member).store.entries]

    def member(self, index: int) -> Member:
        return self.cluster.members[index]

    def machine(self, index: int) -> Machine:
        return self.member(index).replica._machine

    def view_of(self, index: int) -> int:
        return self.member(index).replica.view

    def _proposer_leads(self) -> bool:
        views = [member.replica.view for member in self.cluster.members]
        return views[PROPOSER] % len(views) == PROPOSER and views[PROPOSER] == max(views)

    def _all_know(self) -> bool:
        known = all(self.machine(member).high_qc.block == self.block for member in self.correct)
        return known and len({self.view_of(member) for member in self.correct}) == 1
