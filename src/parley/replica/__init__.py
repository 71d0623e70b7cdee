"""One broker without its sockets and disks: consensus, mempool, sync and an application, still sans-IO."""
