"""Linear least squares with prior knowledge and lower bounds, small enough for plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is believed of one number before the fit. Example: ``Unknown(1.3, 0.1, 1.0)``."""

    mean: float
    spread: float
    """Standard deviation, above 0."""
    least: float


@dataclass(frozen=True, slots=True)
class Observation:
    """``sum(weights * unknowns) = value``, give or take ``spread``."""

    weights: Sequence[float]
    value: float
    spread: float


def fit_bounded(unknowns: Sequence[Unknown], observations: Sequence[Observation]) -> list[tuple[float, float]]:
    """Most likely values and their standard deviations: Bayesian linear regression with Gaussian errors.

    Minimises ``sum(((x - mean) / spread)^2) + sum(((weights x - value) / spread)^2)``; the value that falls furthest below
    its bound is put there and the others are solved for again, until none does. Deviations are those without bounds.
    """
    scaled = [[w / o.spread for w in o.weights] for o in observations]
    targets = [o.value / o.spread for o in observations]
    size = len(unknowns)
    matrix = [[sum(row[i] * row[j] for row in scaled) for j in range(size)] for i in range(size)]
    right = [sum(row[i] * target for row, target in zip(scaled, targets, strict=True)) for i in range(size)]
    for i, unknown in enumerate(unknowns):
        matrix[i][i] += 1 / unknown.spread**2
        right[i] += unknown.mean / unknown.spread**2
    inverse = _inverse(matrix)
    found = [sum(inverse[i][j] * right[j] for j in range(size)) for i in range(size)]
    free, bound = list(range(size)), [unknown.least for unknown in unknowns]
    while below := [i for i in free if found[i] < bound[i]]:
        free.remove(min(below, key=lambda i: (found[i] - bound[i]) / unknowns[i].spread))
        fixed = [i for i in range(size) if i not in free]
        rest = _inverse([[matrix[i][j] for j in free] for i in free])
        remaining = [right[i] - sum(matrix[i][j] * bound[j] for j in fixed) for i in free]
        found = list(bound)
        for row, i in zip(rest, free, strict=True):
            found[i] = sum(weight * value for weight, value in zip(row, remaining, strict=True))
    return [(value, sqrt(inverse[i][i])) for i, value in enumerate(found)]


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of a symmetric positive definite matrix; scaled first, so that unlike units do not spoil the pivots."""
    size = len(matrix)
    scale = [1 / sqrt(matrix[i][i]) for i in range(size)]
    rows = [
        [matrix[i][j] * scale[i] * scale[j] for j in range(size)] + [float(i == j) for j in range(size)] for i in range(size)
    ]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [value - factor * top for value, top in zip(rows[j], rows[i], strict=True)]
    return [[rows[i][size + j] * scale[i] * scale[j] for j in range(size)] for i in range(size)]
