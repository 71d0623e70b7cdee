"""A disk that forgets what was not synced and tears what was being written when the power went.

The store is a log of atomic writes, as a broker's write-ahead log is: a synced write makes itself and all earlier ones
durable, and a crash loses a suffix of the rest. The safety file has two slots of two copies, overwritten in place, one
copy after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from parley.consensus.record import COPIES, SLOTS
from parley.replica.ports import PersistSafety, Write
from parley.store.memory import MemoryStore


class Disk:
    """What one replica has stored; also the `StoreReader` that it reads."""

    def __init__(self, records: Sequence[bytes], genesis: Write) -> None:
        assert len(records) == SLOTS, "a new replica has a record in each slot"
        self.slots = [[record] * COPIES for record in records]
        self._durable: dict[bytes, bytes] = {}
        self._unsynced: list[Write] = []
        self._visible = visible = MemoryStore()  # what the replica reads
        self.get, self.scan, self.frozen = visible.get, visible.scan, visible.frozen
        self.last_at_or_before = visible.last_at_or_before
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
