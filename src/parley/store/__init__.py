"""Ordered entries, read and written: one interface, a store in memory, and the one on a broker's disk."""
