"""What a broker without a usable state asks for, piece by piece, and how each piece is checked: first the nodes of the
state map, then the entries, then the blocks that consensus needs. Nobody is believed; members and time are the caller's.
"""

from __future__ import annotations

from parley.consensus.errors import Reason, Refused
from parley.consensus.forest import Forest
from parley.consensus.types import Block
from parley.consensus.verify import Verifier
from parley.ledger import layout, state_map
from parley.replica.chain import Entries
from parley.replica.snapshots import least
from parley.store.interface import KeyValue
from parley.sync.messages import (
    MAX_PATHS,
    BlocksRequest,
    BlocksResponse,
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
)


class NodesFetch:
    """The state map from its root down: each node must have the hash that the one above gives it.

    Depth first, so that what is still to be asked for stays small beside the map.
    """

    def __init__(self, offer: SnapshotOffer, store: KeyValue) -> None:
        self._height = offer.header.executed_height
        self._nodes = layout.StateNodes(store)
        root = offer.header.state_root
        self._open = [] if root == state_map.EMPTY_ROOT else [(b"", root)]
        self.leaves = 0

    @property
    def done(self) -> bool:
        return not self._open

    def question(self) -> NodesRequest:
        return NodesRequest(self._height, tuple(path for path, _ in self._asked()))

    def take(self, answer: SnapshotNodes) -> Entries:
        asked = self._asked()
        if (answer.height, answer.first) != (self._height, asked[0][0]):
            raise Refused(Reason.UNSOLICITED, "nodes of a state map")
        if len(answer.nodes) != len(asked):
            raise Refused(Reason.BAD_ANSWER, f"{len(answer.nodes)} nodes instead of {len(asked)}")
        found = []
        for (path, hash_), node in zip(asked, answer.nodes, strict=True):
            contents = state_map.check(path, hash_, node)
            if contents is None:
                raise Refused(Reason.BAD_ANSWER, "a node of the state map is not the one above it names")
            found.append(contents)
        del self._open[-len(asked) :]
        for contents in found:
            self._open += contents.branches
            self.leaves += contents.leaves
        return self._written(asked, answer.nodes)

    def _asked(self) -> list[tuple[bytes, bytes]]:
        return self._open[-MAX_PATHS:]

    def _written(self, asked: list[tuple[bytes, bytes]], nodes: tuple[bytes, ...]) -> Entries:
        written: dict[bytes, bytes] = {}
        for (path, _), node in zip(asked, nodes, strict=True):
            if not path or not state_map.is_leaf(node):
                written[path] = node
                continue
            # Somebody has called a leaf a branch, which the hash of the node above does not show.
            above = written.get(path[:-1]) or self._nodes.get(path[:-1])
            assert above is not None, "a node is asked for after the one above it is written"
            written[path[:-1]] = state_map.with_leaf(path, above, node)
        return [(layout.state_node(path), node) for path, node in written.items()]


class EntriesFetch:
    """The entries in key order: each must be one of the map's. Whoever leaves some out shows at the end, by the count."""

    def __init__(self, offer: SnapshotOffer, store: KeyValue, leaves: int) -> None:
        self._height = offer.header.executed_height
        self._nodes = layout.StateNodes(store)
        self._missing = leaves
        self._after = b""
        self.done = leaves == 0

    @property
    def complete(self) -> bool:
        """Whether every leaf of the map has its entry now: all that came are of the map, and each came once."""
        return self._missing == 0

    def question(self) -> EntriesRequest:
        return EntriesRequest(self._height, self._after)

    def take(self, answer: SnapshotEntries) -> Entries:
        if (answer.height, answer.after) != (self._height, self._after):
            raise Refused(Reason.UNSOLICITED, "entries of a state")
        size = sum(len(layout.state(key)) + len(value) for key, value in answer.entries)
        if answer.more and (not answer.entries or size < least()):
            raise Refused(Reason.BAD_ANSWER, "few entries, but more to come")
        last = self._after
        for key, value in answer.entries:
            if key <= last or not state_map.holds(self._nodes, key, value):
                raise Refused(Reason.BAD_ANSWER, "an entry that is not of this state, or not in its place")
            last = key
        self._after = last
        self._missing -= len(answer.entries)
        self.done = not answer.more
        return [(layout.state(key), value) for key, value in answer.entries]


class BlocksFetch:
    """The chain around the snapshot's height: as far down as consensus reads, and up to a certified header that shows
    that the block of this height is final.
    """

    def __init__(self, offer: SnapshotOffer, verifier: Verifier, depth: int, memory: int) -> None:
        self._offer = offer
        self._verifier = verifier
        self._needs = (depth, memory)
        self._height = offer.header.executed_height
        self._first = max(1, self._height - max(memory, depth + 1))
        self._blocks: list[Block] = []
        self.done = False

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Parent before child. The last is the first one whose header names the snapshot's height, or a higher one."""
        return tuple(self._blocks)

    def question(self) -> BlocksRequest:
        return BlocksRequest(self._offer.qc.block, self._next - 1)

    def restart(self) -> None:
        """All blocks are to come from one member: another one may be on a branch that was abandoned."""
        self._blocks.clear()

    def take(self, answer: BlocksResponse) -> Entries:
        blocks = tuple(stored.block() for stored in answer.blocks)
        if answer.target != self._offer.qc.block or not blocks or blocks[0].height != self._next:
            raise Refused(Reason.UNSOLICITED, "blocks")
        self._verifier.chain(blocks, self._offer.qc if answer.qc is None else answer.qc)
        if self._blocks and blocks[0].parent != self._blocks[-1].id:
            raise Refused(Reason.BAD_ANSWER, "blocks that do not continue those before")
        for block in blocks:
            self._blocks.append(block)
            # A quorum has certified this header, so what it names, and all that lies below, is final.
            if block.height > self._height and block.header.executed_height >= self._height:
                self._finish()
                break
        return []

    @property
    def _next(self) -> int:
        return self._first + len(self._blocks)

    def _finish(self) -> None:
        """Done, unless the block at the snapshot's height says that consensus needs older ones than usual."""
        block = self._blocks[self._height - self._first]
        lowest = max(1, Forest.needed_history(block.header, *self._needs))
        self.done = lowest >= self._first
        if not self.done:
            self._first = lowest
            self._blocks.clear()
