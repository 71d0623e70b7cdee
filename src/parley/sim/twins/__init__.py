"""Twins: equivocation, amnesia and double votes without an attacker's code, by running two copies of a member.

A scenario scripts leaders, partitions and restarts view by view; then the network heals. Safety must hold throughout,
and everybody must commit again soon after. The method is that of Bano et al., "Twins: BFT systems made robust".
"""
