"""Slurm's compressed node lists, read without Slurm: containers and some clusters have no client on compute nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?$")


def expand_nodelist(nodelist: str) -> list[str]:
    """Node names in Slurm's order: ``"gpu-a[09-10]-x,b5"`` -> ``["gpu-a09-x", "gpu-a10-x", "b5"]``.

    Several brackets in one name multiply, the last one turning fastest; zeros in front are kept.

    Raises ValueError where the text is no node list.
    """
    names = [name for pattern in _patterns(nodelist.strip()) for name in _expand_pattern(pattern, nodelist)]
    if not names:
        raise ValueError(f"node list {nodelist!r} names no node")
    return names


def _patterns(nodelist: str) -> Iterator[str]:
    """Cut at the commas outside brackets."""
    depth, start = 0, 0
    for place, letter in enumerate(nodelist):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"node list {nodelist!r}: brackets do not match at character {place + 1}")
        if letter == "," and depth == 0:
            yield nodelist[start:place].strip()
            start = place + 1
    if depth:
        raise ValueError(f"node list {nodelist!r}: a bracket is not closed")
    yield nodelist[start:].strip()


def _expand_pattern(pattern: str, nodelist: str) -> Iterator[str]:
    if not pattern:
        raise ValueError(f"node list {nodelist!r}: a name is empty")
    choices = [
        [text] if text else [number for item in ranges.split(",") for number in _numbers(item.strip(), nodelist)]
        for ranges, text in _PART.findall(pattern)
    ]
    for parts in product(*choices):
        yield "".join(parts)


def _numbers(item: str, nodelist: str) -> list[str]:
    """``"09-11"`` -> ``["09", "10", "11"]``."""
    found = _RANGE.match(item)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise ValueError(f"node list {nodelist!r}: {item!r} is neither a number nor a range")
    first, last = found[1], found[2] or found[1]
    return [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
