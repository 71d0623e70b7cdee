"""The network's records as a client may see them: topics, clients, and how the brokers are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from parley.client.connection import Declined, Gone
from parley.client.errors import ParleyError, UnknownClient
from parley.client.history import History
from parley.client.quorum import ANSWER_SECONDS, QuorumClient
from parley.client.state import StateReader
from parley.client.topics import Topics
from parley.ledger.proofs import ProofError
from parley.model.names import Value
from parley.model.principals import ClientRecord, Right
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.topics.tables import GROWING, TOPICS, TopicRecord
from parley.net.messages import Status, StatusRequest

__all__ = ["BrokerStatus", "ClientInfo", "PartitionInfo", "Records", "TopicInfo"]


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The offsets that exist are `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic. `retention` is in ms of block time, 0 for ever.

    Only if it was asked for by name: `heads`, and `growing`, the number of partitions that it is going to have if that is
    another one.
    """

    name: str
    organisation: str
    partitions: int
    publish: str
    subscribe: str
    matching: str
    payload: str
    retention: int
    heads: tuple[PartitionInfo, ...] = ()
    growing: int = 0


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A client as the registry has it; `changed` is the height of its last change."""

    organisation: str
    name: str
    key: bytes
    attributes: Mapping[str, Value]
    revoked: bool
    changed: int
    rights: tuple[Right, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker's own word on how it is; `status` is None and `problem` says why if it does not answer.

    `certificate_ends`, in ms since 1970, is of the certificate that it showed, not its word.
    """

    name: str
    organisation: str
    address: str
    status: Status | None
    problem: str
    certificate_ends: int | None = None


@dataclass(eq=False)
class Records:
    """Topics and clients as the certified state has them."""

    _quorum: QuorumClient
    _state: StateReader
    _history: History
    _topics: Topics

    # -- topics ------------------------------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicInfo:
        record = await self._topics.now(name)
        growing = await self._state.entry(GROWING, record.organisation, name)
        heads = await self._history.heads(name, range(record.partitions))
        return _topic_info(
            record,
            tuple(
                PartitionInfo(partition, head.log_start_offset, head.next_offset)
                for partition, head in enumerate(heads)
            ),
            growing or 0,
        )

    async def topics(self) -> list[TopicInfo]:
        return [_topic_info(record) for _, record in await self._state.entries(TOPICS) if not record.deleted]

    # -- clients -----------------------------------------------------------------------------------------------------

    async def client(self, organisation: str, name: str) -> ClientInfo:
        key = await self._state.entry(NAMES, organisation, name)
        if key is not None:
            record = await self._state.entry(CLIENTS, key)
            if record is not None:
                return _client_info(record)
        raise UnknownClient("name", client=f"{organisation}/{name}")

    async def clients(self, organisation: str) -> list[ClientInfo]:
        keys = [(key,) for _, key in await self._state.entries(NAMES, organisation)]
        records = await self._state.records(CLIENTS, keys)
        return sorted((_client_info(one) for one in records if one is not None), key=lambda info: info.name)

    # -- brokers -----------------------------------------------------------------------------------------------------

    async def status(self, timeout: float = ANSWER_SECONDS) -> list[BrokerStatus]:  # noqa: ASYNC109 - of each
        """What each broker says; one that has said nothing after `timeout` seconds does not answer."""
        asked = (self._status(name, timeout) for name in self._quorum.brokers.addresses)
        return list(await asyncio.gather(*asked))

    async def _status(self, name: str, seconds: float) -> BrokerStatus:
        brokers = self._quorum.brokers
        organisation, address = brokers.organisation(name), str(brokers.addresses[name])
        try:
            async with asyncio.timeout(seconds):
                connection = await brokers.connection(name)
                answer = await connection.ask(StatusRequest(0), Status)
        except (Gone, Declined, ProofError, ParleyError, TimeoutError) as error:
            if isinstance(error, ProofError):
                brokers.distrust(name, str(error))
            problem = str(error) or f"it does not answer within {seconds:g} s"
            return BrokerStatus(name, organisation, address, None, problem)
        return BrokerStatus(name, organisation, address, answer, "", connection.certificate_ends)


def _topic_info(record: TopicRecord, heads: tuple[PartitionInfo, ...] = (), growing: int = 0) -> TopicInfo:
    return TopicInfo(
        record.name,
        record.organisation,
        record.partitions,
        record.publish,
        record.subscribe,
        record.policy.matching,
        record.policy.payload,
        record.policy.retention,
        heads,
        growing,
    )


def _client_info(record: ClientRecord) -> ClientInfo:
    return ClientInfo(
        record.organisation,
        record.name,
        record.key,
        dict(record.attributes),
        record.revoked,
        record.changed,
        record.rights,
    )
