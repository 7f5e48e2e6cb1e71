"""The learning curve."""

from __future__ import annotations

import pytest

from megatron_rl.observability.curves import plot_learning_curve, series, smooth
from megatron_rl.observability.sinks import JsonlSink, read_metrics


def test_smooth_matches_hand_computed():
    assert smooth([1.0, 0.0, 4.0], decay=0.5) == pytest.approx([1.0, 0.5 / 1.5, (0.25 + 4) / 1.75])


def test_smooth_of_a_constant_is_the_constant():
    assert smooth([0.3] * 9) == pytest.approx([0.3] * 9)


def test_series_skips_steps_without_the_metric():
    records = [{"step": 0, "b": 1.0}, {"step": 1, "a": None}, {"step": 2, "a": 0.5}]
    assert series(records, "a") == ([2], [0.5])


@pytest.mark.parametrize("num_steps", [0, 1, 60], ids=["empty", "one", "sixty"])
def test_learning_curve_is_a_png(tmp_path, num_steps):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(0, {"val/accuracy/mean": 0.1} if num_steps else {})
    for step in range(1, num_steps + 1):
        sink.write(step, {"reward/mean": step / num_steps} | ({"val/accuracy/mean": 0.9} if step == num_steps else {}))
    plot_learning_curve(read_metrics(tmp_path / "metrics.jsonl"), tmp_path / "curve.png", "a run")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
