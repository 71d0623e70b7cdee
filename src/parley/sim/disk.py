"""A disk that forgets what was not synced and tears what was being written when the power went.

The store is a log of atomic writes, as RocksDB's write-ahead log is: a synced write makes itself and all earlier ones
durable, and a crash loses a suffix of the rest. The safety file has two slots of two copies, overwritten in place, one
copy after the other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random

from parley.consensus.record import COPIES, SLOTS
from parley.replica.ports import PersistSafety, Write


class Entries:
    """A `KeyValue` in memory that can be written: what disks hold, and the observer's own copy of the state."""

    def __init__(self, values: Mapping[bytes, bytes] | None = None) -> None:
        self.reset(values or {})

    def reset(self, values: Mapping[bytes, bytes]) -> None:
        self._values, self._keys = dict(values), sorted(values)

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every entry under `prefix` as of now, in key order."""
        return self.scan_from(prefix, prefix)

    def scan_from(self, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Like `scan`, but only the entries from the key `start` on."""
        first = last = bisect_left(self._keys, max(prefix, start))
        while last < len(self._keys) and self._keys[last].startswith(prefix):
            last += 1
        return iter([(key, self._values[key]) for key in self._keys[first:last]])

    def write(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        """In order; a value of None deletes."""
        for key, value in entries:
            if value is None:
                if self._values.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._values:
                    insort(self._keys, key)
                self._values[key] = value

    def copy(self) -> Entries:
        other = Entries()
        other._values, other._keys = dict(self._values), list(self._keys)
        return other


class Disk:
    """What one replica has stored; also the `KeyValue` that it reads."""

    def __init__(self, records: Sequence[bytes], genesis: Write) -> None:
        assert len(records) == SLOTS, "a new replica has a record in each slot"
        self.slots = [[record] * COPIES for record in records]
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[Write] = []
        self._visible = visible = Entries()  # what the replica reads
        self.get, self.scan, self.scan_from, self.frozen = (
            visible.get,
            visible.scan,
            visible.scan_from,
            visible.copy,
        )
        self.write(Write(genesis.entries, sync=True))

    # -- what the driver does ---------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        self._unsynced.append(write)
        self._visible.write(write.entries)
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
                first, second = (_torn(chance, copy, during.record) for copy in old)
                # The second copy is begun when the first is on disk.
                self.slots[during.slot] = [first, second if first == during.record else old[1]]
            case None:
                pass
        self._make_durable(chance.randint(0, len(self._unsynced)))
        self._unsynced.clear()
        self._visible.reset(self._durable)

    def flip(self, key: bytes, chance: Random) -> bool:
        """Change one bit of an entry that lies on the disk, unnoticed by anybody; whether there is one."""
        value = self._durable.get(key)
        if (
            not value or self._visible.get(key) != value
        ):  # an overwrite is on its way: it would mend the entry
            return False
        damaged = _flipped(chance, value)
        self._durable[key] = damaged
        self._visible.write([(key, damaged)])
        return True

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
    flipped = _flipped(chance, new)
    return chance.choice((old, new, new[:cut], new[:cut] + old[cut:], flipped))


def _flipped(chance: Random, value: bytes) -> bytes:
    changed = bytearray(value)
    changed[chance.randrange(len(value))] ^= 1 << chance.randrange(8)
    return bytes(changed)
