"""Ordering: Jolteon voting with timeout certificates over a chain of blocks (Galaxy III-IV, PROTOCOL P1, P2, P8).

Sans-IO: `machine.Machine` takes verified inputs and returns effects; it knows no clock, socket, disk or randomness.
Read `safety.py` first (what a replica may sign), then `forest.py` (when a block is final), then `machine.py`.
"""
