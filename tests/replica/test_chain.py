"""The write that ends a join: what a replica starts from, and nothing that is not certified."""

from __future__ import annotations

from tests.consensus.chains import Committee, roots_at

from parley.consensus.types import Roots
from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.ledger.layout import Head, StoredBlock
from parley.replica.chain import joined_entries
from parley.sync.messages import SnapshotOffer

COMMITTEE = Committee()
CHAIN = [COMMITTEE.genesis, *COMMITTEE.chain(*range(1, 13))]
HEIGHT = 8


def test_a_join_writes_blocks_roots_and_head_of_the_snapshots_height_and_what_is_to_be_filled_in() -> None:
    offer = SnapshotOffer(CHAIN[11].header, COMMITTEE.qc(CHAIN[11]), b"history")
    assert offer.header.executed_height == HEIGHT
    assert [block.header.executed_height for block in CHAIN[HEIGHT:]] == [5, 6, 7, 8, 9]
    blocks = {layout.committed(height): CHAIN[height] for height in (0, 5, 6, 7, 8)}
    blocks |= {layout.uncommitted(block.id): block for block in CHAIN[9:]}
    roots = {height: roots_at(height) for height in (5, 6, 7, 8)}
    roots[0] = Roots(COMMITTEE.genesis.header.state_root, COMMITTEE.genesis.header.history_root)
    entries = joined_entries(COMMITTEE.genesis, offer, CHAIN[5:])
    assert len(dict(entries)) == len(entries)
    assert dict(entries) == {
        **{key: layout.encode(StoredBlock.of(block)) for key, block in blocks.items()},
        **{layout.roots(height): layout.encode(root) for height, root in roots.items()},
        layout.HEAD: layout.encode(Head(HEIGHT, b"history")),
        layout.BACKFILL: u64(HEIGHT + 1),
    }
