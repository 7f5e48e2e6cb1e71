"""A logged number knows how it is reduced, so no reduction is ever guessed from its name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # scoring processes read metrics and load no torch
    from torch import Tensor

Reduction = Literal["sum", "mean", "max", "min", "last"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One value and how several of them become one. ``mean`` weighs by ``weight``."""

    value: float
    reduction: Reduction = "mean"
    weight: float = 1.0


Metrics = dict[str, Metric]


def _reduce(items: list[Metric]) -> Metric:
    kinds = {item.reduction for item in items}
    if len(kinds) != 1:
        raise ValueError(f"one metric was recorded with several reductions: {sorted(kinds)}")
    kind = items[0].reduction
    weight = sum(item.weight for item in items)
    values = [item.value for item in items]
    if kind == "mean":
        # A part without weight says nothing: its value, perhaps NaN, must not count.
        total = sum(item.value * item.weight for item in items if item.weight)
        return Metric(total / weight if weight else 0.0, kind, weight)
    if kind in ("max", "min") and any(math.isnan(value) for value in values):
        # max() and min() keep or lose a NaN by its position.
        return Metric(math.nan, kind, weight)
    if kind == "last":
        return Metric(values[-1], kind, weight)
    if kind == "sum":
        return Metric(float(sum(values)), kind, weight)
    return Metric(max(values) if kind == "max" else min(values), kind, weight)


def merge(parts: Iterable[Metrics]) -> Metrics:
    """Join metric sets; names present in several are reduced by their own rule."""
    grouped: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            grouped.setdefault(name, []).append(metric)
    return {name: _reduce(items) for name, items in grouped.items()}


def spread(name: str, values: Tensor) -> Metrics:
    """``name/mean``, ``name/max`` and ``name/min`` of a tensor's elements, f64; nothing of an empty one. Syncs: three reads."""
    if values.numel() == 0:
        return {}
    exact = values.double()
    return {
        f"{name}/mean": Metric(float(exact.mean()), weight=float(values.numel())),
        f"{name}/max": Metric(float(exact.max()), "max"),
        f"{name}/min": Metric(float(exact.min()), "min"),
    }


def to_floats(metrics: Metrics) -> dict[str, float]:
    """Plain numbers for the sinks."""
    return {name: metric.value for name, metric in metrics.items()}
