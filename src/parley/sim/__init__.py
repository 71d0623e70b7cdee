"""A whole network inside one process, driven by one seed: clocks, links, disks, liars and the checks on what they do.

Start at `scenario.run`; `world.py` is the loop, `byzantine/` the liars, `checkers.py` what must hold.
"""
