"""What an attack returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from parley.chaos.expensive.attackers import Attackers


class Outcome(NamedTuple):
    """In words; `held` says whether the network passed what the attack itself looks for, None if that is nothing."""

    text: str
    held: bool | None = None


Attack = Callable[[Attackers], Awaitable[Outcome]]
