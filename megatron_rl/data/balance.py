"""Dealing work out evenly: the largest differencing method of Karmarkar and Karp (1982).

Pure functions of the sizes, so every rank computes the same answer without a collective.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class _Part(NamedTuple):
    """Items that go together. Compared field by field, so that ties fall the same way everywhere."""

    total: int
    num_items: int
    items: tuple[int, ...]

    def joined(self, other: _Part) -> _Part:
        return _Part(self.total + other.total, self.num_items + other.num_items, self.items + other.items)


@dataclass(frozen=True, slots=True)
class _Split:
    """A division of some of the items into parts, largest first; empty ones, which come last, are left out."""

    parts: list[_Part]
    num_parts: int
    """Empty ones included."""

    @property
    def spread(self) -> int:
        smallest = self.parts[-1].total if len(self.parts) == self.num_parts else 0
        return self.parts[0].total - smallest

    def __lt__(self, other: _Split) -> bool:
        """Whether it is merged earlier: the more uneven first."""
        if self.spread != other.spread:
            return self.spread > other.spread
        return self.parts[0] > other.parts[0]

    def merged(self, other: _Split) -> _Split:
        """Join the largest part of one with the smallest of the other; the n-th largest meets the n-th smallest."""
        alone = self.num_parts - len(other.parts)
        joined = [part.joined(other.parts[self.num_parts - 1 - i]) for i, part in enumerate(self.parts[alone:], alone)]
        parts = self.parts[:alone] + joined + other.parts[: self.num_parts - len(self.parts)]
        return _Split(sorted(parts, reverse=True), self.num_parts)


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
    singles = [_Part(sizes[i], 1, (i,)) for i in sorted(range(len(sizes)), key=lambda i: (sizes[i], i))]
    if equal_counts:
        assert len(sizes) % num_parts == 0, f"{len(sizes)} items do not split into {num_parts} equal counts"
        rows = (singles[i : i + num_parts] for i in range(0, len(singles), num_parts))
        heap = [_Split(row[::-1], num_parts) for row in rows]
    else:
        heap = [_Split([part], num_parts) for part in singles]
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, heapq.heappop(heap).merged(heapq.heappop(heap)))
    filled = [sorted(part.items) for part in heap[0].parts]
    return filled + [[] for _ in range(num_parts - len(filled))]
