"""The kind of store that brokers have on their disks. Another kind takes its place here, and nothing else has to change.

open_store   the store in a directory, perhaps a new one
holds_store  whether a directory looks like a store, damaged or not
STORED       the names of the files of a store as a regular expression, for backups
copy_unused  copies a store that no process has open
unused       keeps others from writing to a store
METRICS      what `Store.metrics` may tell
OPEN_FILES   how many files an open store uses at most
"""

from __future__ import annotations

from parley.store.rocksdb.files import STORED, copy_unused, holds_store, unused
from parley.store.rocksdb.metrics import METRICS
from parley.store.rocksdb.options import OPEN_FILES
from parley.store.rocksdb.store import open_store

__all__ = ["METRICS", "OPEN_FILES", "STORED", "copy_unused", "holds_store", "open_store", "unused"]
