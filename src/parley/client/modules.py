"""What clients have of the modules, on one page: the parts that speak to one module each, with `await` and without.

A module whose operations need more of a client than `operate` and `entries` has its methods in `Client` itself.
"""

from __future__ import annotations

from parley.client.advertisements import Advertising, BlockingAdvertising
from parley.client.operating import Operating
from parley.client.waiting import Blocking


class Modules(
    Advertising,
    Operating,
):
    """The parts of `Client`."""


class BlockingModules(
    BlockingAdvertising,
    Blocking,
):
    """The same parts of `BlockingClient`."""
