"""The pool of batches that wait for order.

A batch is stored before it is announced, and a block's batches are stored before the block is voted for (T20). The
pool forgets a batch only when execution has settled it, when it was ordered in vain too often, or when it is too old;
batches of abandoned blocks never left (T14).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from msgspec import Struct

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Broadcast
from parley.consensus.types import MAX_BATCHES, Block
from parley.crypto.hashing import digest
from parley.ledger.application import AdmittedBatch
from parley.mempool.fetch import BatchTimer, Fetches, Ready, TooLarge
from parley.mempool.fetch import Effect as FetchEffect
from parley.mempool.messages import MAX_BATCH_BYTES, BatchMessage
from parley.mempool.turns import Turns
from parley.model.bounded import put
from parley.model.names import word_of
from parley.model.refusals import Oversized
from parley.model.refusals import Refused as InadmissibleError

__all__ = [
    "BatchTimer",
    "Effect",
    "Intake",
    "Limits",
    "Pending",
    "Pool",
    "Ready",
    "StoreBatch",
    "TooLarge",
    "admit_any",
    "batch_digest",
]

SLACK = 2  # times its own limits that another broker's batches may take
REMEMBERED = 16_384  # settled or fetched digests that are not taken in again: those of the last seconds
FETCHED_BYTES = 8 * 1024 * 1024  # of fetched batches that are kept in memory until their block is executed


def batch_digest(data: bytes) -> bytes:
    """The name of a batch in a block."""
    return digest("batch/id", data)


def admit_any(data: bytes) -> AdmittedBatch:
    """For applications that have nothing to check before order but the size. Raises `parley.model.refusals.Refused`."""
    if not 0 < len(data) <= MAX_BATCH_BYTES:
        raise Oversized("batch", size=len(data), limit=MAX_BATCH_BYTES)
    return AdmittedBatch(batch_digest(data), b"", data)


class Intake(Enum):
    """What became of a client's batch at its entry broker."""

    TAKEN = "stored, and on its way to be ordered"
    KNOWN = "it waits already, or was settled lately"
    FULL = "as many batches wait at this broker as may"
    AUTHOR_FULL = "as many batches of its author wait at this broker as may"
    HALTED = "this broker takes no part"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one entry broker, and one author through it, may keep waiting here, what one block may hold, how long a batch may wait."""

    pending_batches: int = 4_096
    pending_of_author: int = 1_024
    pending_bytes: int = 64 * 1024 * 1024
    block_bytes: int = 8 * 1024 * 1024
    block_batches: int = MAX_BATCHES
    expiry: int = 10_000  # heights


class Pending(Struct, frozen=True, gc=False):
    """A stored batch that waits for order."""

    entry: int  # the broker it came from
    height: int  # when it came
    data: bytes
    author: bytes = b""
    session: bytes = b""
    sequence: int = 0
    following: int = 0


class StoreBatch(Struct, frozen=True):
    """Write a batch. `sync`: before what follows, because an announcement or a vote depends on it.

    `waits`: it is to be proposed here; if not, it is kept only because a block names it.
    """

    digest: bytes
    pending: Pending
    sync: bool
    waits: bool


Effect = StoreBatch | Broadcast | FetchEffect


@dataclass(slots=True)
class _Share:
    """One entry broker's part of the pool, oldest first."""

    waiting: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    size: int = 0


class Pool:
    """`stored` gives the size of a batch that is on disk although it does not wait, or None.

    `admit` names a batch, or refuses it before it costs anything but the look at it (P4).
    """

    def __init__(
        self,
        index: int,
        size: int,
        limits: Limits,
        stored: Callable[[bytes], int | None],
        admit: Callable[[bytes], AdmittedBatch] = admit_any,
    ) -> None:
        self._index = index
        self._limits = limits
        self._stored = stored
        self._admit = admit
        self._shares = [_Share() for _ in range(size)]
        self._pending: dict[bytes, Pending] = {}
        self._settled: OrderedDict[bytes, None] = OrderedDict()
        self._fetched: OrderedDict[bytes, None] = OrderedDict()
        # Bodies that were fetched for a vote, until their block is executed: read from disk, they would be checked again.
        self._fetched_bodies: OrderedDict[bytes, bytes] = OrderedDict()
        self._fetched_bytes = 0
        self._fetches = Fetches(index, size)
        self._turns = Turns(size)

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[bytes]:
        """The digests of the batches that wait for order."""
        return iter(self._pending)

    @property
    def size(self) -> int:
        """Bytes that wait for order."""
        return sum(share.size for share in self._shares)

    def restore(self, batches: Iterable[tuple[bytes, Pending]]) -> None:
        """Take up what was waiting before a restart, oldest first."""
        for name, pending in sorted(batches, key=lambda batch: batch[1].height):
            self._keep(name, pending)

    def submit(self, batch: AdmittedBatch, height: int) -> tuple[Intake, list[Effect]]:
        """A batch from a client of this broker, which was opened there: store it, then announce it to all."""
        self._turns.hasten(batch.digest)
        pending = _pending(batch, self._index, height)
        intake = self._room(batch.digest, pending)
        if intake is not Intake.TAKEN:
            return intake, []
        self._keep(batch.digest, pending)
        return intake, [
            StoreBatch(batch.digest, pending, sync=True, waits=True),
            *self._fetches.arrived(batch.digest, len(batch.body)),
            Broadcast(BatchMessage(batch.body)),
        ]

    def receive(self, sender: int, data: bytes, height: int) -> list[Effect]:
        """A batch from another broker, announced or asked for."""
        if not 0 < len(data) <= MAX_BATCH_BYTES:
            raise Refused(Reason.OVERSIZED, f"batch of {len(data)} bytes; 1 to {MAX_BATCH_BYTES} are allowed")
        try:
            admitted = self._admit(data)
        except InadmissibleError as refused:
            raise Refused(_reason_of(refused), refused.data.code) from None
        digest = admitted.digest
        wanted = self._fetches.want(digest)
        pending = _pending(admitted, sender, height)
        # A wanted batch is kept on disk for the block that names it. It takes no place in the pool: the broker that
        # happened to send it must not be charged for it, and the block's limits bound it.
        if wanted:
            put(self._fetched, digest, None, REMEMBERED)
            if self._fetches.votes_wait_for(digest):
                self._keep_body(digest, data)
            self._fetches.answered(sender)
        else:
            intake = self._room(digest, pending)
            # What was fetched is a second answer to a question, not an announcement.
            if intake is Intake.KNOWN or digest in self._fetched:
                raise Refused(Reason.REPLAYED, f"batch {digest.hex()}")
            if intake is not Intake.TAKEN:
                raise Refused(Reason.QUOTA, f"{intake.value} (entry broker {sender})")
            self._keep(digest, pending)
        return [
            StoreBatch(digest, pending, sync=wanted, waits=not wanted),
            *self._fetches.arrived(digest, len(data)),
        ]

    def body(self, name: bytes) -> bytes | None:
        """The batch of this digest, if it waits for order, or was fetched lately for a vote and is not executed yet."""
        pending = self._pending.get(name)
        return self._fetched_bodies.get(name) if pending is None else pending.data

    def payload(self, exclude: Collection[bytes]) -> tuple[bytes, ...]:
        """What a leader may propose: of each entry broker, its authors and their sessions in turn, within a block's limits (P4)."""
        chosen: list[bytes] = []
        room = self._limits.block_bytes
        for name in islice(self._turns.offer(exclude), self._limits.block_batches):
            room -= len(self._pending[name].data)
            if room < 0:
                break
            chosen.append(name)
        return tuple(chosen)

    def first(self, exclude: Collection[bytes]) -> bytes | None:
        """A batch that would be proposed now, if there is one. Those that are held or were put off are not (P29)."""
        digest = self._turns.first(exclude)
        return None if digest is None else self._pending[digest].data

    def fetch(self, block: Block, *, committed: bool) -> list[Effect]:
        """Get hold of the batches of `block`: from its proposer first, then from those who answered last, then the rest.

        Until it is committed they must fit a block, so that a lying leader cannot fill disks with what nobody accepts.
        """
        missing: dict[bytes, None] = {}
        room = None if committed else self._limits.block_bytes
        for name in block.batches:
            size = self._size(name)
            if size is None:
                missing[name] = None
            elif room is not None:
                room -= size
                if room < 0:  # before more is read from disk
                    return [TooLarge(block.id)]
        return [*self._fetches.begin(block, missing, room)] if missing else [Ready(block.id)]

    def on_timer(self, timer: BatchTimer) -> list[Effect]:
        return [*self._fetches.on_timer(timer)]

    def connected(self, member: int, *, up: bool) -> None:
        """There is a connection to another broker now, or there no longer is."""
        self._fetches.connected(member, up=up)

    def abandon(self, block: bytes) -> None:
        """Nobody waits for the batches of this block any more."""
        self._fetches.abandon(block)

    def settle(
        self,
        ordered: Collection[bytes],
        settled: Collection[bytes],
        height: int,
        put_off: Collection[bytes] = (),
    ) -> tuple[bytes, ...]:
        """A block was executed. Of what is not settled, `put_off` found no room, and the rest came too early.

        Returns the digests that no longer wait: those settled, given up or grown too old. What is given up may come again.
        """
        for name in ordered:
            self._drop_body(name)
            if name in settled:
                put(self._settled, name, None, REMEMBERED)
        done = self._turns.executed(ordered, settled, put_off, height)
        for name in done:
            self._forget(name)
        return (*done, *self._expire(height - self._limits.expiry))

    def _expire(self, height: int) -> Iterator[bytes]:
        """Forget what came before this height."""
        for share in self._shares:
            while (oldest := next(iter(share.waiting), None)) and self._pending[oldest].height < height:
                self._turns.remove(oldest)
                self._forget(oldest)
                yield oldest

    def _room(self, digest: bytes, batch: Pending) -> Intake:
        if digest in self._pending or digest in self._settled:
            return Intake.KNOWN
        share = self._shares[batch.entry]
        # What another broker has taken in within its limits may wait here a little longer than there.
        slack = 1 if batch.entry == self._index else SLACK
        full = len(share.waiting) >= slack * self._limits.pending_batches
        if full or share.size + len(batch.data) > slack * self._limits.pending_bytes:
            return Intake.FULL
        # By entry broker too: a lying one announces old batches again, and must not use up their author's quota elsewhere.
        waiting = self._turns.waiting_of(batch.entry, batch.author)
        if batch.author and waiting >= slack * self._limits.pending_of_author:
            return Intake.AUTHOR_FULL
        return Intake.TAKEN

    def _keep(self, name: bytes, pending: Pending) -> None:
        share = self._shares[pending.entry]
        self._pending[name] = pending
        span = pending.sequence, pending.following
        self._turns.add(name, pending.entry, pending.author, pending.session, span)
        share.waiting[name] = None
        share.size += len(pending.data)

    def _keep_body(self, digest: bytes, data: bytes) -> None:
        self._drop_body(digest)
        self._fetched_bodies[digest] = data
        self._fetched_bytes += len(data)
        while self._fetched_bytes > FETCHED_BYTES:
            self._drop_body(next(iter(self._fetched_bodies)))

    def _drop_body(self, digest: bytes) -> None:
        self._fetched_bytes -= len(self._fetched_bodies.pop(digest, b""))

    def _forget(self, name: bytes) -> None:
        pending = self._pending.pop(name)
        share = self._shares[pending.entry]
        del share.waiting[name]
        share.size -= len(pending.data)

    def _size(self, name: bytes) -> int | None:
        pending = self._pending.get(name)
        return self._stored(name) if pending is None else len(pending.data)


def _pending(batch: AdmittedBatch, entry: int, height: int) -> Pending:
    return Pending(entry, height, batch.body, batch.author, batch.session, batch.sequence, batch.following)


def _reason_of(refused: InadmissibleError) -> Reason:
    """Under which it is counted: the reason of the same name, if there is one."""
    return Reason.__members__.get(word_of(refused.code).upper(), Reason.INADMISSIBLE)
