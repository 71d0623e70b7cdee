"""A broker that refuses to show a topic is not believed: it has to prove why, or contradicts its own proof (P7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from parley.client.asking import Panel
from parley.client.beliefs import check_entries, is_fresh, record_of
from parley.client.connection import Connection, Declined, Gone
from parley.client.errors import (
    PermissionDenied,
    Pruned,
    Refused,
    Revoked,
    UnknownClient,
    UnknownPartition,
    UnknownTopic,
)
from parley.ledger.proofs import ProofError
from parley.model.errors import Code
from parley.model.expressions import parse_rule
from parley.model.records import (
    ClientRecord,
    PartitionRecord,
    TopicRecord,
    client_key,
    partition_key,
    topic_key,
)
from parley.net.messages import Prove, Proven

__all__ = ["Judge", "reason_to_deny"]

JUDGED = frozenset(
    {
        Code.PERMISSION_DENIED,
        Code.UNKNOWN_CLIENT,
        Code.REVOKED,
        Code.UNKNOWN_TOPIC,
        Code.UNKNOWN_PARTITION,
        Code.PRUNED,
    }
)


@dataclass(frozen=True)
class Judge:
    """Of refusals to read one partition of a topic from an offset on."""

    panel: Panel
    clock: Callable[[], int]
    topic: str
    partition: int = 0
    offset: int | None = None

    async def __call__(self, connection: Connection, declined: Declined) -> None:
        """Raise `Refused` if the broker proves its refusal, `ProofError` if its proof says otherwise.

        Without a proof nothing is known: the refusal is one broker's word.
        """
        reader = self.panel.reader
        if reader.level != "certified" or declined.code not in JUDGED:
            return
        keys = [client_key(reader.key), topic_key(self.topic)]
        if declined.code is Code.PRUNED:
            keys.append(partition_key(self.topic, self.partition))
        try:
            async with asyncio.timeout(self.panel.timeouts.freshness / 1_000):
                answer = await connection.ask(Prove(0, tuple(keys)), Proven)
        except (Declined, Gone, TimeoutError):
            return
        belief = reader.believe(answer.anchor)
        values = check_entries(belief, answer, keys, floor=0)
        if belief.height < self.panel.height or not is_fresh(
            belief, self.clock(), self.panel.timeouts.freshness
        ):
            return
        reason = reason_to_deny(
            self.topic, self.partition, record_of(ClientRecord, values[0]), record_of(TopicRecord, values[1])
        )
        if reason is None and declined.code is Code.PRUNED:
            reason = self._pruned(record_of(PartitionRecord, values[2]))
        if reason is None:
            raise ProofError(f"it refuses what its own proof allows ({declined})")
        raise reason

    def _pruned(self, head: PartitionRecord | None) -> Refused | None:
        if head is None or self.offset is None or self.offset >= head.log_start_offset:
            return None
        return Pruned(f"partition {self.partition} of {self.topic} starts at offset {head.log_start_offset}")


def reason_to_deny(
    topic: str, partition: int, client: ClientRecord | None, record: TopicRecord | None
) -> Refused | None:
    """Why these records do not allow this client to read the partition."""
    if client is None:
        return UnknownClient(
            "this client is not registered; an administrator of its organisation can register it"
        )
    if client.revoked:
        return Revoked(f"{client.organisation}/{client.name} was revoked at height {client.changed}")
    if record is None or record.deleted:
        return UnknownTopic(f"there is no topic {topic}")
    if partition >= record.partitions:
        return UnknownPartition(f"topic {topic} has partitions 0 to {record.partitions - 1}")
    if not parse_rule(record.subscribe).allows(client.readable()):
        return PermissionDenied(f"rule 'subscribe' of topic {topic}: {record.subscribe}", record.subscribe)
    return None
