"""Warnings with advice."""

from __future__ import annotations

import pytest

from megatron_rl.observability.health import HealthMonitor, mismatch_rule
from megatron_rl.types.metrics import Metric


def observe(*values: float, metric: str) -> list[str]:
    warnings: list[str] = []
    monitor = HealthMonitor(warnings.append)
    for value in values:
        monitor.observe({metric: Metric(value), "other": Metric(5.0)})
    return warnings


@pytest.mark.parametrize(
    ("metric", "advice"),
    [("response_length/clip_ratio", "data.max_response_length"), ("group/frac_zero_std", "rollout.n")],
)
def test_health_warns_once_after_three_steps_in_a_row(metric, advice):
    assert observe(0.95, 0.95, metric=metric) == []
    assert observe(0.95, 0.95, 0.5, 0.95, 0.95, metric=metric) == []
    (warning,) = observe(0.9, 0.95, 1.0, 1.0, 1.0, 1.0, metric=metric)
    assert metric in warning and advice in warning


def test_health_warns_again_after_recovery():
    assert len(observe(1, 1, 1, 1, 0, 1, 1, 1, metric="response_length/clip_ratio")) == 2


def test_health_ignores_missing_and_nan_metrics():
    assert observe(1.0, 1.0, 1.0, metric="unrelated") == []
    assert observe(float("nan"), float("nan"), float("nan"), metric="group/frac_zero_std") == []


def test_utilisation_above_one_warns_at_once():
    (warning,) = observe(1.2, metric="perf/mfu_actor")
    assert "wrong" in warning


def test_mismatch_above_its_threshold_warns_at_once():
    warnings: list[str] = []
    monitor = HealthMonitor(warnings.append, rules=[mismatch_rule(0.05)])
    for value in (0.01, 0.2, 0.3):
        monitor.observe({"rollout_corr/logprob_diff_mean": Metric(value)})
    assert len(warnings) == 1 and "weight sync" in warnings[0]
