"""A broker that refuses to show a topic is not believed: it has to prove why, or contradicts its own proof (P7)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from parley.client.beliefs import check_entries, record_of
from parley.client.connection import Connection, Declined, Gone
from parley.client.errors import Pruned, Refused
from parley.client.quorum import QuorumClient
from parley.ledger.proofs import ProofError
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.messages import Prove, Proven


@dataclass(frozen=True)
class Judge:
    """Judges refusals to read one partition of a topic from an offset on."""

    quorum: QuorumClient
    topic: str
    partition: int = 0
    offset: int | None = None

    async def __call__(self, connection: Connection, declined: Declined) -> None:
        """Raise `Refused` if the broker proves its refusal, `ProofError` if its proof says otherwise, `Stale` if it is old.

        Without a proof nothing is known: the refusal is one broker's word.
        """
        reader = self.quorum.reader
        if reader.level != "certified" or not declined.kind.provable:
            return
        keys = [CLIENTS.key(reader.key), TOPICS.key(self.topic)]
        if declined.kind is Pruned:
            keys.append(HEADS.key(self.topic, self.partition))
        freshness, floor = self.quorum.timeouts.freshness, self.quorum.height
        try:
            async with asyncio.timeout(freshness / 1_000):
                answer = await connection.ask(Prove(0, tuple(keys)), Proven)
        except (Declined, Gone, TimeoutError):
            return
        view = self.quorum.view(answer.anchor)
        await self.quorum.settle_time()
        # Both checks raise `Stale` if the broker judged by an old state: its refusal must not add to a liar's.
        client, topic, *heads = check_entries(view, answer, keys, floor)
        self.quorum.require_fresh(view)
        principal = reader.principal(record_of(CLIENTS, client))
        reason = authorise(principal, Action.SUBSCRIBE, self.topic, record_of(TOPICS, topic), self.partition)
        if reason is None:
            reason = next((self._pruned(head) for head in heads), None)
        if reason is None:
            raise ProofError(f"it refuses what its own proof allows ({declined})")
        raise reason

    def _pruned(self, head: bytes | None) -> Refused | None:
        record = record_of(HEADS, head)
        if record is None or self.offset is None or self.offset >= record.log_start_offset:
            return None
        return Pruned(topic=self.topic, partition=self.partition, start=record.log_start_offset)
