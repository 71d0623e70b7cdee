"""What goes again may be held up to a limit by the network, and of that an equal share by each organisation."""

from __future__ import annotations

from collections.abc import Callable

from parley.model.errors import Code, Refusal
from parley.pubsub.state import State
from parley.pubsub.step import Step

__all__ = ["add", "require"]


def require(
    step: Step, organisation: str, held: tuple[bytes, int], more: int, advice: Callable[[], str]
) -> None:
    """That so much more may be held. `held` is the counter, which ends in the words for what it counts, and its limit."""
    (counter, limit), state = held, step.state
    what = counter.rpartition(b"/")[2].decode()
    share = -(-limit // len(step.genesis.organisations))
    if state.count(_of(counter, organisation)) + more > share:
        raise Refusal(
            Code.LIMIT_EXCEEDED, f"{organisation} may hold {share} {what} and would have more; {advice()}"
        )
    if state.count(counter) + more > limit:
        raise Refusal(
            Code.LIMIT_EXCEEDED, f"the network may hold {limit} {what} and would have more; {advice()}"
        )


def add(state: State, organisation: str, counter: bytes, by: int) -> None:
    state.add(counter, by)
    state.add(_of(counter, organisation), by)


def _of(counter: bytes, organisation: str) -> bytes:
    return counter + b"/" + organisation.encode()
