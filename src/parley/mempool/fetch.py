"""Fetching the batches that a block names and this broker lacks: from one member at a time, until all are here (T20)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from parley.consensus.events import Send, SetTimer
from parley.consensus.types import Block
from parley.mempool.messages import BatchesRequest
from parley.model.bounded import take_off

FETCH_GRACE = 20  # ms in which announced batches may still overtake the block that names them
FETCH_RETRY = 300  # ms before the next member is asked, at first
MAX_DOUBLINGS = 4
MAX_FETCHES = 64  # blocks whose batches are being fetched


@dataclass(frozen=True, slots=True)
class BatchTimer:
    """Runs while batches of `block` are being fetched."""

    block: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Every batch of this block is stored."""

    block: bytes


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The batches of this block exceed the limit of a block: no vote for it."""

    block: bytes


Effect = Ready | TooLarge | Send | SetTimer[BatchTimer]


@dataclass(slots=True)
class _Fetch:
    missing: dict[bytes, None]  # a set with a fixed order
    peers: tuple[int, ...]
    room: int | None  # bytes that may still come, or None for a committed block
    attempt: int = 0


class Fetches:
    """All fetches under way, by block."""

    def __init__(self, index: int, size: int) -> None:
        self._index = index
        self._size = size
        self._running: OrderedDict[bytes, _Fetch] = OrderedDict()
        self._wanted: Counter[bytes] = Counter()  # digest -> fetches that miss it
        self._answers = [0] * size  # when each member answered last, by a clock of answers
        self._clock = 0
        self._unreachable: set[int] = set()

    def connected(self, member: int, *, up: bool) -> None:
        """Members without a connection are asked last."""
        (self._unreachable.discard if up else self._unreachable.add)(member)

    def want(self, name: bytes) -> bool:
        return name in self._wanted

    def votes_wait_for(self, digest: bytes) -> bool:
        """Whether a block that is not committed yet lacks this batch, so that a vote waits for it."""
        return any(fetch.room is not None and digest in fetch.missing for fetch in self._running.values())

    def begin(self, block: Block, missing: dict[bytes, None], room: int | None) -> list[Effect]:
        """Fetch what is missing; `room` bounds its bytes as long as only a vote waits for it."""
        if (running := self._running.get(block.id)) is not None:
            running.room = room
            # Committed in its grace: what was not announced until now will not be.
            return self._ask(block.id, running) if room is None and not running.attempt else []
        if len(self._running) >= MAX_FETCHES:
            self._make_room()
        fetch = _Fetch(missing, self._peers(block.header.proposer), room)
        self._running[block.id] = fetch
        self._wanted.update(missing.keys())
        if room is None:  # nobody announces what was committed
            return self._ask(block.id, fetch)
        return [SetTimer(BatchTimer(block.id, fetch.attempt), FETCH_GRACE)]

    def arrived(self, name: bytes, size: int) -> list[Effect]:
        """A batch is here, by whatever way it came."""
        effects: list[Effect] = []
        for block, fetch in list(self._running.items()):
            if name not in fetch.missing:
                continue
            del fetch.missing[name]
            take_off(self._wanted, name)
            if fetch.room is not None:
                fetch.room -= size
            if fetch.room is not None and fetch.room < 0:
                self.abandon(block)
                effects.append(TooLarge(block))
            elif not fetch.missing:
                del self._running[block]
                effects.append(Ready(block))
        return effects

    def answered(self, member: int) -> None:
        """This member sent a batch that was asked for."""
        self._clock += 1
        self._answers[member] = self._clock

    def on_timer(self, timer: BatchTimer) -> list[Effect]:
        fetch = self._running.get(timer.block)
        if fetch is None or fetch.attempt != timer.attempt:
            return []
        return self._ask(timer.block, fetch)

    def abandon(self, block: bytes) -> None:
        if (fetch := self._running.pop(block, None)) is not None:
            for name in fetch.missing:
                take_off(self._wanted, name)

    def _ask(self, block: bytes, fetch: _Fetch) -> list[Effect]:
        if not fetch.peers:  # a single broker, whose store has lost a batch: nobody can help
            return []
        peer = fetch.peers[fetch.attempt % len(fetch.peers)]
        # Ever longer: asking again while an answer is still on its way would fill a slow link with copies.
        delay = FETCH_RETRY << min(fetch.attempt, MAX_DOUBLINGS)
        fetch.attempt += 1
        return [
            Send(peer, BatchesRequest(tuple(fetch.missing))),
            SetTimer(BatchTimer(block, fetch.attempt), delay),
        ]

    def _peers(self, proposer: int) -> tuple[int, ...]:
        """The proposer, who had them; then those who answered last; then the rest. First of all those who can be reached."""
        others = [member for member in range(self._size) if member != self._index]
        others.sort(
            key=lambda member: (
                member in self._unreachable,
                member != proposer,
                -self._answers[member],
                (member - proposer) % self._size,
            )
        )
        return tuple(others)

    def _make_room(self) -> None:
        """Give up the oldest fetch, rather one that only a vote waits for than one that execution waits for."""
        unvoted = (block for block, fetch in self._running.items() if fetch.room is not None)
        self.abandon(next(unvoted, next(iter(self._running))))
