"""Publishing: offsets for the messages of a batch (P3)."""
