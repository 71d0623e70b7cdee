"""What one connection holds open: questions that are not answered yet, and streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from parley.model.refusals import Busy, Invalid, Refused
from parley.node.streams import Stream
from parley.node.submissions import Submissions
from parley.node.view import Ledger

if TYPE_CHECKING:
    from parley.node.services.fetching import Poll

SHORT_LOOK = 32  # orders that may be looked at for news in one turn of the loop


class Held:
    """What one connection holds open, at most `places` in all. `wake` is set when some of it may have become ready."""

    def __init__(self, submissions: Submissions, places: int, wake: asyncio.Event) -> None:
        self.submissions = submissions
        self.polls: dict[int, Poll] = {}
        self.streams: dict[int, Stream] = {}
        self.wake = wake
        self._places = places

    def require_room(self, id_: int) -> None:
        """Raises `Invalid` if the number is in use, `Busy` if there is no place."""
        if id_ in self.submissions or id_ in self.polls or id_ in self.streams:
            raise Invalid("number", number=id_)
        waiting = len(self.submissions) + len(self.polls) + len(self.streams)
        if waiting >= self._places:
            raise Busy("questions", waiting=waiting)

    def busy_streams(self, ledger: Ledger, ticks: int) -> list[Stream]:
        """The streams that have news; all of them if they are many, because this look holds the loop."""
        streams = list(self.streams.values())
        if len(streams) > SHORT_LOOK or sum(stream.orders for stream in streams) > SHORT_LOOK:
            return streams
        return [stream for stream in streams if _has_news(stream, ledger, ticks)]


def _has_news(stream: Stream, ledger: Ledger, ticks: int) -> bool:
    try:
        return stream.has_news(ledger.view(), ticks)
    except Refused:  # there is nothing to show now
        return False
