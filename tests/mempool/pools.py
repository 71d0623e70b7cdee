"""A pool, its disk, and the blocks that name its batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Send, SetTimer
from parley.consensus.types import Block, Instance, genesis_block
from parley.crypto import merkle
from parley.ledger.application import AdmittedBatch
from parley.mempool.messages import BatchesRequest
from parley.mempool.pool import BatchTimer, Effect, Intake, Limits, Pool, StoreBatch, admit_any, batch_digest

ME, SIZE = 0, 4
INSTANCE = Instance(bytes(32), 0, 0, SIZE, 1)
GENESIS = genesis_block(INSTANCE, bytes(32), 0)
ROOMY = Limits()
TIGHT = Limits(pending_batches=3, pending_bytes=100, block_bytes=60, expiry=5)


class Disk:
    """What a driver would have on disk: the sizes of all batches of every `StoreBatch`."""

    def __init__(self) -> None:
        self.written: dict[bytes, int] = {}

    def write(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StoreBatch):
                self.written[effect.digest] = len(effect.pending.data)


def new_pool(limits: Limits = ROOMY, disk: Disk | None = None) -> Pool:
    return Pool(ME, SIZE, limits, (disk or Disk()).written.get)


def block_of(*bodies: bytes, proposer: int = 1, view: int = 1) -> Block:
    names = tuple(batch_digest(body) for body in bodies)
    return block_named(names, proposer=proposer, view=view)


def block_named(names: tuple[bytes, ...], *, proposer: int = 1, view: int = 1) -> Block:
    header = replace(GENESIS.header, height=1, view=view, proposer=proposer, batches_root=merkle.root(names))
    return Block(header, names)


def body(number: int, size: int = 10) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def refusal(pool: Pool, sender: int, data: bytes, height: int = 0) -> Reason:
    with pytest.raises(Refused) as refused:
        pool.receive(sender, data, height)
    return refused.value.reason


def submit(
    pool: Pool, data: bytes, height: int = 0, admit: Callable[[bytes], AdmittedBatch] = admit_any
) -> list[Effect]:
    """A client's batch that is taken."""
    intake, effects = pool.submit(admit(data), height)
    assert intake is Intake.TAKEN
    assert effects
    return effects


def declined(
    pool: Pool, data: bytes, height: int = 0, admit: Callable[[bytes], AdmittedBatch] = admit_any
) -> Intake:
    """Why a client's batch is not taken."""
    intake, effects = pool.submit(admit(data), height)
    assert intake is not Intake.TAKEN
    assert effects == []
    return intake


def asked(effects: list[Effect]) -> list[tuple[int, tuple[bytes, ...]]]:
    return [
        (effect.to, effect.message.digests)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, BatchesRequest)
    ]


def timer_of(effects: list[Effect]) -> BatchTimer:
    (timer,) = [effect.timer for effect in effects if isinstance(effect, SetTimer)]
    return timer
