"""`parley bench failover`: how long clients of other brokers wait when one fails."""
