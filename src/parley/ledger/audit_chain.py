"""What the offline verifier looks at in the chain itself: links, certificates, and the history as it is stored."""

from __future__ import annotations

from parley.consensus.errors import Refused
from parley.consensus.types import Block, Instance
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.crypto.encoding import EncodingError, u64
from parley.crypto.hashing import DIGEST_SIZE
from parley.ledger import history, layout
from parley.ledger.audit_entries import Fault, decoded
from parley.store.interface import KeyValue


def check_links(
    store: KeyValue, verifier: Verifier, instance: Instance, block: Block, parent: Block | None
) -> None:
    """`parent`: None if the block before this one is not known."""
    key, header = layout.committed(block.height), block.header
    if header.justify.block != header.parent:
        raise Fault(key, "does not follow the block before it")
    if parent is not None and header.parent != parent.id:
        # The parent was linked to the one before it, so one of the two is wrong; a quorum certified what is named.
        raise Fault(key, "does not follow the block before it, or that one is not what was certified")
    if parent is not None and header.time <= parent.header.time:
        raise Fault(key, "is not later than the block before it")
    if (header.chain, header.shard, header.epoch) != (instance.chain, instance.shard, instance.epoch):
        raise Fault(key, "belongs to another network")
    if header.version != instance.version:
        raise Fault(
            key, f"was made by version {header.version} of the application, not by {instance.version}"
        )
    if merkle.root(block.batches) != header.batches_root:
        raise Fault(key, "lists other batches than its header commits to")
    try:
        # The quorum that certified the parent; what certifies the last block stands in the next one.
        verifier.qc(header.justify)
        if header.tc is not None:
            verifier.tc(header.tc)
    except Refused as refused:
        raise Fault(key, f"carries a certificate that does not hold: {refused}") from None
    if header.executed_height >= header.height:
        raise Fault(key, "claims results of blocks that were not executed before it")
    require_certified(store, block)


def require_certified(store: KeyValue, block: Block) -> None:
    """The next block names this one, so one that it does not name is not the one that a quorum certified."""
    above = _stored(store, block.height + 1)  # one that cannot be read is a fault of its own, in a moment
    if above is not None and above.header.parent != block.id and _is_certified_above(store, block.height):
        raise Fault(layout.committed(block.height), "is not the block that the next one follows")


def _is_certified_above(store: KeyValue, height: int) -> bool:
    """Whether the next block is itself the one that its follower names, so that it can be believed."""
    below, above = _stored(store, height + 1), _stored(store, height + 2)
    return below is not None and above is not None and above.header.parent == below.block().id


def is_listed(store: KeyValue, block: Block) -> bool:
    """Whether the block is what a quorum certified, whatever else is wrong with it: then the rest can be looked at."""
    above = _stored(store, block.height + 1)
    named = above is not None and above.header.parent == block.id
    return named and merkle.root(block.batches) == block.header.batches_root


def _stored(store: KeyValue, height: int) -> layout.StoredBlock | None:
    return layout.readable(layout.decode_block, store.get(layout.committed(height)))


def stored_history(store: KeyValue, size: int) -> merkle.MountainRange | None:
    """Of so many blocks, unchecked; None if the store does not have it whole."""
    peaks = [
        store.get(layout.history_node(level, (size >> level) - 1))
        for level in reversed(range(size.bit_length()))
        if size >> level & 1
    ]
    if not all(peak is not None and len(peak) == DIGEST_SIZE for peak in peaks):
        return None
    return merkle.MountainRange.decode(u64(size) + b"".join(filter(None, peaks)))


def fits(store: KeyValue, index: int) -> bool:
    """Whether the stored leaf leads to the head's root: then it is right, and what was hashed is not."""
    stored = store.get(layout.history_node(0, index))
    try:
        head = merkle.MountainRange.decode(
            decoded(layout.decode_head, layout.HEAD, store.get(layout.HEAD) or b"").history
        )
        if stored is None or len(stored) != len(head.root()):
            return False
        return history.climb(layout.history_nodes(store), (0, index), head.size, stored) == head.root()
    except (history.MissingNode, EncodingError):
        return False
