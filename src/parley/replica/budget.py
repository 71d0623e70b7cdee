"""How much one member may make another send: small questions with large answers are an attack if they cost nothing."""

from __future__ import annotations

from parley.consensus.errors import Reason, Refused

BURST = 64 * 1024 * 1024  # bytes of answers at once: the batches of a few full blocks
RATE = 16 * 1024  # bytes per ms
BATCHES_QUESTION = (
    8 * 1024
)  # what a question costs besides the bytes of its answer, for the work of answering
BLOCKS_QUESTION = 128 * 1024


class Budget:
    """A token bucket per member. It may be overdrawn by one answer, so that no work is done for which nobody pays."""

    def __init__(self, size: int) -> None:
        self._tokens = [BURST] * size
        self._filled = [0] * size  # when, in ms

    def require(self, member: int, now: int) -> None:
        """Refuse if the member has used up its budget; to be called before any work for it."""
        elapsed = max(0, now - self._filled[member])
        self._filled[member] += elapsed
        self._tokens[member] = min(BURST, self._tokens[member] + elapsed * RATE)
        if self._tokens[member] <= 0:
            raise Refused(Reason.QUOTA, f"member {member} asks for more than {RATE} bytes per ms")

    def charge(self, member: int, cost: int) -> None:
        self._tokens[member] -= cost
