"""The way back of a broker that lost its safety record: it signs nothing until it cannot contradict itself (P10). Sans-IO.

Let v be the highest view in which the forgotten life signed a vote, a timeout or a proposal. To sign there it had a
certificate of view v-1, hence q members signed in v-1, and each of them had a certificate of view v-2 or higher on disk
before it did (every signature goes with a record that holds the newest certificates). q others answer now, after the loss.
Two quorums share f+1 members, so one of the answering members is honest and signed in v-1. Its record shows a view of at
least v-2, for certificates in a record are only ever replaced by newer ones: M >= v-2. A QC of a view above M+2 is thus
newer than all that was signed, and than the lock, which was lower still. (For v <= 2 there is nothing to show: M >= 0. An
answering member that came back like this itself shows the QC with which it did, newer than all that it had signed.)

A member that has lost its own record does not answer. It may be one of those who signed in v-1, and its new record does
not say so: the honest member on whom the proof rests would be a witness who has forgotten everything.
"""

from __future__ import annotations

from parley.consensus.committee import quorum
from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Broadcast, SetTimer
from parley.consensus.verify import Verifier
from parley.sync.messages import RecoveryAnswer, RecoveryRequest
from parley.sync.timers import RecoveryTimer

ASK_MS = 1_000  # between two questions to all
MARGIN = 2  # views that the forgotten life can have been ahead of the answers

Effect = Broadcast | SetTimer[RecoveryTimer]


class Recovery:
    """Collects the highest certificates of q other brokers; `nonce` is this life's own."""

    def __init__(self, size: int, verifier: Verifier, nonce: bytes) -> None:
        self._needed = quorum(size)
        self._verifier = verifier
        self._nonce = nonce
        self._attempt = 0
        self._views: dict[int, int] = {}  # by member: one voice each

    @staticmethod
    def is_possible(size: int) -> bool:
        """Whether a member of so small a committee can ever come back: it needs the answers of q others."""
        return quorum(size) < size

    def start(self) -> list[Effect]:
        self._attempt += 1
        return [
            Broadcast(RecoveryRequest(self._nonce)),
            SetTimer(RecoveryTimer(self._attempt), ASK_MS),
        ]

    def on_timer(self, timer: RecoveryTimer) -> list[Effect]:
        return [] if self._complete or timer.attempt != self._attempt else self.start()

    def receive(self, sender: int, answer: RecoveryAnswer) -> None:
        """Certificates are checked, so a liar can hide what it knows but not claim what nobody signed."""
        if answer.nonce != self._nonce:
            raise Refused(Reason.UNSOLICITED, f"certificates for another life, from member {sender}")
        if self._complete:  # or a liar could put off the end for ever, by showing each new certificate
            return
        view = self._verifier.qc(answer.high_qc).view
        if answer.high_tc is not None:
            view = max(view, self._verifier.tc(answer.high_tc).view)
        self._views[sender] = max(view, self._views.get(sender, 0))

    def is_safe(self, view: int) -> bool:
        """Whether a QC of this view shows that nothing signed in the life before can be contradicted."""
        return self._complete and view > self._highest + MARGIN

    def standing(self) -> str:
        """How far it has come, for an operator."""
        if self._complete:
            return f"It takes part again with a certificate of a view above {self._highest + MARGIN}."
        return f"{len(self._views)} of the {self._needed} other brokers that it needs have told it where they stand."

    @property
    def _complete(self) -> bool:
        return len(self._views) >= self._needed

    @property
    def _highest(self) -> int:
        return max(self._views.values())
