"""Primitives every part of Parley signs, hashes and proves with; they do no I/O and hold no global state."""
