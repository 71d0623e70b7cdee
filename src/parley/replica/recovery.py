"""The way back of a broker that lost its safety record: it signs nothing until it cannot contradict itself (P10). Sans-IO."""

from __future__ import annotations

from parley.consensus.events import Broadcast, SetTimer
from parley.consensus.verify import Verifier
from parley.sync.messages import RecoveryAnswer
from parley.sync.timers import RecoveryTimer

__all__ = ["Effect", "Recovery"]

Effect = Broadcast | SetTimer[RecoveryTimer]


class Recovery:
    """Collects the highest certificates of q other brokers; `nonce` is this life's own."""

    def __init__(self, size: int, verifier: Verifier, nonce: bytes) -> None:
        self._size = size
        self._verifier = verifier
        self._nonce = nonce

    def start(self) -> list[Effect]:
        return []

    def on_timer(self, timer: RecoveryTimer) -> list[Effect]:
        del timer
        return []

    def receive(self, sender: int, answer: RecoveryAnswer) -> None:
        del sender, answer

    def is_safe(self, view: int) -> bool:
        """Whether a QC of this view shows that nothing signed in the life before can be contradicted."""
        del view
        return False
