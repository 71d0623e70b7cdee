"""How many replicas must agree: the one place where quorums are computed (P1)."""

from __future__ import annotations


def faults(n: int) -> int:
    """The number of arbitrarily faulty replicas that `n` replicas bear."""
    return (n - 1) // 3


def quorum(n: int) -> int:
    """Q = ceil((n + f + 1) / 2): two quorums share f + 1 replicas, and the n - f honest ones make one."""
    return (n + faults(n) + 2) // 2
