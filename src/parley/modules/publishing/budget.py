"""What matching costs a block, in comparisons and in work."""

from __future__ import annotations

from parley.model.refusals import LimitExceeded
from parley.modules.subscriptions.matching import HEAD, LEAST, MAX_WAITING

COMPARISONS = HEAD  # that take the time of one unit of work, about: half a microsecond each
MESSAGES = 16  # whose tags are read in that time
# Of one batch: a message that meets as many constraints as may wait under one equality can be published by itself.
MAX_COMPARED = MAX_WAITING * (HEAD + LEAST)


def work_of(compared: int) -> int:
    return -(-compared // COMPARISONS)


def require_affordable(compared: int) -> None:
    """Raises `LimitExceeded` if a batch costs too much by itself."""
    if compared > MAX_COMPARED:
        # The number itself is left out: it would tell how many constraints others have.
        raise LimitExceeded("comparisons", limit=MAX_COMPARED)
