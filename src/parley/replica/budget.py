"""How much one member may make another send: small questions with large answers are an attack if they cost nothing."""

from __future__ import annotations

from parley.consensus.errors import Reason, Refused

__all__ = ["Budget"]

BURST = 64 * 1024 * 1024  # bytes of answers at once: the batches of a few full blocks
RATE = 16 * 1024  # bytes per ms
QUESTION = 8 * 1024  # bytes that a question costs in any case, for the work of answering


class Budget:
    """A token bucket per member."""

    def __init__(self, size: int) -> None:
        self._tokens = [BURST] * size
        self._filled = [0] * size  # when, in ms

    def spend(self, member: int, now: int, answer: int) -> None:
        """Pay for a question, or for `answer` bytes; refused if the member has used up its budget."""
        elapsed = max(0, now - self._filled[member])
        self._filled[member] = max(now, self._filled[member])
        tokens = min(BURST, self._tokens[member] + elapsed * RATE) - (answer or QUESTION)
        if tokens < 0:
            raise Refused(Reason.QUOTA, f"member {member} asks for more than {RATE} bytes per ms")
        self._tokens[member] = tokens
