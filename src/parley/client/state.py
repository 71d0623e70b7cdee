"""Reads the certified state by table: one entry, a list of entries, and the proof of an entry for a third party."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from parley.application.tables import K, R, Table
from parley.client.beliefs import VerifiedView, check_entries, record_of
from parley.client.connection import Declined, Gone
from parley.client.errors import PermissionDenied, Stalled, UnknownTopic, Unreachable
from parley.client.proofs import EntryProof
from parley.client.quorum import ANSWER_SECONDS, QuorumClient, Request, is_old
from parley.ledger.proofs import ProofError
from parley.net.messages import MAX_KEYS, Listed, ListKeys, Prove, Proven

MAX_LISTED = 100_000  # keys that are taken from one broker
# Keys that one broker has listed alone and under which there is nothing: they may be too new to be certified.
MAX_ABSENT = 1_024
MAX_RESTARTS = 3  # of a list that changes while its pages are asked for
# Keys that one broker has listed alone. Some are allowed, because rights can change between list and proof.
MAX_UNSHOWN = 16


class _Invented(Exception):  # noqa: N818 - it names the condition
    """One broker listed more than `MAX_UNSHOWN` keys that brokers refuse to prove, or `MAX_ABSENT` without an entry."""


@dataclass(frozen=True, repr=False)
class StateReader:
    """Reads entries as they are now. Lists are joined from f+1 brokers, one of which is honest, and proven one by one."""

    _quorum: QuorumClient

    async def entry(self, table: Table[R, *K], *key: *K) -> R | None:
        """The record under a key, None if there is certainly none."""
        (found,) = await self.records(table, [key])
        return found

    async def certified(self, table: Table[R, *K], *key: *K) -> R | None:
        """The record under a key as of a height that is not below what this client has seen. It may have changed since."""
        (value,) = await self._quorum.ask(self._request([table.key(*key)], fresh=False))
        return record_of(table, value)

    async def records(self, table: Table[R, *K], keys: Sequence[tuple[*K]]) -> list[R | None]:
        """The records under several keys of a table, in their order."""
        return [record_of(table, value) for value in await self._prove([table.key(*key) for key in keys])]

    async def entries(self, table: Table[R, *K], *leading: object) -> list[tuple[tuple[*K], R]]:
        """All entries of a table whose key begins with these values, in the order of their keys."""
        found = await self._list(table, table.prefix(*leading))
        records = ((key, record_of(table, value)) for key, value in sorted(found.items()))
        return [(table.unpack(key), record) for key, record in records if record is not None]

    async def proof(self, table: Table[R, *K], *key: *K) -> EntryProof:
        """What a third party can check of an entry, or of there being none."""
        packed = table.key(*key)
        floor = self._quorum.height

        def read(_: VerifiedView, answer: Proven) -> EntryProof:
            # Whatever the level of this client: only what is certified proves anything to others.
            certified = self._quorum.certified(answer.anchor)
            check_entries(certified, answer, [packed], floor)
            self._quorum.require_fresh(certified)
            return EntryProof.of(table, answer.entries[0], answer.anchor)

        request = Request("looking at the state", Prove(0, (packed,)), Proven, read)
        return await self._quorum.ask(request, needed=1)

    async def greet(self, table: Table[R, *K], *key: *K) -> None:
        """Ask once for an entry as it was last certified. Raises `Unreachable` if no broker answers."""
        await self._quorum.ask(self._request([table.key(*key)], fresh=False), patience=0)

    def _request(self, keys: Sequence[bytes], *, fresh: bool) -> Request[Proven, tuple[bytes | None, ...]]:
        floor = self._quorum.height

        def read(view: VerifiedView, answer: Proven) -> tuple[bytes | None, ...]:
            values = check_entries(view, answer, keys, floor)
            if fresh:
                self._quorum.require_fresh(view)
            return values

        return Request("looking at the state", Prove(0, tuple(keys)), Proven, read)

    async def _prove(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values under these keys as they are now."""
        values: list[bytes | None] = []
        for first in range(0, len(keys), MAX_KEYS):
            found = await self._quorum.ask(self._request(keys[first : first + MAX_KEYS], fresh=True))
            values += found
        return values

    async def _prove_shown(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """The values of those keys that brokers prove. A liar may have listed others. Raises `_Invented`.

        A question with one key that is refused is refused as a whole. So it is asked again in two halves.
        """
        values: dict[bytes, bytes | None] = {}
        unshown = absent = 0
        groups = [keys[first : first + MAX_KEYS] for first in range(0, len(keys), MAX_KEYS)]
        while groups:
            group = groups.pop()
            try:
                proven = await self._prove(group)
                values |= zip(group, proven, strict=True)
                absent += proven.count(None)
            except (PermissionDenied, UnknownTopic):
                if len(group) > 1:
                    half = len(group) // 2
                    groups += [group[:half], group[half:]]
                    continue
                unshown += 1
            if unshown > MAX_UNSHOWN or absent > MAX_ABSENT:
                raise _Invented
        return values

    async def _list(self, table: Table[R, *K], prefix: bytes) -> dict[bytes, bytes | None]:
        """What stands under the keys that f+1 brokers list, or all brokers that can be reached."""
        found: dict[bytes, bytes | None] = {}
        problems: dict[str, str] = {}
        declined: list[Declined] = []
        later: Declined | None = None
        refused: Counter[str] = Counter()  # by code
        heard = 0
        for name in self._quorum.candidates():
            if heard >= self._quorum.faults + 1:
                break
            floor = self._quorum.height
            try:
                listed = await self._list_of(name, table, prefix)
                found |= await self._prove_shown([key for key in listed if key not in found])
                heard += 1
            except _Invented:
                problems[name] = "it lists many entries that others do not show"
                self._quorum.brokers.doubt(name, problems[name])
            except Declined as said:
                declined.append(said)
                if said.kind.passing or is_old(said.refusal, floor):
                    later = later or said  # it cannot answer now, or not by what the client has seen
                    continue
                refused[said.refusal.code] += 1
                if refused[said.refusal.code] >= self._quorum.enough_to_refuse:
                    raise said.refusal.error() from None
            except Stalled:  # while proving what it listed: all brokers were asked for that
                raise
            except (Gone, TimeoutError, ProofError) as error:
                problems[name] = self._quorum.brokers.note(name, error)
        # A list of too few brokers could be a liar's. Others may answer later.
        if later is not None and heard < self._quorum.enough_to_refuse:
            raise later.refusal.error()
        if not heard and declined:
            raise declined[0].refusal.error()
        if not heard:
            raise Unreachable(problems, self._quorum.brokers.addresses)
        return found

    async def _list_of(self, name: str, table: Table[R, *K], prefix: bytes) -> list[bytes]:
        connection = await self._quorum.brokers.connection(name)
        keys: list[bytes] = []
        restarts = 0
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await connection.ask(ListKeys(0, prefix, keys[-1] if keys else b""), Listed)
            except Declined as said:
                if not keys or said.kind is not PermissionDenied or restarts == MAX_RESTARTS:
                    raise
                # The entry that the next page was to follow may have become hidden meanwhile.
                keys, restarts = [], restarts + 1
                continue
            if not all(_fits(table, key, prefix) for key in answer.keys) or (answer.more and not answer.keys):
                raise ProofError("it lists what was not asked for")
            keys += answer.keys
            if len(keys) > MAX_LISTED:
                raise ProofError(f"it lists more than {MAX_LISTED} entries")
            if not answer.more:
                return keys


def _fits(table: Table[R, *K], key: bytes, prefix: bytes) -> bool:
    """Whether a key may stand in a list. Honest brokers refuse to prove any other, and with it all that is asked for."""
    try:
        table.unpack(key)
    except ValueError:
        return False
    return key.startswith(prefix)
