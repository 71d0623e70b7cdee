"""The certified state under the search for damage: every node of the map against the one above it, every entry against its leaf."""

from __future__ import annotations

from collections.abc import Iterator

from parley.ledger import layout, state_map
from parley.replica.findings import Finding, FromMap, FromPeers, Put
from parley.store.interface import KeyValue


class StateScrub:
    """`root` is that of the state in the store."""

    def __init__(self, store: KeyValue) -> None:
        self._nodes = layout.StateNodes(store)

    def node(self, path: bytes, root: bytes) -> Iterator[Finding]:
        if self._nodes.get(path) is None and (path or root == state_map.EMPTY_ROOT):
            return  # it has gone since it was listed
        try:
            contents = state_map.check_node(self._nodes, path, root)
        except state_map.DamagedMap:
            yield self._damaged(path, root)
        except state_map.StrayNode:
            # A damaged branch may not know its own children any more: nothing is taken away below one.
            above = self._topmost(path, root)
            stray = Finding(layout.state_node(path), "belongs to no state", Put(None))
            yield stray if above is None else _node(above)
        else:
            for below, _ in contents.branches:
                if self._nodes.get(below) is None:
                    yield _node(below)

    def entry(self, key: bytes, value: bytes, root: bytes) -> Iterator[Finding]:
        try:
            proof = state_map.prove(self._nodes, key)
        except state_map.DamagedMap as damaged:
            yield self._damaged(damaged.path, root)
            return
        if state_map.verify(root, key, value, proof):
            return
        above = self._topmost(state_map.path_of(key), root)
        if above is not None:
            yield _node(above)
        elif state_map.verify(root, key, None, proof):
            yield Finding(layout.state(key), "belongs to no state", Put(None))
        else:
            yield Finding(layout.state(key), "is not what the state map says", FromPeers(key))

    def _damaged(self, path: bytes, root: bytes) -> Finding:
        above = self._topmost(path, root)
        return _node(path if above is None else above)

    def _topmost(self, path: bytes, root: bytes) -> bytes | None:
        """The highest damaged node above a path: what it says of those below it is worth nothing."""
        for depth in range(len(path)):
            above = path[:depth]
            try:
                state_map.check_node(self._nodes, above, root)
            except state_map.DamagedMap:
                return above
            except state_map.StrayNode:
                return None  # the way ends in a leaf further up
        return None


def _node(path: bytes) -> Finding:
    return Finding(layout.state_node(path), "is not the state map's node", FromMap(path))
