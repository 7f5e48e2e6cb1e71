"""Curves and bars out of block characters."""

from __future__ import annotations

from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """At most ``width`` characters, the lowest value at the bottom; stretches are averaged, gaps are blank.

    A constant curve is drawn at the bottom.
    """
    shown = _averaged(values, width)
    present = [value for value in shown if value is not None]
    if not present:
        return " " * len(shown)
    low, span = min(present), max(present) - min(present)
    top = len(_LEVELS) - 1
    return "".join(" " if value is None else _LEVELS[round(top * (value - low) / span) if span else 0] for value in shown)


def bar(share_frac: float, width: int) -> str:
    """A bar ``share_frac`` of ``width`` characters long, exact to an eighth of one."""
    eighths = round(max(0.0, min(1.0, share_frac)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def _averaged(values: Sequence[float | None], width: int) -> list[float | None]:
    count = len(values)
    if count <= width:
        return list(values)
    means: list[float | None] = []
    for i in range(width):
        part = [value for value in values[i * count // width : (i + 1) * count // width] if value is not None]
        means.append(sum(part) / len(part) if part else None)
    return means
