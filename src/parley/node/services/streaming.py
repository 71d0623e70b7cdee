"""Streams of what matches a constraint: opened, granted credit, closed."""

from __future__ import annotations

from parley.model.refusals import LimitExceeded
from parley.net.messages import (
    MAX_STREAMS,
    CloseStream,
    Credit,
    Delivery,
    Head,
    OpenStream,
)
from parley.node.answers import KEY_WORK, MESSAGE_WORK, RULE_WORK, shown_work
from parley.node.pieces import SHARED_WORK
from parley.node.services.asking import Asking
from parley.node.services.service import Acting, Cost, Right
from parley.node.streams import Stream


def _open(asking: Asking, question: OpenStream) -> None:
    services, held = asking.services, asking.holding()
    if len(held.streams) >= MAX_STREAMS:
        raise LimitExceeded("streams", limit=MAX_STREAMS)
    stream = Stream(question, asking.caller, services.freshness // 2, services.shelf)
    stream.open(services.fresh_view())
    held.streams[question.id] = stream
    held.wake.set()


def _credit(asking: Asking, question: Credit) -> None:
    held = asking.holding()
    if (stream := held.streams.get(question.id)) is not None:
        stream.add_credit(question.messages)
        held.wake.set()


def _close(asking: Asking, question: CloseStream) -> None:
    asking.holding().streams.pop(question.id, None)


def _work(answer: Delivery | Head) -> int:
    """What it took to build an answer that was decoded and encoded again. For the others, streams count it."""
    if isinstance(answer, Head):
        return KEY_WORK * len(answer.entries)
    return shown_work(one for block in answer.blocks for one in block.contents)


SERVICES = (
    Acting(
        question=OpenStream,
        right=Right("readers of the topic"),
        cost=Cost(
            f"what is pushed: {SHARED_WORK} bytes for each message that all readers are shown, by the first one that needs "
            f"it, {MESSAGE_WORK // 1024} KiB for each message prepared for this reader, {RULE_WORK // 1024} KiB for each "
            f"rule that is asked, {KEY_WORK // 1024} KiB for each entry of a head",
            after=_work,
        ),
        stays=True,
        whole=True,
        act=_open,
    ),
    Acting(
        question=Credit,
        right=Right("anyone, for streams of the same connection"),
        cost=Cost("nothing: it adds two numbers", bytes_only=True),
        act=_credit,
    ),
    Acting(
        question=CloseStream,
        right=Right("anyone, for streams of the same connection"),
        cost=Cost("nothing: it takes work off the broker", bytes_only=True),
        act=_close,
    ),
)
