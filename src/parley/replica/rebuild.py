"""A damaged node of the state map, made again from the nodes below it and the entries whose leaves it holds."""

from __future__ import annotations

from itertools import islice

from parley.ledger import layout, state_map
from parley.replica.memory import Overlay

SLICE = 64  # entries of the state that are looked at in one step
ATTEMPTS = 3  # because the state may change between two slices


class Rebuild:
    """One node at a time, a slice of the state at a time. What is made is right if the node above has its hash."""

    def __init__(self, store: Overlay) -> None:
        self._store = store
        self._nodes = layout.StateNodes(store)
        self._path: bytes | None = None
        self._after = layout.STATE
        self._leaves: dict[int, bytes] = {}
        self._failed = 0

    @property
    def is_running(self) -> bool:
        return self._path is not None

    def stop(self) -> None:
        self._path = None

    def go_on(self, path: bytes, root: bytes) -> bytes | None:
        """The node, once all entries have been looked at. Raises `DamagedMap` if they and the nodes do not give it."""
        if self._path != path:
            self._path, self._after, self._leaves = path, layout.STATE, {}
        seen = 0
        for key, value in islice(self._store.scan(layout.STATE, self._after), SLICE):
            self._note(key[len(layout.STATE) :], value)
            self._after, seen = key + b"\0", seen + 1
        if seen == SLICE:
            return None
        self._path = None
        try:
            node = state_map.rebuilt_node(self._nodes, path, self._leaves)
            state_map.check_node(_With(self._nodes, path, node), path, root)
        except state_map.DamagedMap:
            self._failed += 1
            if self._failed < ATTEMPTS:
                return None
            raise
        self._failed = 0
        return node

    def _note(self, key: bytes, value: bytes) -> None:
        way, path = state_map.path_of(key), self._path
        assert path is not None, "a node is being made"
        if not way.startswith(path):
            return
        below = way[: len(path) + 1]
        if self._nodes.get(below) is None:
            # Two leaves where there should be one: the node below is missing as well, and the hash will not fit.
            self._leaves.setdefault(below[-1], state_map.leaf_entry(key, value))


class _With:
    """The nodes with one of them replaced."""

    def __init__(self, nodes: layout.StateNodes, path: bytes, node: bytes) -> None:
        self._nodes = nodes
        self._path = path
        self._node = node

    def get(self, path: bytes, /) -> bytes | None:
        return self._node if path == self._path else self._nodes.get(path)
