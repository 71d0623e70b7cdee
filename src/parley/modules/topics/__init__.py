"""Topics, their partitions and their rules (P26)."""
