"""Efficiency and blame against numbers worked out by hand, and the identity that ties them together."""

from __future__ import annotations

import pytest

from megatron_rl.sweep.efficiency import efficiencies, efficiency, phase_costs
from megatron_rl.sweep.point_result import PointResult, Source


def point(ranks: int, phases: dict[str, float], tokens: float = 1000.0, source: Source = "measured") -> PointResult:
    step_s = sum(phases.values())
    return PointResult(
        name=f"gpus_{ranks}",
        source=source,
        settings={"gpus": str(ranks)},
        num_ranks=ranks,
        num_steps=5,
        step_s=step_s,
        step_std_s=None,
        tokens_per_step=tokens,
        tokens_per_s=tokens / step_s,
        phase_s=phases,
        phase_std_s=dict.fromkeys(phases),
        memory_gib={},
        peak_gib=None,
        gpu_hours=None,
        price_per_hour=None,
    )


SMALLEST = point(2, {"gen": 6.0, "update": 4.0})


def test_efficiency_of_strong_scaling_matches_hand_computed() -> None:
    found = efficiency(point(8, {"gen": 1.5, "update": 2.5}), SMALLEST)
    assert found.efficiency_frac == pytest.approx(10 * 2 / (4 * 8))
    assert found.speedup == pytest.approx(2.5)
    assert found.blame is not None
    assert found.blame.phase == "update"
    # update costs 8 * 2.5 rank-seconds where the whole step cost 2 * 10; gen still costs 8 * 1.5 = 2 * 6.
    assert (found.blame.share_before, found.blame.share_now) == (pytest.approx(0.4), pytest.approx(1.0))
    assert found.blame.loss_frac == pytest.approx(1.0)


def test_efficiency_of_weak_scaling_reduces_to_the_ratio_of_step_times() -> None:
    found = efficiency(point(8, {"gen": 7.0, "update": 5.5}, tokens=4000.0), SMALLEST)
    assert found.efficiency_frac == pytest.approx(10 / 12.5)


def test_efficiency_blames_nothing_where_nothing_is_lost() -> None:
    assert efficiency(point(4, {"gen": 3.0, "update": 2.0}), SMALLEST).blame is None
    assert efficiency(SMALLEST, SMALLEST).efficiency_frac == 1.0


def test_phase_costs_growth_is_exactly_the_loss() -> None:
    larger = point(16, {"gen": 1.1, "update": 0.9, "sync": 0.35}, tokens=1234.0)
    before, now = phase_costs(SMALLEST, SMALLEST), phase_costs(larger, SMALLEST)
    growth = sum(now.values()) - sum(before.values())
    assert sum(before.values()) == pytest.approx(1.0)
    assert growth == pytest.approx(1 / efficiency(larger, SMALLEST).efficiency_frac - 1)


def test_efficiency_blames_a_phase_that_the_smallest_point_lacks() -> None:
    found = efficiency(point(4, {"gen": 3.0, "update": 2.0, "sync": 5.0}), SMALLEST)
    assert found.blame is not None and (found.blame.phase, found.blame.share_before) == ("sync", 0.0)


def test_efficiencies_never_compare_a_measurement_with_the_model() -> None:
    model = [point(ranks, {"gen": 0.6 / ranks, "update": 0.4 / ranks}, source="model") for ranks in (2, 4)]
    found = efficiencies([SMALLEST, point(4, {"gen": 6.0, "update": 4.0}), *model])
    assert found["measured", "gpus_4"].efficiency_frac == pytest.approx(0.5)
    assert found["model", "gpus_4"].efficiency_frac == pytest.approx(1.0)
