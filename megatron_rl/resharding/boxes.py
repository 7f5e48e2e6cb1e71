"""Arithmetic of half-open boxes, the index sets of fragments."""

from __future__ import annotations

from math import prod
from operator import sub

Point = tuple[int, ...]
Box = tuple[Point, Point]
"""(start, stop), one pair of bounds per dim."""


def volume(box: Box) -> int:
    """Elements inside."""
    return prod(map(sub, box[1], box[0]))


def intersect(a: Box, b: Box) -> Box | None:
    """The common box, or None where it is empty."""
    start = tuple(map(max, a[0], b[0]))
    stop = tuple(map(min, a[1], b[1]))
    for low, high in zip(start, stop, strict=True):
        if low >= high:
            return None
    return start, stop


def subtract(box: Box, hole: Box) -> list[Box]:
    """Disjoint boxes that cover ``box`` without ``hole``, which must lie inside it."""
    rest = []
    start, stop = list(box[0]), list(box[1])
    for dim, (low, high) in enumerate(zip(*hole, strict=True)):
        if start[dim] < low:
            rest.append((tuple(start), (*stop[:dim], low, *stop[dim + 1 :])))
        if high < stop[dim]:
            rest.append(((*start[:dim], high, *start[dim + 1 :]), tuple(stop)))
        start[dim], stop[dim] = low, high
    return rest
