"""One leaf's proof out of a proof of several: a proof file shows one receipt and nothing of its neighbours."""

from __future__ import annotations

from msgspec import structs

from parley.crypto import merkle
from parley.ledger.proofs import BlockProof


def narrowed(proof: BlockProof, at: int) -> BlockProof:
    """The proof of one of its leaves alone; the others become nodes of the path."""
    multi = proof.receipts
    target = position = multi.indices[at]
    level = dict(zip(multi.indices, map(merkle.leaf_hash, proof.leaves), strict=True))
    siblings, path = iter(multi.siblings), list[bytes]()
    last = multi.size - 1
    while last:
        parents: dict[int, bytes] = {}
        for place, node in level.items():
            if place >> 1 in parents:  # made together with its left sibling
                continue
            if place == last and not place & 1:  # the last of an odd level moves up as it is
                parents[place >> 1] = node
                continue
            other = level[place ^ 1] if place ^ 1 in level else next(siblings)
            if place >> 1 == position >> 1:
                path.append(other if place == position else node)
            pair = (other, node) if place & 1 else (node, other)
            parents[place >> 1] = merkle.node_hash(*pair)
        level, position, last = parents, position >> 1, last >> 1
    receipts = merkle.MultiProof(multi.size, (target,), tuple(path))
    return structs.replace(proof, leaves=(proof.leaves[at],), receipts=receipts)
