"""Numbers that RocksDB reports about itself."""

from __future__ import annotations

from parley.store.interface import Metric

# By RocksDB's own names.
PROPERTIES = {
    "rocksdb.block-cache-usage": Metric(
        "parley_rocksdb_block_cache_bytes", "Bytes in the block cache of RocksDB."
    ),
    "rocksdb.cur-size-all-mem-tables": Metric(
        "parley_rocksdb_memtable_bytes", "Bytes in the memtables of RocksDB."
    ),
    "rocksdb.total-sst-files-size": Metric(
        "parley_rocksdb_sst_bytes", "Bytes in the table files of RocksDB."
    ),
    "rocksdb.estimate-pending-compaction-bytes": Metric(
        "parley_rocksdb_pending_compaction_bytes", "Bytes that RocksDB still has to compact."
    ),
    "rocksdb.num-running-compactions": Metric(
        "parley_rocksdb_running_compactions", "Compactions that run now."
    ),
    "rocksdb.is-write-stopped": Metric(
        "parley_rocksdb_write_stopped", "1 while RocksDB takes no writes until it has tidied up."
    ),
}
METRICS = tuple(PROPERTIES.values())
