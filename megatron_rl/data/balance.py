"""Dealing work out evenly: the largest differencing method of Karmarkar and Karp (1982).

Pure functions of the sizes, so every rank computes the same answer without a collective.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Part:
    """Items that go together. Ordered by sum, then count, then items, so that ties fall the same way everywhere."""

    total: int
    items: tuple[int, ...]

    @property
    def key(self) -> tuple[int, int, tuple[int, ...]]:
        return self.total, len(self.items), self.items

    def joined(self, other: _Part) -> _Part:
        return _Part(self.total + other.total, self.items + other.items)


@dataclass(frozen=True, slots=True)
class _Split:
    """A division of some of the items into parts, largest first."""

    parts: tuple[_Part, ...]

    @classmethod
    def of(cls, parts: list[_Part]) -> _Split:
        return cls(tuple(sorted(parts, key=lambda part: part.key, reverse=True)))

    @property
    def spread(self) -> int:
        return self.parts[0].total - self.parts[-1].total

    def __lt__(self, other: _Split) -> bool:
        """Whether it is merged earlier: the more uneven first."""
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.parts[0].key > other.parts[0].key

    def merged(self, other: _Split) -> _Split:
        """Join the largest part of one with the smallest of the other."""
        return _Split.of([a.joined(b) for a, b in zip(self.parts, reversed(other.parts), strict=True)])


def balanced_partition(sizes: Sequence[int], num_parts: int, *, equal_counts: bool = False) -> list[list[int]]:
    """Split items into parts with nearly equal sums.

    Args:
        sizes: size of each item.
        num_parts: parts, > 0; some stay empty where there are fewer items.
        equal_counts: each part gets the same number of items, which must divide.

    Returns each part's item indices, ascending; the part with the largest sum first.

    Example: ``balanced_partition([1, 2, 3, 4], 2) == [[1, 2], [0, 3]]``.
    """
    assert num_parts > 0
    if not sizes:
        return [[] for _ in range(num_parts)]
    singles = [_Part(sizes[i], (i,)) for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i))]
    if equal_counts:
        assert len(sizes) % num_parts == 0, f"{len(sizes)} items do not split into {num_parts} equal counts"
        heap = [_Split.of(singles[i : i + num_parts]) for i in range(0, len(singles), num_parts)]
    else:
        heap = [_Split.of([part, *[_Part(0, ())] * (num_parts - 1)]) for part in singles]
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, heapq.heappop(heap).merged(heapq.heappop(heap)))
    return [sorted(part.items) for part in heap[0].parts]
