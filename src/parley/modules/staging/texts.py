"""Texts of the refusals of staging."""

from __future__ import annotations

from parley.model.texts import Texts

_OTHERS = "wait until what others staged is committed or expires, or stage less at a time"
_OWN = (
    "commit what is staged, wait until it expires, some at height {until}, or stage less at a time (in Spark with a lower "
    "maxOffsetsPerTrigger)"
)
_FEWER = "commit under fewer names of queries and jobs"

TEXTS: Texts = {
    "Busy.committing": "{checked} of the {batches} batches of this commit have been looked at; it is ordered again",
    "Busy.committing_another": "another large commit of this client is not decided yet; this is ordered again",
    "Busy.pending": (
        "{batches} committed batches of topic {topic} wait to be numbered, and with this constraint matching them would "
        "cost too much; it is ordered again"
    ),
    "Invalid.named_twice": "batch {digest} is named twice",
    "LimitExceeded.staged_bytes": (
        f"{{client}} has {{held}} staged bytes of {{limit}}, and this would be {{more}} more; {_OTHERS}"
    ),
    "LimitExceeded.staged_bytes_own": (
        f"{{client}} has {{held}} staged bytes of {{limit}}, and this would be {{more}} more; {_OWN}"
    ),
    "LimitExceeded.staged_of_network": f"the network may hold {{limit}} staged bytes and would have more; {_OTHERS}",
    "LimitExceeded.staged_own_of_network": f"the network may hold {{limit}} staged bytes and would have more; {_OWN}",
    "LimitExceeded.staged_of_organisation": (
        f"{{organisation}} may hold {{limit}} staged bytes and would have more; {_OTHERS}"
    ),
    "LimitExceeded.staged_own_of_organisation": (
        f"{{organisation}} may hold {{limit}} staged bytes and would have more; {_OWN}"
    ),
    "LimitExceeded.writers": (
        "{client} has the {limit} writers that it may have; each is remembered for {kept} heights after its last commit, so "
        + _FEWER
    ),
    "LimitExceeded.writers_of_network": f"the network may hold {{limit}} writers and would have more; {_FEWER}",
    "LimitExceeded.writers_of_organisation": (
        f"{{organisation}} may hold {{limit}} writers and would have more; {_FEWER}"
    ),
    "NotStaged.gone": (
        "batch {digest} is not staged: it never was, it has expired, or it was dropped; stage it again"
    ),
    "NotStaged.other": "batch {digest} is not staged for stage {stage} of this writer of {topic}",
    "StageOver": "stage {stage} is over: this writer has committed stage {last} at height {height}",
    "StageOver.repeated": (
        "stage {stage} is over: this writer has committed stage {last} at height {height}, from another source or with "
        "other rows, and what was committed first stands"
    ),
    "Staged": "to be committed up to height {until}",
}
