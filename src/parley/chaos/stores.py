"""What brokers that have stopped hold on their disks: their chains, their roots at a common height, and an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

from parley.applications import application_of
from parley.chaos.history import Audited, Chain
from parley.consensus.types import Roots
from parley.ledger import layout
from parley.ledger.audit import verify_store
from parley.ledger.layout import Head, StoredBlock
from parley.ledger.store import Store, StoreError
from parley.model.genesis import Genesis

MAX_AUDITED = 10_000  # heights up to which a chain is executed again: it takes some milliseconds for each


def examine(genesis: Genesis, data: Mapping[str, Path], at: float) -> Iterator[Chain | Audited]:
    """Of each broker's store. They must have no other user."""
    with ExitStack() as closing:
        stores: dict[str, Store] = {}
        heads: dict[str, int] = {}
        for name, path in data.items():
            try:
                store = closing.enter_context(Store.open(path, create=False))
                heads[name] = msgspec.msgpack.decode(store.get(layout.HEAD) or b"", type=Head).height
                stores[name] = store
            except (StoreError, msgspec.DecodeError) as error:
                yield Audited(at, name, 0, str(error))
        common = min(heads.values(), default=0)
        for name, store in stores.items():
            blocks = tuple(_block(store, height) for height in range(heads[name] + 1))
            state, history = _roots(store, common)
            yield Chain(at, name, blocks, common, state, history)
            if heads[name] <= MAX_AUDITED:
                verdict = verify_store(store, genesis, application_of(genesis).mount(genesis))
                yield Audited(at, name, verdict.heights, verdict.first_fault or "")


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
