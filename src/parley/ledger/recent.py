"""The store as it was a few blocks ago: a proof is made for the state of a certified header, and that one lies behind.

Whoever remembers what blocks replaced sees all that execution reads and writes, so it also keeps what was used lately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from parley.ledger import layout
from parley.store.interface import KeyValue, Lookup

LIMIT = 64  # blocks that can be undone
MAX_BYTES = 256 * 1024 * 1024  # of keys and old values; above it fewer blocks can be undone
# Of entries that execution used lately: to ask the store takes longer than to use them.
WARM_BYTES = 32 * 1024 * 1024
_ENTRY_COST = 250  # bytes that such an entry takes besides its own

_STATE = (layout.ENTRIES, layout.NODES)

Undo = dict[bytes, bytes | None]


class HeightError(LookupError):
    """The state of a height cannot be read here."""

    def __init__(self, height: int, what: str) -> None:
        super().__init__(f"The state of height {height} {what}")
        self.height = height


class TooOld(HeightError):  # noqa: N818 - the condition, not an error of the caller
    def __init__(self, height: int, lowest: int) -> None:
        super().__init__(height, f"is no longer kept, only that of {lowest} and later. Ask for a newer one.")
        self.lowest = lowest


class NotYet(HeightError):  # noqa: N818 - the condition, not an error of the caller
    def __init__(self, height: int, newest: int) -> None:
        super().__init__(
            height, f"is not there yet: block {newest} is the last one executed. Ask again later."
        )
        self.newest = newest


class RecentStates:
    """Keeps, for each of the last blocks, what its write replaced; `store` is as of `height`."""

    def __init__(self, store: Lookup, height: int) -> None:
        self._store = store
        self._height = height
        self._undos: deque[Undo] = deque()  # oldest first, up to the block at `height`
        self._sizes: deque[int] = deque()
        self._read: dict[int, Undo] = {}  # by height, of blocks that are executed and not written yet
        self._warm = _Warm()

    @property
    def lowest(self) -> int:
        """The oldest height that can be read."""
        return self._height - len(self._undos)

    def watched(self, height: int, state: KeyValue) -> KeyValue:
        """The state for the execution of this block: what is read there is not read again before it is replaced."""
        found = self._read[height] = {}
        return _Watched(state, found, self._warm)

    def executed(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Keep what a block that was executed on a watched state will write: the next one may read it before the store has it."""
        for key, value in writes:
            if key.startswith(_STATE) or key in self._warm:  # others are mostly never read again
                self._warm.put(key, value)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Something else than a block has written these entries of the state."""
        for key in keys:
            self._warm.drop(key)

    def before_write(self, height: int, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Remember what a block's entries will replace. They must be written before anything else is read or written."""
        assert height == self._height + 1, "blocks are applied in order"
        read = self._read.pop(height, {})
        undo = {key: read[key] if key in read else self._store.get(key) for key, _ in entries}
        self._undos.append(undo)
        self._sizes.append(sum(len(key) + len(old or b"") for key, old in undo.items()))
        self._height = height
        while len(self._undos) > LIMIT or sum(self._sizes) > MAX_BYTES:
            self._undos.popleft()
            self._sizes.popleft()

    def at(self, height: int) -> View:
        """The state after the block of this height."""
        self._require(height)
        return View(self, height)

    def replaced_after(self, height: int) -> Undo:
        """What the blocks after this height replaced: laid over the store as it is now, the state of then."""
        self._require(height)
        found: Undo = {}
        for undo in islice(self._undos, height - self.lowest, None):
            found = undo | found
        return found

    def _require(self, height: int) -> None:
        if height < self.lowest:
            raise TooOld(height, self.lowest)
        if height > self._height:
            raise NotYet(height, self._height)

    def _get(self, height: int, key: bytes) -> bytes | None:
        self._require(height)
        # The first block after `height` that wrote the key replaced the value that it had then.
        for undo in islice(self._undos, height - self.lowest, None):
            if key in undo:
                return undo[key]
        return self._store.get(key)


class View:
    """The store as of one height, also while later blocks are applied, until that height is no longer kept."""

    __slots__ = ("_recent", "height")

    def __init__(self, recent: RecentStates, height: int) -> None:
        self._recent = recent
        self.height = height

    def get(self, key: bytes) -> bytes | None:
        return self._recent._get(self.height, key)  # noqa: SLF001 - a view is a part of it


class _Warm:
    """Entries by key, with None for those that do not exist. Those that were not used for long go, all at once.

    In plain dictionaries, which the collector of cycles does not look at as long as they hold bytes.
    """

    def __init__(self) -> None:
        self._new: dict[bytes, bytes | None] = {}
        self._old: dict[bytes, bytes | None] = {}  # unless they are in `_new`
        self._bytes = 0  # of `_new`

    def get(self, key: bytes, read: Callable[[bytes], bytes | None]) -> bytes | None:
        if key in self._new:
            return self._new[key]
        value = self._old[key] if key in self._old else read(key)
        self.put(key, value)
        return value

    def __len__(self) -> int:
        return len(self._new.keys() | self._old.keys())

    def __contains__(self, key: bytes) -> bool:
        return key in self._new or key in self._old

    def drop(self, key: bytes) -> None:
        self._old.pop(key, None)
        if key in self._new:
            self._bytes -= _cost(key, self._new.pop(key))

    def put(self, key: bytes, value: bytes | None) -> None:
        if key in self._new:
            self._bytes -= _cost(key, self._new[key])
        self._new[key] = value
        self._bytes += _cost(key, value)
        if self._bytes > WARM_BYTES // 2:
            self._old, self._new, self._bytes = self._new, {}, 0


def _cost(key: bytes, value: bytes | None) -> int:
    return _ENTRY_COST + len(key) + len(value or b"")


class _Watched:
    """A view of the state that notes what is read through it."""

    def __init__(self, state: KeyValue, found: Undo, warm: _Warm) -> None:
        self._read = state.get
        self._found = found
        self._warm = warm
        self.scan = state.scan

    def get(self, key: bytes) -> bytes | None:
        value = self._found[layout.APPLICATION + key] = self._warm.get(key, self._read)
        return value
