"""Least squares in two unknowns, in closed form."""

from __future__ import annotations

from collections.abc import Sequence


def fit_two(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float] | None:
    """``(a, b)`` that minimise ``sum((a x + b y - z)^2)`` over rows ``(x, y, z)``; None where they are not determined."""
    xx = sum(x * x for x, _, _ in rows)
    yy = sum(y * y for _, y, _ in rows)
    xy = sum(x * y for x, y, _ in rows)
    xz = sum(x * z for x, _, z in rows)
    yz = sum(y * z for _, y, z in rows)
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return None
    return (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Intercept and slope of ``y = a + b x``; None where all ``x`` are equal."""
    return fit_two([(1.0, x, y) for x, y in points])
