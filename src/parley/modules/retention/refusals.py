"""Why offsets are not shown any more."""

from __future__ import annotations

from parley.model.refusals import Refused


class Pruned(Refused, retry="changed", status=410, provable=True):
    """The offsets existed and their retention is over."""
