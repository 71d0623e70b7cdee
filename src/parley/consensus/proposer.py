"""When a leader proposes and what: at once if there is something to order or to certify, else after a heartbeat (P2).

Under load every block costs the same whatever it holds, so blocks with batches that follow each other keep a pace: the
fuller a block was, the longer the next one is left to fill. After a pause, and to certify what was ordered, nobody waits.
"""

from __future__ import annotations

from parley.consensus.events import (
    Broadcast,
    Effect,
    Heartbeat,
    PaceOver,
    Payload,
    RequestPayload,
    SetTimer,
    bare,
)
from parley.consensus.forest import Forest, Node
from parley.consensus.leader.protocol import EnteredBy, LeaderScheme
from parley.consensus.pacemaker import Pacemaker
from parley.consensus.results import Results
from parley.consensus.types import Block, Certificates, Governance, Header, Instance, Roots
from parley.crypto import merkle

BUSY = 24  # batches in a block after which the next one is left to fill for the whole pace


class Proposer:
    """Reads the chain and the view; changes neither. Signing is the safety rules' business."""

    def __init__(
        self,
        instance: Instance,
        index: int,
        heartbeat: int,
        pace: int,
        *,
        leaders: LeaderScheme,
        forest: Forest,
        pacemaker: Pacemaker,
        results: Results,
    ) -> None:
        self._instance = instance
        self._index = index
        self._heartbeat = heartbeat
        self._pace = pace
        self._leaders = leaders
        self._forest = forest
        self._pacemaker = pacemaker
        self._results = results
        self._asked = False  # for a payload in this view
        self._waiting = False  # for something to propose
        self._due = False  # the heartbeat or the pace is over

    def enter_view(self) -> None:
        self._asked = self._waiting = self._due = False

    def ask(self) -> list[Effect]:
        """Ask for a payload, once, when everything else that a proposal needs is here."""
        if self._asked or self._ground() is None:
            return []
        self._asked = True
        in_chain = self._forest.ordered(self._pacemaker.high_qc.block)
        return [RequestPayload(self._pacemaker.view, in_chain)]

    def payload_available(self) -> list[Effect]:
        return self._ask_again() if self._waiting else []

    def heartbeat_over(self, timer: Heartbeat) -> list[Effect]:
        if not self._waiting or timer.view != self._pacemaker.view:
            return []
        self._due = True
        return self._ask_again()

    def pace_over(self, timer: PaceOver) -> list[Effect]:
        if self._due or timer.view != self._pacemaker.view:
            return []
        self._due = True
        return self._ask_again()

    def on_payload(self, payload: Payload, now: int) -> Block | list[Effect]:
        """The block to propose, or what to do while there is nothing to propose."""
        ground = self._ground()
        if payload.view != self._pacemaker.view or ground is None:
            self._asked = False  # ask again when it may propose
            return []
        parent, roots = ground
        if payload.batches and not self._due and (early := self._early(parent, now)):
            self._waiting = False
            return [SetTimer(PaceOver(payload.view), early), *self._news()]
        if payload.batches or parent.is_uncovered or self._due:
            self._waiting = False
            return Block(self._header(parent, roots, payload.batches, now), payload.batches)
        if self._waiting:
            return []
        self._waiting = True
        return [SetTimer(Heartbeat(payload.view), self._heartbeat), *self._news()]

    def _news(self) -> list[Effect]:
        """What the others may go on from while this member waits: the QC of the view before, which few may know yet (P2)."""
        pacemaker = self._pacemaker
        is_new = pacemaker.entered_by is EnteredBy.QC
        return [Broadcast(Certificates(pacemaker.high_qc.qc, None))] if is_new else []

    def _early(self, parent: Node, now: int) -> int:
        """How long to wait: in proportion to what the parent holds, as long as it is young by the clocks of both proposers."""
        block = parent.block
        pace = self._pace * min(len(block.batches), BUSY) // BUSY
        return min(max(block.header.time + pace - now, 0), pace)

    def _ask_again(self) -> list[Effect]:
        self._asked = False  # `ask` sees whether it still may: a higher QC may have come while it waited
        return self.ask()

    def _ground(self) -> tuple[Node, Roots] | None:
        """The parent of this member's proposal and the results to name in it, if it may propose now."""
        high_qc = self._pacemaker.high_qc
        parent = self._forest.get(high_qc.block)
        if parent is None or self._results.diverged:
            return None
        ancestry = self._forest.ancestry(high_qc.block)
        if self._leaders.leader(self._pacemaker.view, self._pacemaker.entered_by, ancestry) != self._index:
            return None
        roots = self._results.at(parent.child_executes)
        return None if roots is None else (parent, roots)

    def _header(self, parent: Node, roots: Roots, batches: tuple[bytes, ...], now: int) -> Header:
        instance, pacemaker = self._instance, self._pacemaker
        tc = pacemaker.high_tc if pacemaker.entered_by is EnteredBy.TC else None
        return Header(
            version=instance.version,
            chain=instance.chain,
            shard=instance.shard,
            epoch=instance.epoch,
            height=parent.block.height + 1,
            view=pacemaker.view,
            parent=parent.block.id,
            proposer=self._index,
            time=max(now, parent.block.header.time + 1),
            governance=Governance(0, instance.chain),
            batches_root=merkle.root(batches),
            executed_height=parent.child_executes,
            state_root=roots.state,
            history_root=roots.history,
            justify=pacemaker.high_qc.qc,
            tc=bare(tc),
        )
