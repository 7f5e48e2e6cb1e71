"""Typed metrics."""

from __future__ import annotations

import math

import pytest

from megatron_rl.types.metrics import Metric, merge, to_floats


def merged(*metrics: Metric) -> float:
    return to_floats(merge({"x": metric} for metric in metrics))["x"]


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 6.0), ("mean", 2.0), ("max", 3.0), ("min", 1.0), ("last", 2.0)])
def test_merge_matches_hand_computed(reduction, expected):
    assert merged(*[Metric(value, reduction) for value in (1.0, 3.0, 2.0)]) == expected


def test_merge_weighs_means():
    assert merged(Metric(1.0, weight=3), Metric(5.0, weight=1), Metric(math.nan, weight=0)) == 2.0


@pytest.mark.parametrize("values", [(math.nan, 1.0), (1.0, math.nan)], ids=str)
@pytest.mark.parametrize("reduction", ["max", "min", "sum", "mean"])
def test_merge_keeps_nan_at_any_position(values, reduction):
    assert math.isnan(merged(*[Metric(value, reduction) for value in values]))


def test_merge_rejects_mixed_reductions():
    with pytest.raises(ValueError, match="several reductions"):
        merged(Metric(1.0, "sum"), Metric(1.0, "max"))


def test_merge_keeps_unshared_names():
    assert to_floats(merge([{"a": Metric(1.0)}, {"b": Metric(2.0)}])) == {"a": 1.0, "b": 2.0}
