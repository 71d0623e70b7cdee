"""What networks on this machine need besides brokers: links between them that can be cut."""
