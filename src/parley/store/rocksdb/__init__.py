"""The store on disk on RocksDB, and all that is known of RocksDB: its options, its files, its numbers."""
