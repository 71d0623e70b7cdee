"""How RocksDB is set up: bounded memory, small compactions, large values apart."""

from __future__ import annotations

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBRecoveryMode,
    Options,
    ReadOptions,
    WriteBufferManager,
)

CACHE_BYTES = (
    64 * 1024 * 1024
)  # of memory for all that RocksDB keeps there: blocks, indices, filters, new entries
WRITE_BUFFER_BYTES = 16 * 1024 * 1024  # of new entries, at most a quarter of the cache
WRITE_BUFFERS = 3
# Compactions (decision 24): how many new files begin one, the size of the first level, and of its files. The files of each
# level are larger than those of the level above by the factor `FILE_GROWTH`.
COMPACTED_FILES = 6
LEVEL_BYTES = 32 * 1024 * 1024
FILE_BYTES, FILE_GROWTH = 4 * 1024 * 1024, 4
MOVED_BLOBS = 0.1  # of the files with large values, the oldest: what is not erased of them moves to new files
METADATA_BYTES = 4 * 1024  # of a piece of a file's index or filter
BLOB_BYTES = (
    2 * 1024
)  # values from this size on lie apart: sorting them again and again would cost more than they do
OPEN_FILES = 512
LOG_BYTES, LOG_FILES = 4 * 1024 * 1024, 4  # RocksDB's own diary


def options_of(cache_bytes: int) -> Options:
    table = BlockBasedOptions()
    cache = Cache(cache_bytes)
    table.set_block_cache(cache)
    table.set_cache_index_and_filter_blocks(True)  # or they grow with the data, outside the cache
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(10, False)
    # Index and filter of a file in pieces: as one block, they soon find no place in a shard of the cache any more, and then
    # every read loads and checks a megabyte.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(METADATA_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)  # the default would pickle
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(min(WRITE_BUFFER_BYTES, cache_bytes // 4))
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_write_buffer_manager(
        WriteBufferManager.new_write_buffer_manager_with_cache(cache_bytes // 2, False, cache)
    )
    options.set_level_zero_file_num_compaction_trigger(COMPACTED_FILES)
    options.set_max_bytes_for_level_base(LEVEL_BYTES)
    options.set_target_file_size_base(FILE_BYTES)
    options.set_target_file_size_multiplier(FILE_GROWTH)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(BLOB_BYTES)
    options.set_enable_blob_gc(True)  # or what retention erases would stay on disk
    options.set_blob_gc_age_cutoff(MOVED_BLOBS)
    options.set_max_open_files(OPEN_FILES)
    options.set_max_log_file_size(LOG_BYTES)
    options.set_keep_log_file_num(LOG_FILES)
    # A crash may tear what was not synced; what comes before the tear is the state to go on from.
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return options


def _scanning() -> ReadOptions:
    """The options of scans. They leave the cache to entries that are asked for often."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg]  # the library's stub leaves the argument out
    return options


SCANNING = _scanning()
