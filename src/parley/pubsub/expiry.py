"""What the state remembers only for a time: each entry is listed under the height at which it is looked at again."""

from __future__ import annotations

from parley.model.records import STAGES
from parley.pubsub import lines, staged, staging, strangers
from parley.pubsub.records import BEHIND, CHUNKS, LINES, STAGED, STRANGERS, expiry_prefix
from parley.pubsub.step import Step

__all__ = ["MAX_SWEPT", "sweep"]

MAX_SWEPT = 4_096  # entries and heights a block: more than a block can list, so what is left over gets less


def sweep(step: Step) -> None:
    """Work off the lists up to this height, as far as one block may. It is the first thing that a block does.

    Whatever waits a little longer has expired all the same: nothing that could still apply depends on it.
    """
    state, height = step.state, step.height
    behind, room = state.count(BEHIND), MAX_SWEPT
    reached = behind or height
    while reached <= height and room > 0:
        prefix = expiry_prefix(reached)
        for key in state.stored_keys(prefix, room):
            state.delete(key)
            room -= _expire(step, key[len(prefix) :], reached)
            if room <= 0:
                break
        room -= 1
        if room > 0:
            reached += 1
    left_over = reached if reached <= height else 0
    if left_over != behind:
        state.add(BEHIND, left_over - behind)


def _expire(step: Step, key: bytes, listed: int) -> int:
    """What it takes of the room for `MAX_SWEPT`."""
    state, height, dropped = step.state, step.height, 0
    if key.startswith(LINES):
        lines.expire(state, key, listed, height)
    elif key.startswith(STAGED):
        dropped = staging.expire(step, key)
    elif key.startswith(STAGES):
        staging.expire_writer(state, key, height)
    elif key.startswith(STRANGERS):
        strangers.forget(state, key)
    else:
        assert key.startswith(CHUNKS), "nothing else is listed"
        state.delete(key)
    return 1 + dropped * MAX_SWEPT // staged.DROPPED_BYTES
