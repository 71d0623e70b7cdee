"""Work in small steps: a generator that yields after each of them, and returns what they come to."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


def at_once(steps: Generator[object, None, T]) -> T:
    """What the steps come to, for those who have the time."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def each(steps: Generator[A, None, T], tell: Callable[[A], B]) -> Generator[B, None, T]:
    """The same steps, of which each tells something else."""
    while True:
        try:
            told = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        yield tell(told)
