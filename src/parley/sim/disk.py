"""A disk that forgets what was not synced and tears what was being written when the power went.

The store is a log of atomic writes, as RocksDB's write-ahead log is: a synced write makes itself and all earlier ones
durable, and a crash loses a suffix of the rest. The safety file has two slots of two copies, overwritten in place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from random import Random

from parley.consensus.record import COPIES, SLOTS
from parley.replica.ports import PersistSafety, Write

__all__ = ["Disk"]


class Disk:
    """What one replica has stored; also the `KeyValue` that it reads."""

    def __init__(self, records: Sequence[bytes], genesis: Write) -> None:
        assert len(records) == SLOTS, "a new replica has a record in each slot"
        self.slots = [[record] * COPIES for record in records]
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[Write] = []
        self._visible: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self.write(Write(genesis.entries, sync=True))

    # -- what the replica reads -------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self._visible.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order."""
        first = last = bisect_left(self._keys, prefix)
        while last < len(self._keys) and self._keys[last].startswith(prefix):
            last += 1
        return iter([(key, self._visible[key]) for key in self._keys[first:last]])

    def frozen(self) -> Disk:
        """The disk as it is now, for reading only."""
        copy = object.__new__(Disk)
        copy._visible, copy._keys = dict(self._visible), list(self._keys)
        return copy

    # -- what the driver does ---------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        self._unsynced.append(write)
        for key, value in write.entries:
            if value is None:
                if self._visible.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._visible:
                    insort(self._keys, key)
                self._visible[key] = value
        if write.sync:
            self._make_durable(len(self._unsynced))

    def persist(self, effect: PersistSafety) -> None:
        self.slots[effect.slot] = [effect.record] * COPIES

    # -- what the world does to it ----------------------------------------------------------------------------

    def crash(self, chance: Random, during: Write | PersistSafety | None = None) -> None:
        """Lose power, possibly in the middle of a write: what was not durable may be gone or torn."""
        match during:
            case Write():
                self._unsynced.append(during)
            case PersistSafety():
                old = self.slots[during.slot]
                self.slots[during.slot] = [_torn(chance, copy, during.record) for copy in old]
            case None:
                pass
        self._make_durable(chance.randint(0, len(self._unsynced)))
        self._unsynced.clear()
        self._visible = dict(self._durable)
        self._keys = sorted(self._visible)

    def _make_durable(self, count: int) -> None:
        for write in self._unsynced[:count]:
            for key, value in write.entries:
                if value is None:
                    self._durable.pop(key, None)
                else:
                    self._durable[key] = value
        del self._unsynced[:count]


def _torn(chance: Random, old: bytes, new: bytes) -> bytes:
    """One copy after a crash in the middle of overwriting `old` with `new`."""
    cut = chance.randrange(1, len(new))
    flipped = bytearray(new)
    flipped[chance.randrange(len(new))] ^= 1 << chance.randrange(8)
    return chance.choice((old, new, new[:cut], new[:cut] + old[cut:], bytes(flipped)))
