"""Sums over micro-batches in a fixed tree, ((0 + 1) + (2 + 3)) + (4 + 5), as they arrive: only one partial sum per level is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TreeSum(Generic[T]):
    """
    >>> total = TreeSum(lambda a, b: f"({a}+{b})")
    >>> for part in "01234":
    ...     total.add(part)
    >>> total.result()
    '(((0+1)+(2+3))+4)'
    """

    def __init__(self, plus: Callable[[T, T], T]) -> None:
        self._plus = plus
        self._parts: list[tuple[int, T]] = []  # sums of 2**level items, the earliest first

    def add(self, item: T) -> None:
        """Add the next item."""
        level = 0
        while self._parts and self._parts[-1][0] == level:
            item = self._plus(self._parts.pop()[1], item)
            level += 1
        self._parts.append((level, item))

    def result(self) -> T:
        """The sum of all items; resets it."""
        total = self._parts.pop()[1]
        while self._parts:
            total = self._plus(self._parts.pop()[1], total)
        return total
