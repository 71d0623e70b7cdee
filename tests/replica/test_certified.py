"""A certified header is shown once its results are computed here, and proves every receipt up to its executed height."""

from __future__ import annotations

import msgspec
from tests.replica.driver import Cluster

from parley.consensus.types import Roots
from parley.crypto import merkle
from parley.crypto.encoding import u64
from parley.ledger import history
from parley.ledger.proofs import history_leaf_of
from parley.sim.counter import encode_batch


def loaded() -> Cluster:
    cluster = Cluster().start()
    for round_ in range(200):
        if round_ % 3 == 0:
            cluster.submit(round_ % 4, encode_batch(round_ % 4, round_ // 12, b"load"))
        if round_ == 100:
            cluster.restart(1)
        cluster.round()
    return cluster


def test_a_certified_header_holds_the_results_that_were_computed_here() -> None:
    for member in loaded().members:
        assert len(member.certified) > 50
        roots = [msgspec.msgpack.decode(value, type=Roots) for value in member.roots()]
        for effect in member.certified:
            header = effect.header
            assert (effect.qc.block, effect.qc.view) == (header.id(), header.view)
            assert roots[header.executed_height] == Roots(header.state_root, header.history_root)


def test_certified_headers_go_on_with_their_views() -> None:
    for member in loaded().members:
        views = [effect.qc.view for effect in member.certified]
        assert views == sorted(views)


def test_any_receipt_can_be_proven_from_the_newest_certified_header() -> None:
    member = loaded().members[1]
    header = member.certified[-1].header
    assert header.executed_height > 20
    for height in range(1, header.executed_height + 1):
        block = member.blocks()[height]
        leaves = msgspec.msgpack.decode(member.store.entries[b"e/" + u64(height)], type=tuple[bytes, ...])
        proof = history.prove(lambda node: member.store.get(b"h/" + node), height - 1, header.executed_height)
        leaf = history_leaf_of(height, block.id, leaves)
        assert merkle.verify(header.history_root, leaf, proof)
        assert len(leaves) == len(block.batches)
