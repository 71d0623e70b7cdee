"""All attacks by name."""

from __future__ import annotations

from parley.chaos.expensive import blocks, repeats, shares
from parley.chaos.expensive.outcome import Attack
from parley.chaos.nemesis import EXPENSIVE, WAYS

ATTACKS: dict[str, Attack] = {
    "alter": blocks.alter,
    "revoke": blocks.revoke,
    "subscribe": blocks.subscribe,
    "stage": shares.stage,
    "commit": shares.commit,
    "matching": shares.matching,
    "busy": shares.busy,
    "sequences": repeats.sequences,
    "sessions": repeats.sessions,
}
assert tuple(ATTACKS) == WAYS[EXPENSIVE], "plans name the attacks that there are"
