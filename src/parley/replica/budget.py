"""How much one member may make another send: small questions with large answers are an attack if they cost nothing."""

from __future__ import annotations

from parley.consensus.errors import Reason, Refused

__all__ = ["QUESTION", "Budget"]

BURST = 64 * 1024 * 1024  # bytes of answers at once: the batches of a few full blocks
RATE = 16 * 1024  # bytes per ms
QUESTION = 8 * 1024  # bytes that a question costs in any case, for the work of answering


class Budget:
    """A token bucket per member."""

    def __init__(self, size: int) -> None:
        self._tokens = [BURST] * size
        self._filled = [0] * size  # when, in ms

    def spend(self, member: int, now: int, cost: int) -> None:
        """Pay for a question, or for the bytes of an answer; refused if the member has used up its budget."""
        elapsed = max(0, now - self._filled[member])
        self._filled[member] += elapsed
        self._tokens[member] = min(BURST, self._tokens[member] + elapsed * RATE)
        if cost > self._tokens[member]:
            raise Refused(Reason.QUOTA, f"member {member} asks for more than {RATE} bytes per ms")
        self._tokens[member] -= cost
