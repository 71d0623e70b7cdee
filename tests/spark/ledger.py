"""The ledger of a shard without processes, block by block as a client of auditors would have verified it."""

from __future__ import annotations

import msgspec
from tests.ledger.shard import GENESIS, Shard, told

from parley.applications import DATA_SHARD
from parley.client.ledger import VerifiedBlock
from parley.ledger import layout
from parley.model.batches import open_batch

__all__ = ["verified"]


def verified(shard: Shard | None = None) -> list[VerifiedBlock]:
    """The blocks of a real ledger, as a client would have them."""
    store = (shard or told()).store.entries
    heights = sorted(int.from_bytes(key[2:], "big") for key in store if key.startswith(b"c/"))
    found = []
    for height in heights[1:]:
        stored = msgspec.msgpack.decode(store[layout.committed(height)], type=layout.StoredBlock)
        if layout.receipts(height) not in store:
            break
        bodies = [store[layout.batch(name)] for name in stored.batches]
        found.append(
            VerifiedBlock(
                stored.header,
                stored.header.id(),
                stored.batches,
                layout.decode_receipts(store[layout.receipts(height)]),
                tuple(bodies),
                tuple(open_batch(body, GENESIS.chain, 0)[1] for body in bodies),
                (None,) * len(bodies),
                DATA_SHARD.decode_leaf,
            )
        )
    return found
