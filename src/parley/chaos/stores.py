"""What brokers that have stopped hold on their disks: their chains, their roots at a common height, and an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from parley.applications import application_of
from parley.chaos.history import Audited, Chain
from parley.consensus.committee import committee_of
from parley.consensus.types import Roots
from parley.ledger import layout
from parley.ledger.audit import verify_store
from parley.ledger.layout import Head, StoredBlock
from parley.model.genesis import Genesis
from parley.store.disk import open_store
from parley.store.errors import StoreError
from parley.store.interface import Store

MAX_AUDITED = 10_000  # heights up to which stores are audited: it takes some milliseconds for each


@dataclass(frozen=True)
class _Store:
    """To be examined, by a process of its own."""

    broker: str
    path: Path
    height: int
    common: int  # the lowest of all brokers' heights
    replay: bool


def examine(genesis: Genesis, data: Mapping[str, Path], at: float) -> Iterator[Chain | Audited]:
    """Of each broker's store, several at a time. They must have no other user."""
    heads: dict[str, int] = {}
    for name, path in data.items():
        try:
            with open_store(path, create=False) as store:
                heads[name] = msgspec.msgpack.decode(store.get(layout.HEAD) or b"", type=Head).height
        except (StoreError, msgspec.DecodeError) as error:
            yield Audited(at, name, 0, str(error))
    common, longest = min(heads.values(), default=0), max(heads, key=heads.__getitem__, default="")
    # All chains have to be the same, so one of them is executed again.
    stores = [_Store(name, data[name], height, common, name == longest) for name, height in heads.items()]
    # Not copies of this process, which may have threads.
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for found in pool.map(partial(_examine, genesis, at), stores):
            yield from found


def _examine(genesis: Genesis, at: float, one: _Store) -> list[Chain | Audited]:
    with open_store(one.path, create=False) as store:
        blocks = tuple(_block(store, height) for height in range(one.height + 1))
        found: list[Chain | Audited] = [Chain(at, one.broker, blocks, one.common, *_roots(store, one.common))]
        if one.height <= MAX_AUDITED:
            shard = committee_of(genesis, None).shard  # networks of chaos have one
            mounted = application_of(genesis).mount(genesis, shard)
            verdict = verify_store(store, genesis, mounted, shard=shard, replay=one.replay)
            found.append(Audited(at, one.broker, verdict.heights, verdict.first_fault or ""))
    return found


def _block(store: Store, height: int) -> str:
    data = store.get(layout.committed(height))
    return "" if data is None else _blocks.decode(data).block().id.hex()


def _roots(store: Store, height: int) -> tuple[str, str]:
    data = store.get(layout.roots(height))
    if data is None:
        return "", ""
    roots = msgspec.msgpack.decode(data, type=Roots)
    return roots.state.hex(), roots.history.hex()


_blocks = msgspec.msgpack.Decoder(StoredBlock)
