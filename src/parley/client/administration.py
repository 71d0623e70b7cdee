"""The network's records as a client may see them: topics, advertisements, clients, and how the brokers are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from parley.client.asking import ANSWER_SECONDS, Panel, Request
from parley.client.beliefs import Belief, check_entries, record_of
from parley.client.connection import Declined, Gone
from parley.client.errors import (
    ParleyError,
    PermissionDenied,
    UnknownClient,
    UnknownTopic,
    Unreachable,
    refused,
)
from parley.client.history import History
from parley.ledger.proofs import ProofError
from parley.model.names import Value
from parley.model.operations import Right
from parley.model.records import (
    TOPICS,
    AdvertisementRecord,
    ClientRecord,
    TopicRecord,
    advertisement_prefix,
    client_key,
    name_key,
    organisation_prefix,
    topic_key,
)
from parley.net.messages import MAX_KEYS, Listed, ListKeys, Prove, Proven, Status, StatusRequest

__all__ = ["Advertisement", "BrokerStatus", "ClientInfo", "PartitionInfo", "Records", "TopicInfo"]

MAX_LISTED = 100_000  # keys that are taken from one broker
PARTITIONS_SECONDS = 60.0  # for which a topic's number of partitions is remembered
MAX_REMEMBERED = 10_000  # topics

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The offsets that exist are `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic; `heads` only if it was asked for by name. `retention` is in ms of block time, 0 for ever."""

    name: str
    organisation: str
    partitions: int
    publish: str
    subscribe: str
    matching: str
    payload: str
    retention: int
    heads: tuple[PartitionInfo, ...] = ()


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
class Advertisement:
    client: str
    text: str


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


class Records:
    """Entries of the certified state. Lists are joined from f+1 brokers, one of which is honest, and proven one by one."""

    def __init__(self, panel: Panel, history: History) -> None:
        self._panel = panel
        self._history = history
        self._partitions: dict[str, tuple[int, float]] = {}

    # -- topics ------------------------------------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicInfo:
        record = await self._topic(name)
        heads = await self._history.heads(name, range(record.partitions))
        return _topic_info(
            record,
            tuple(
                PartitionInfo(partition, head.log_start_offset, head.next_offset)
                for partition, head in enumerate(heads)
            ),
        )

    async def topics(self) -> list[TopicInfo]:
        records = await self._listed(TOPICS, TopicRecord)
        return [_topic_info(record) for _, record in records if not record.deleted]

    async def partitions(self, topic: str) -> int:
        """How many there are, as of not long ago; they only grow."""
        now = asyncio.get_running_loop().time()
        known = self._partitions.get(topic)
        if known is not None and now - known[1] < PARTITIONS_SECONDS:
            return known[0]
        try:
            found = (await self._topic(topic)).partitions
        except PermissionDenied:
            # Whoever may not see the topic may not publish either: the receipt will say so, with the rule.
            return 1
        if len(self._partitions) >= MAX_REMEMBERED:
            self._partitions.clear()
        self._partitions[topic] = (found, now)
        return found

    async def advertisements(self, topic: str) -> list[Advertisement]:
        records = await self._listed(advertisement_prefix(topic), AdvertisementRecord)
        return sorted(
            (Advertisement(record.client, record.text) for _, record in records), key=lambda ad: ad.client
        )

    async def _topic(self, name: str) -> TopicRecord:
        (value,) = await self.prove([topic_key(name)])
        record = record_of(TopicRecord, value)
        if record is None or record.deleted:
            raise UnknownTopic(f"there is no topic {name}")
        return record

    # -- clients -----------------------------------------------------------------------------------------------------

    async def client(self, organisation: str, name: str) -> ClientInfo:
        (key,) = await self.prove([name_key(organisation, name)])
        record = None if key is None else await self.client_of(key)
        if record is None:
            raise UnknownClient(f"there is no client {organisation}/{name}")
        return _client_info(record)

    async def client_of(self, key: bytes) -> ClientRecord | None:
        (value,) = await self.prove([client_key(key)])
        return record_of(ClientRecord, value)

    async def clients(self, organisation: str) -> list[ClientInfo]:
        names = await self._list(organisation_prefix(organisation))
        keys = [key for key in await self._prove_all(names) if key is not None]
        values = await self._prove_all([client_key(key) for key in keys])
        records = [record_of(ClientRecord, value) for value in values]
        return sorted((_client_info(one) for one in records if one is not None), key=lambda info: info.name)

    # -- entries -----------------------------------------------------------------------------------------------------

    async def prove(self, keys: Sequence[bytes]) -> tuple[bytes | None, ...]:
        """The values under these keys as they are now."""
        return await self._panel.ask(self._request(keys, fresh=True))

    async def greet(self, keys: Sequence[bytes]) -> None:
        """Look at these entries as they were last certified, once: whether anybody answers at all."""
        await self._panel.ask(self._request(keys, fresh=False), patience=0)

    def _request(self, keys: Sequence[bytes], *, fresh: bool) -> Request[Proven, tuple[bytes | None, ...]]:
        floor = self._panel.height

        def read(belief: Belief, answer: Proven) -> tuple[bytes | None, ...]:
            values = check_entries(belief, answer, keys, floor)
            if fresh:
                self._history.require_fresh(belief)
            return values

        return Request("looking at the state", Prove(0, tuple(keys)), Proven, read)

    async def _prove_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for first in range(0, len(keys), MAX_KEYS):
            values += await self.prove(keys[first : first + MAX_KEYS])
        return values

    async def _listed(self, prefix: bytes, kind: type[T]) -> list[tuple[bytes, T]]:
        keys = await self._list(prefix)
        records = [
            (key, record_of(kind, value))
            for key, value in zip(keys, await self._prove_all(keys), strict=True)
        ]
        return [(key, record) for key, record in records if record is not None]

    async def _list(self, prefix: bytes) -> list[bytes]:
        """What f+1 brokers list, or all that can be reached."""
        found: set[bytes] = set()
        problems: dict[str, str] = {}
        refusals: list[Declined] = []
        heard = 0
        for name in self._panel.candidates():
            if heard >= self._panel.faults + 1:
                break
            try:
                found.update(await self._list_of(name, prefix))
                heard += 1
            except Declined as declined:
                refusals.append(declined)
                if len(refusals) >= self._panel.enough_to_refuse:
                    break
            except (Gone, TimeoutError) as error:
                self._panel.brokers.failed(name)
                problems[name] = str(error) or "it does not answer"
            except ProofError as error:
                self._panel.brokers.distrust(name, str(error))
        if not heard and refusals:
            raise refused(refusals[0].code, refusals[0].detail)
        if not heard:
            raise Unreachable(problems, self._panel.brokers.addresses)
        return sorted(found)

    async def _list_of(self, name: str, prefix: bytes) -> list[bytes]:
        connection = await self._panel.brokers.connection(name)
        keys: list[bytes] = []
        while True:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await connection.ask(ListKeys(0, prefix, keys[-1] if keys else b""), Listed)
            if any(not key.startswith(prefix) for key in answer.keys) or (answer.more and not answer.keys):
                raise ProofError("it lists what was not asked for")
            keys += answer.keys
            if not answer.more:
                return keys
            if len(keys) > MAX_LISTED:
                raise ProofError(f"it lists more than {MAX_LISTED} entries")

    # -- brokers -----------------------------------------------------------------------------------------------------

    async def status(self) -> list[BrokerStatus]:
        brokers = self._panel.brokers
        return list(await asyncio.gather(*(self._status(name) for name in brokers.addresses)))

    async def _status(self, name: str) -> BrokerStatus:
        brokers = self._panel.brokers
        organisation, address = brokers.organisation(name), str(brokers.addresses[name])
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                connection = await brokers.connection(name)
                answer = await connection.ask(StatusRequest(0), Status)
        except (Gone, Declined, ProofError, ParleyError) as error:
            return BrokerStatus(name, organisation, address, None, str(error))
        except TimeoutError:
            return BrokerStatus(name, organisation, address, None, "it does not answer")
        return BrokerStatus(name, organisation, address, answer, "", connection.certificate_ends)


def _topic_info(record: TopicRecord, heads: tuple[PartitionInfo, ...] = ()) -> TopicInfo:
    policy = record.policy
    return TopicInfo(
        record.name,
        record.organisation,
        record.partitions,
        record.publish,
        record.subscribe,
        policy.matching,
        policy.payload,
        policy.retention,
        heads,
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
