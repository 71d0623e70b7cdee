"""Reading a topic that does not keep everything: what is gone is told on stderr, and what is left is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from parley.cli import output
from parley.cli.pubsub_values import Start
from parley.client.administration import PartitionInfo
from parley.client.client import Client
from parley.client.errors import PermissionDenied, Pruned
from parley.client.messages import Message
from parley.client.position import Position
from parley.client.subscription import Subscription
from parley.model.expressions import parse_constraint


async def going_on(subscription: Subscription, skipped: Callable[[], None]) -> AsyncIterator[Message]:
    """What the subscription hands out; `skipped` hears that its position moved past what is gone."""
    last: Position | None = None
    while True:
        try:
            async for message in subscription:
                yield message
        except Pruned as lost:
            position = subscription.position()
            if position == last:  # it does not get past that
                raise
            last = position
            _tell(lost)
            skipped()


async def history(
    client: Client, topic: str, start: Start, where: str, partition: int | None = None
) -> AsyncIterator[Message]:
    """What a topic holds now, partition by partition, filtered here: no subscription is needed for the past (P6)."""
    matches = parse_constraint(where).matches if where else None
    known = {head.partition: head for head in await _heads(client, topic)}
    for number in known if partition is None else [partition]:
        head = known.get(number, PartitionInfo(number, 0, 0))
        if start == "earliest":
            messages = _from_earliest(client, topic, head)
        else:
            messages = client.fetch(
                topic, partition=number, start=start if isinstance(start, int) else head.end, withheld="yield"
            )
        async for message in messages:
            if matches is None or (not message.empty and matches(message.tags)):
                yield message


async def _from_earliest(client: Client, topic: str, head: PartitionInfo) -> AsyncIterator[Message]:
    """The beginning of a partition may move while it is read."""
    offset = head.start
    while True:
        try:
            async for message in client.fetch(
                topic, partition=head.partition, start=offset, withheld="yield"
            ):
                yield message
                offset = message.offset + 1
        except Pruned as lost:
            starts = {one.partition: one.start for one in await _heads(client, topic)}
            if starts.get(head.partition, 0) <= offset:
                raise
            offset = starts[head.partition]
            _tell(lost)
        else:
            return


async def _heads(client: Client, topic: str) -> Sequence[PartitionInfo]:
    try:
        return (await client.topic(topic)).heads
    except PermissionDenied:
        return [PartitionInfo(0, 0, 0)]  # reading will be refused, too, and that refusal names the rule


def _tell(lost: Pruned) -> None:
    output.note(
        f"parley: {lost.detail}. Older messages are not kept any more; reading goes on with those that are left"
    )
