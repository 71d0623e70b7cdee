"""Why staging refuses."""

from __future__ import annotations

from parley.model.refusals import Refused


class StageOver(Refused, retry="never", status=409, repeats=True, suspicion="refusal"):
    """The writer has committed this stage, or a later one, already: what belongs to it is decided for ever (P23)."""


class NotStaged(Refused, retry="changed", status=409, suspicion="refusal"):
    """A commit names a batch that is not staged: it expired, or was dropped."""
