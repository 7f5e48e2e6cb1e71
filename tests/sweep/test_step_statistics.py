"""Means, spreads and trends against numbers worked out by hand."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path

import pytest

from megatron_rl.observability.sinks import Record
from megatron_rl.sweep.step_statistics import Spread, read_attempts, step_statistics, trend


def record(step: int, gen: float, update: float, tokens: float = 100.0, **more: float) -> Record:
    return {
        "step": step,
        "timing_s/step": gen + update,
        "timing_s/gen": gen,
        "timing_s/update_actor": update,
        "perf/total_num_tokens": tokens,
        **more,
    }


def test_step_statistics_matches_hand_computed() -> None:
    steps = [record(1, 9.0, 9.0), record(2, 1.0, 3.0, 100.0), record(3, 2.0, 2.0, 300.0), record(4, 3.0, 4.0, 200.0)]
    found = step_statistics([steps], warmup_steps=1)
    assert found is not None
    assert found.num_steps == 3
    assert found.step_s == Spread(5.0, pytest.approx(sqrt(3.0)))
    assert [(phase.phase, phase.seconds.mean, phase.share_frac) for phase in found.phases] == [
        ("update_actor", 3.0, pytest.approx(0.6)),
        ("gen", 2.0, pytest.approx(0.4)),
    ]
    assert found.phases[1].seconds.std == pytest.approx(1.0)
    assert found.tokens_per_s == pytest.approx(600 / 15)
    assert found.steps_per_s == pytest.approx(0.2)
    assert found.total_s == pytest.approx(33.0)


def test_step_statistics_of_a_resumed_run_leaves_out_each_attempts_warmup() -> None:
    first = [record(1, 9.0, 0.0), record(2, 1.0, 0.0), record(3, 1.0, 0.0)]
    second = [record(3, 9.0, 0.0), record(4, 3.0, 0.0)]
    found = step_statistics([first, second], warmup_steps=1)
    assert found is not None and (found.num_steps, found.step_s.mean) == (3, pytest.approx(5 / 3))


def test_step_statistics_counts_a_repeated_step_once_and_the_newer() -> None:
    found = step_statistics([[record(1, 1.0, 0.0), record(2, 1.0, 0.0)], [record(2, 5.0, 0.0)]], warmup_steps=0)
    assert found is not None and found.step_s.mean == pytest.approx(3.0)


def test_step_statistics_phase_that_did_not_run_took_no_time() -> None:
    steps = [record(1, 1.0, 1.0), record(2, 1.0, 1.0, **{"timing_s/save_checkpoint": 4.0})]
    found = step_statistics([steps], warmup_steps=0)
    assert found is not None
    assert {phase.phase: phase.seconds.mean for phase in found.phases}["save_checkpoint"] == 2.0


def test_step_statistics_is_none_without_a_step_after_the_warmup() -> None:
    assert step_statistics([[record(1, 1.0, 1.0)]], warmup_steps=1) is None
    assert step_statistics([], warmup_steps=0) is None


def test_step_statistics_memory_counts_the_warmup_too() -> None:
    steps = [record(1, 1.0, 1.0, **{"memory/gen_gib": 7.0}), record(2, 1.0, 1.0, **{"memory/gen_gib": 5.0})]
    found = step_statistics([steps], warmup_steps=1)
    assert found is not None and found.memory_gib == {"gen": 7.0} and found.peak_gib == 7.0


def test_step_statistics_peak_is_what_the_allocator_reserved() -> None:
    gpu = {"memory/gen_gib": 7.0, "perf/cuda_memory_reserved_gb": 9.0}
    found = step_statistics([[record(1, 1.0, 1.0, **gpu), record(2, 1.0, 1.0)]], warmup_steps=0)
    assert found is not None and found.peak_gib == 9.0


def test_one_step_has_no_spread() -> None:
    assert Spread.of([2.0]) == Spread(2.0, None)


def test_trend_matches_hand_computed() -> None:
    # y = 1, 2, 4, 5 over x = 1..4: mean 2.5 and 3, slope (3 + 0.5 + 0.5 + 3) / 5 = 1.4, residuals 0.1, 0.3, 0.3, 0.1.
    found = trend([(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0)])
    assert found.slope == pytest.approx(1.4)
    assert found.standard_error == pytest.approx(sqrt((0.01 + 0.09 + 0.09 + 0.01) / 2 / 5))
    assert (found.first_mean, found.last_mean) == (1.0, 5.0)


def test_trend_of_a_constant_has_no_t() -> None:
    found = trend([(1, 0.5), (2, 0.5), (3, 0.5)])
    assert (found.slope, found.standard_error, found.t) == (0.0, 0.0, None)


def test_trend_invariant_to_order() -> None:
    points = [(1.0, 0.1), (2.0, 0.4), (3.0, 0.2), (4.0, 0.9), (5.0, 0.5)]
    assert trend(points) == trend(points[::-1])


def test_read_attempts_leaves_out_the_link_and_validation(tmp_path: Path) -> None:
    for name, step in (("20260101-1", 1), ("20260101-2", 2)):
        (tmp_path / name).mkdir()
        lines = [{"step": 0, "val/accuracy/mean": 0.1}, record(step, 1.0, 1.0)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "latest").symlink_to("20260101-2")
    assert [[one["step"] for one in attempt] for attempt in read_attempts(tmp_path)] == [[1], [2]]
