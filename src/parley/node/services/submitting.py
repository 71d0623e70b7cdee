"""Batches that are to be ordered, and their receipts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parley.model.names import Position
from parley.net.messages import MAX_RECEIPTS, Receipted, Submit
from parley.node.services.asking import Asking
from parley.node.services.service import Acting, Cost, Right
from parley.node.view import View

Ready = tuple[int, Position]  # a question, and the place of the receipt that answers it


def _submit(asking: Asking, question: Submit) -> None:
    faults = asking.services.faults
    if not (faults.active and faults.swallows(asking.caller)):
        asking.holding().submissions.submit(question)


def by_block(ready: Iterable[Ready]) -> Iterator[list[Ready]]:
    """What one answer can show together: receipts of one block, no position twice, not too many."""
    group: list[Ready] = []
    for one in sorted(ready, key=lambda one: one[1]):
        last = group[-1][1] if group else one[1]
        if group and (one[1][0] != last[0] or one[1] == last or len(group) == MAX_RECEIPTS):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def receipted(view: View, group: list[Ready]) -> Receipted:
    (first, (height, _)), *others = group
    return Receipted(
        first,
        view.anchor,
        view.leaves(height, [position for _, (_, position) in group]),
        tuple(id_ for id_, _ in others),
    )


SERVICES = (
    Acting(
        question=Submit,
        right=Right("live clients and administrators, for batches of their own"),
        cost=Cost("for an operation, what it will touch, counted as questions", within=True),
        stays=True,
        act=_submit,
    ),
)
