"""Entries of the certified state and headers of the certified history, with their proofs; lists of entries, without."""

from __future__ import annotations

from collections.abc import Callable

from parley.model.refusals import LimitExceeded, Refused
from parley.net.messages import MAX_KEYS, Listed, ListKeys, Prove, Proven, ReadHeader, ShownHeader
from parley.node.access import Caller, require_listable, require_provable
from parley.node.answers import KEY_WORK
from parley.node.services.asking import Asking
from parley.node.services.service import Cost, Judged, Showing
from parley.node.view import View

MAX_EXAMINED = 20_000  # entries that one list may pass over
EXAMINED_AT_ONCE = 32  # in one turn: each may have two rules that are read for the first time
ENTRY_WORK = 16 * 1024  # bytes that take as long as an entry that a list passes over
JUDGED_WORK = 64 * 1024  # one that it has to judge by rules

IsShown = Callable[[bytes], bool]

# -- entries -----------------------------------------------------------------------------------------------------------


def _provable(view: View, caller: Caller, question: Prove) -> None:
    principal = caller.principal(view)
    for key in question.keys:
        require_provable(view, key, principal)


def _prove(_asking: Asking, view: View, question: Prove, _: None) -> Proven:
    return Proven(question.id, view.anchor, tuple(map(view.entry, question.keys)))


def _proofs_work(answer: Proven) -> int:
    return KEY_WORK * len(answer.entries)


# -- lists -------------------------------------------------------------------------------------------------------------


def _listable(view: View, caller: Caller, question: ListKeys) -> IsShown | None:
    return require_listable(view, question.prefix, question.after, caller.principal(view))


def _list(asking: Asking, view: View, question: ListKeys, is_shown: IsShown | None) -> Listed | Listing:
    listing = Listing(view, question, is_shown, asking.charge)
    return listing.step() or listing


class Listing:
    """A page of a list, made in several turns, because others wait meanwhile.

    Every entry that is looked at is charged, shown or not.
    """

    def __init__(
        self, view: View, question: ListKeys, is_shown: IsShown | None, charge: Callable[[int], None]
    ) -> None:
        self.question = question
        self._is_shown = is_shown
        self._work = ENTRY_WORK if self._is_shown is None else JUDGED_WORK
        self._archive, self._charge = view.archive, charge
        self._after = question.after
        self._examined = 0
        self._found: list[bytes] = []

    def step(self) -> Listed | None:
        """The page, or None if another turn is needed. Raises `Refused`."""
        before = self._examined
        try:
            for key in self._archive.keys_after(self.question.prefix, self._after):
                if self._examined == before + EXAMINED_AT_ONCE:
                    return None
                if self._examined >= MAX_EXAMINED:
                    raise LimitExceeded("examined", limit=MAX_EXAMINED)
                self._examined += 1
                self._after = key
                if self._is_shown is not None and not self._is_shown(key):
                    continue
                if len(self._found) == MAX_KEYS:
                    return Listed(self.question.id, tuple(self._found), more=True)
                self._found.append(key)
        finally:
            self._charge((self._examined - before) * self._work)
        return Listed(self.question.id, tuple(self._found), more=False)


# -- headers -----------------------------------------------------------------------------------------------------------


def _knows_blocks(view: View, caller: Caller, question: ReadHeader) -> bool:
    """Whether the caller may know which block stands where (P22). docs/privacy.md says what it tells of others.

    Any client may know what time it is. Without it, a client whose clock is behind could not see that a proven refusal is
    new, and would not stop asking.
    """
    if caller.administers is None:
        try:
            caller.principal(view).require_client()
        except Refused:
            if question.height:
                raise
            return False
    return True


def _header(asking: Asking, view: View, question: ReadHeader, knows_blocks: bool) -> ShownHeader:  # noqa: FBT001
    height = question.height or view.height
    if height > view.height or not knows_blocks:
        return ShownHeader(question.id, view.anchor, None)
    header, root, receipts, work = view.archive.header(height)
    asking.charge(work)
    return ShownHeader(
        question.id, view.anchor, (header, root, receipts, view.archive.history(height, view.height))
    )


def _is_old(question: ReadHeader) -> bool:
    """Whether a header of the past is asked for. The newest one is always here."""
    return question.height > 0


def _header_work(_: ShownHeader) -> int:
    return KEY_WORK


SERVICES = (
    Showing(
        question=Prove,
        right=Judged("those to whom the tables show these entries", _provable),
        cost=Cost(f"{KEY_WORK // 1024} KiB for each entry", after=_proofs_work),
        fresh=False,
        show=_prove,
    ),
    Showing(
        question=ListKeys,
        right=Judged("those to whom the table is listed", _listable),
        cost=Cost(
            f"{ENTRY_WORK // 1024} KiB for each entry that is passed over, "
            f"{JUDGED_WORK // 1024} KiB if it has to be judged by itself",
            within=True,
        ),
        fresh=False,
        show=_list,
    ),
    Showing(
        question=ReadHeader,
        right=Judged("live clients and administrators; anyone for the newest header alone", _knows_blocks),
        cost=Cost(
            f"{KEY_WORK // 1024} KiB, and the bytes of the block's receipts", within=True, after=_header_work
        ),
        whole=_is_old,
        fresh=True,
        show=_header,
    ),
)
